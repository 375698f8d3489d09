"""The devices that docs/reference/presets.md names for each preset are enough, and not too many."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.cli.device_check import least_size_of, require_named_devices
from headway.cli.preflight import parameters_of
from headway.plan.device_refusals import NODE_DEVICES, STATE_SHARE
from headway.plan.memory_need import least_bytes_of_worker
from headway.spec.load import load_run, preset_names
from headway.spec.resolve import Hardware, resolve
from tools.reference import SHOWN, meant_for

ON_GPUS = [name for name in preset_names() if name != "tiny"]


def numbers(preset: str) -> dict[str, int | None]:
    """Devices of a node, as the page says."""
    (row,) = [line for line in meant_for(preset) if line.startswith("| devices of a node")]
    cells = [cell.strip() for cell in row.strip("|").split("|")[1:]]
    return {
        device.name: None if cell == "none" else int(cell)
        for device, cell in zip(SHOWN.values(), cells, strict=True)
    }


def share_of_memory(device: str, number: int, memory_gib: float) -> float:
    loaded = load_run(None, [f"resources.accelerators={device}:{number}"])
    require_named_devices(loaded)
    resolved = resolve(
        loaded,
        Hardware(cores=8, cuda_devices=number),
        nodes=1,
        parameters=parameters_of(loaded.run),
        train_set="",
        validation_sets={},
    )
    assert resolved.sharded is (number > 1), "as the preset is, without --set shard"
    size = least_size_of(loaded)
    assert size is not None
    return least_bytes_of_worker(resolved, size.parameters) / (memory_gib * 2**30)


@pytest.mark.parametrize("preset", ON_GPUS)
def test_these_devices_hold_it_and_leave_room(folder: Path, preset: str) -> None:
    text = f"version: 1\nname: it\nextends: {preset}\ndata: {{train: prepared}}\n"
    (folder / "run.yaml").write_text(text)
    for device in SHOWN.values():
        number = numbers(preset)[device.name]
        if number is not None:
            share = share_of_memory(device.name, number, device.memory_gib)
            assert share <= STATE_SHARE


def test_fewer_devices_do_not() -> None:
    """Published sizes, 16 bytes a parameter, by hand."""
    assert numbers("llama2-7b")["A100-80GB"] == 2
    assert 18 * 6_738_415_616 / 2**30 > 80
    assert numbers("llama2-13b")["A100-80GB"] == 4
    assert STATE_SHARE * 80 < 16 * 13_015_864_320 / 2 / 2**30
    assert numbers("llama2-70b") == {
        "L4": None,
        "A100-40GB": None,
        "A100-80GB": None,
        "H200": None,
        "B200": NODE_DEVICES[-1],
    }
    assert STATE_SHARE * 141 < 16 * 68_976_648_192 / 8 / 2**30


def test_the_first_run_is_for_the_cpu() -> None:
    assert meant_for("tiny") == ["Meant for a CPU: 560,640 parameters take 9 MB."]
