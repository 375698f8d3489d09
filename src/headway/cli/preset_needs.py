"""Size of a preset, and the devices that hold its state."""

from __future__ import annotations

from headway.cli.output import short_bytes, short_count
from headway.plan.accelerators import find_device
from headway.plan.device_refusals import NODE_DEVICES, fewest_devices
from headway.plan.memory_need import state_bytes
from headway.plan.model_size import model_size
from headway.spec.load import load_run, preset_names
from headway.spec.run_file import RunFile

SHOWN = {
    label: device
    for label in ("L4", "A100-40GB", "A100-80GB, H100", "H200", "B200")
    if (device := find_device(label.partition(",")[0])) is not None
}
"""Devices of the reference page, by their label there."""
LISTED = {"24 GB": "L4", "80 GB": "A100-80GB, H100"}
"""Devices of `headway init --list`, by the memory that people know them for."""


def preset_parameters(run: RunFile) -> int:
    assert run.model is not None
    assert run.model.type is not None
    config = dict(run.model.config)
    if run.data.train is not None and run.data.train.tokenizer is not None:
        trained = run.data.train.tokenizer.train
        assert trained is not None
        config.setdefault("vocab_size", trained.vocab)
    size = model_size(run.model.type, config)
    assert size is not None
    return size.parameters


def preset_rows() -> list[tuple[str, str, str, str]]:
    """Name, parameters, state, and what holds the state, of every preset; the smallest first."""
    runs = {name: load_run(name).run for name in preset_names()}
    sizes = {name: preset_parameters(run) for name, run in runs.items()}
    return [
        (
            name,
            short_count(sizes[name]),
            short_bytes(state_bytes(sizes[name], runs[name].precision)),
            _needs(sizes[name], runs[name].precision),
        )
        for name in sorted(runs, key=lambda name: sizes[name])
    ]


def _needs(parameters: int, precision: str) -> str:
    if precision == "fp32":
        return "a CPU"
    wanted = []
    for memory, label in LISTED.items():
        number = fewest_devices(SHOWN[label], parameters, precision)
        if number is not None:
            wanted.append(f"{number} GPU{'s' if number > 1 else ''} of {memory}")
        if number == 1:
            break
    most = f"more than {NODE_DEVICES[-1]} GPUs of {memory}: several nodes"
    return " or ".join(wanted) or most
