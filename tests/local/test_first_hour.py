"""What README promises a newcomer: init, run, generate, export, in under four minutes in all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.commands import headway
from support.stolen_time import Stopwatch

pytestmark = [pytest.mark.local, pytest.mark.timeout(400)]

GOLDEN = json.loads((Path(__file__).parent / "golden" / "tiny.json").read_text())
LIMIT_SECONDS = 240


def test_init_run_generate_export(tmp_path: Path) -> None:
    watch = Stopwatch()
    headway("init", "tiny", "my-run", folder=tmp_path)
    folder = tmp_path / "my-run"
    run = headway("run", folder=folder)
    text = headway("generate", "--prompt", "Once", "--max-tokens", "40", folder=folder).stdout
    headway("export", "--into", "exported", folder=folder)
    seconds = watch.seconds

    status = json.loads(headway("status", "--json", folder=folder).stdout)
    assert status["state"] == "finished"
    assert status["step"] == status["total_steps"] == 300
    assert status["evaluations"]["held-out"] == pytest.approx(
        GOLDEN["held_out_loss"], abs=GOLDEN["tolerance"]
    )
    assert "step 300/300" in run.stderr
    assert text.startswith("Once")
    assert len(text.split()) > 10
    assert (folder / "exported" / "model.safetensors").is_file()
    assert (folder / "exported" / "tokenizer.json").is_file()
    assert any((folder / "runs" / "my-run" / "tensorboard").iterdir())
    assert seconds < LIMIT_SECONDS

    lines = [json.loads(line) for line in (folder / "runs/my-run/metrics.jsonl").open()]
    assert [line["step"] for line in lines] == list(range(1, 301))
    assert {"loss", "perplexity", "lr", "grad_norm", "tokens_per_second"} <= set(lines[0])
    assert "mfu" not in lines[0], "no MFU may be claimed for a device without a published peak"
    assert "MFU is not given" in run.stderr

    listed = headway("list", folder=folder).stdout
    assert "my-run" in listed
    assert "finished" in listed

    again = headway("run", folder=folder, seconds=10)
    assert "has already finished" in again.stderr
