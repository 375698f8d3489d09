"""Which machines and runs share compiled code."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.launch.compile_identity import compile_identity
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, Resolved, resolve

CPUINFO = """processor : 0
vendor_id : GenuineIntel
cpu MHz : {mhz}
flags : {flags}

processor : 1
vendor_id : GenuineIntel
cpu MHz : {mhz}
flags : {flags}
"""


def machine(folder: Path, flags: str = "fpu sse2 avx2", mhz: str = "2500.0") -> Path:
    (folder / "proc").mkdir(parents=True)
    (folder / "proc/cpuinfo").write_text(CPUINFO.format(flags=flags, mhz=mhz))
    return folder


def run(tmp_path: Path, *sets: str) -> Resolved:
    file = tmp_path / "run.yaml"
    file.write_text("version: 1\nname: it\nmodel: {type: gpt2}\nbatch: {global: 4, micro: 2}\n")
    return resolve(
        load_run(file, ["data.train=prepared", "memory.compile=true", *sets]),
        Hardware(cores=2, cuda_devices=0),
        nodes=1,
        parameters=None,
        train_set=tmp_path,
        validation_sets={},
    )


def test_the_same_machine_and_run(tmp_path: Path) -> None:
    one = machine(tmp_path / "one")
    other = machine(tmp_path / "other", flags="avx2 sse2 fpu", mhz="1200.0")
    expected = compile_identity(run(tmp_path), one)
    assert compile_identity(run(tmp_path), other) == expected
    changes = ["name=other", "train_for=10 steps", "evaluation.every=10 steps", "seed=7"]
    changes += ["model={from: other@300}"]  # the same graphs, perhaps: torch knows
    assert compile_identity(run(tmp_path, *changes), one) == expected


@pytest.mark.trap(15)
def test_another_processor(tmp_path: Path) -> None:
    """torch's own keys do not know it, and its library would end a worker with SIGILL."""
    one = machine(tmp_path / "one")
    other = machine(tmp_path / "other", flags="fpu sse2 avx2 avx512f")
    assert compile_identity(run(tmp_path), one) != compile_identity(run(tmp_path), other)


@pytest.mark.parametrize(
    "change",
    ["precision=fp32", "data.sequence_length=64", "batch.micro=4", "threads=1"],
)
def test_another_graph(change: str, tmp_path: Path) -> None:
    one = machine(tmp_path / "one")
    assert compile_identity(run(tmp_path, change), one) != compile_identity(run(tmp_path), one)
