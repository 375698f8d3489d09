from __future__ import annotations

import pytest
import torch

from headway.errors import BadInput
from headway.train.precision import require_precision

GPU = torch.device("cuda", 0)


@pytest.fixture
def old_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is not in Headway's table, of compute capability 7.5."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Quadro RTX 8000")


@pytest.mark.usefixtures("old_gpu")
def test_a_worker_does_not_emulate_bf16() -> None:
    with pytest.raises(BadInput) as caught:
        require_precision("bf16", GPU)
    assert str(caught.value) == (
        "precision: bf16 requested, but the Quadro RTX 8000 has no bf16 units\n"
        "hint: to train in fp16: --set precision=fp16"
    )
    require_precision("fp16", GPU)
    require_precision("fp32", GPU)
    require_precision("bf16", torch.device("cpu"))
