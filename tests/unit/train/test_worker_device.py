from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headway.errors import BadInput
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, resolve
from headway.train.__main__ import _placement
from headway.train.start import Start
from headway.train.stop_request import StopRequest


@pytest.mark.trap(6)
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a driver")
@pytest.mark.parametrize("shard", ["none", "node"])
@pytest.mark.parametrize("asked", [None, "H100:2"])
def test_a_worker_on_a_machine_without_a_driver_says_so(
    tmp_path: Path, shard: str, asked: str | None
) -> None:
    """Before it meets the others: a pod may have been given a machine without its devices."""
    (tmp_path / "run.yaml").write_text("version: 1\nextends: gpt2-small\ndata: {train: prepared}\n")
    wanted = [] if asked is None else [f"resources.accelerators={asked}"]
    resolved = resolve(
        load_run(tmp_path, [f"shard={shard}", *wanted]),
        Hardware(cores=2, cuda_devices=2),
        nodes=1,
        parameters=None,
        train_set="prepared",
        validation_sets={},
    )
    start = Start(resolved, 1, 1, "launch", generation=1, store=tmp_path / "store")
    with pytest.raises(BadInput) as caught:
        _placement(start, None, StopRequest(is_live=False), {})
    assert str(caught.value) == (
        f"{asked or 'GPU'} requested, but torch sees no GPU\n"
        "hint: to run it on the CPU: --set resources.accelerators=cpu:1"
    )
