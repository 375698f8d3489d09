"""Each of ten mistakes of device, planted in a copy of src, is found on the simulated device."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.state.run_directory import RunDirectory
from support.device_mistakes import MISTAKES, DeviceMistake
from support.simulated_cases import TOLERANCE, SmallRun, largest_difference
from support.simulated_workers import WorkerPrograms

STEPS, RESUMED_AT = 7, 6

pytestmark = [pytest.mark.local, pytest.mark.timeout(200)]


@pytest.mark.long("ten take a minute; the gate trains on the simulated device without mistakes")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.file)
def test_it_is_found(
    mistake: DeviceMistake, programs: WorkerPrograms, tmp_path: Path, stream: dict[str, Path]
) -> None:
    run = SmallRun(programs, tmp_path, stream).write("gpt2", optimizer=mistake.optimizer)
    expected = run.train("cpu", STEPS)
    planted = mistake.plant(tmp_path / "src")
    on_cpu = _train(run, "cpu", mistake, planted)
    assert largest_difference(on_cpu, expected) <= TOLERANCE, "it already shows on the CPU"
    try:
        trained = _train(run, "sim", mistake, planted)
    except AssertionError as error:
        assert "Traceback" in str(error), error  # noqa: PT017
        return
    assert largest_difference(trained, expected) > TOLERANCE


def _train(run: SmallRun, device: str, mistake: DeviceMistake, source: Path) -> RunDirectory:
    for steps in (RESUMED_AT, STEPS):
        directory = run.train(
            device, steps, nodes=mistake.nodes, source=source, name=f"planted-{device}"
        )
    return directory


def test_the_files_are_ten() -> None:
    assert len({mistake.file for mistake in MISTAKES}) == len(MISTAKES) == 10
