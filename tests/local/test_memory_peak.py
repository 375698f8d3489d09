"""Memory that plan predicts, against what torch allocates in real steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.step_memory import MemoryCase, measured, predicted

pytestmark = pytest.mark.local
SMALL = {"n_embd": 96, "n_layer": 3, "vocab_size": 1024}


# More of them: make bench-memory.
@pytest.mark.parametrize(
    "case",
    [
        MemoryCase("gpt2", "bf16", length=32, passes=2, recomputes=True, config=SMALL),
        MemoryCase("gpt2", "bf16", length=32, ranks=2, config=SMALL),
    ],
    ids=str,
)
def test_a_step_and_a_save_need_what_is_predicted(
    case: MemoryCase, stream: dict[str, Path], tmp_path: Path
) -> None:
    estimate = predicted(case, tmp_path)
    peaks = measured(case, tmp_path, stream["train"])
    assert estimate.step.value == pytest.approx(peaks.step, rel=0.05)
    assert estimate.step.high >= peaks.step
    assert estimate.saving.value == pytest.approx(peaks.saving, rel=0.05)
