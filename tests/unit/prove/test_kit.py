"""The kit with another program in the place of headway: what it reports when that fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headway.cli.prove import conclude
from headway.clock import SystemClock
from headway.errors import BadInput, CheckFailed
from headway.prove.checks import Checks
from headway.prove.devices import Devices, devices_for
from headway.prove.judge import ProofFailed
from headway.prove.program import Program
from headway.prove.report import CheckResult, ProofReport, read_report
from headway.spec.resolve import Hardware

FAILS = (sys.executable, "-c", "import sys; sys.exit('error: the GPU has fallen off the bus')")
MACHINE = Hardware(cores=2, cuda_devices=0)
SLEEPS = (sys.executable, "-c", "import time; time.sleep(60)")


def report(*checks: CheckResult) -> ProofReport:
    return ProofReport(
        headway="0.1.0",
        started="2026-11-16T22:00:00.000Z",
        seconds=200.0,
        device="NVIDIA H100 80GB HBM3",
        num_devices=4,
        is_rehearsal=False,
        tolerance=1e-3,
        machine={"torch": "2.15", "topology": "GPU0  X  NV18"},
        checks=list(checks),
    )


PASSED = CheckResult(name="one worker learns", outcome="passed", figure="loss falls", seconds=12)
FAILED = CheckResult(name="export", outcome="failed", figure="error: <no> disk", seconds=3)
NOT_RUN = CheckResult(name="restored", outcome="not run", figure="needs 2 devices")


def test_where_every_command_fails_every_check_does_and_says_why(tmp_path: Path) -> None:
    checks = list(
        Checks(Program(tmp_path, SystemClock(), 60, FAILS), Devices(4, True), MACHINE).results()
    )
    assert [check.outcome for check in checks] == ["failed"] * 11
    assert "the GPU has fallen off the bus" in checks[0].figure
    assert checks[-4].figure == "there is no run of one worker to compare with"


def test_with_one_device_what_needs_two_is_not_run(tmp_path: Path) -> None:
    checks = list(
        Checks(Program(tmp_path, SystemClock(), 60, FAILS), Devices(1, True), MACHINE).results()
    )
    assert [check.outcome for check in checks] == [
        *(["failed"] * 2 + ["not run"] * 2 + ["failed"] * 3 + ["not run"])
    ]


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    program = Program(tmp_path, SystemClock(), 0.5, SLEEPS)
    with pytest.raises(ProofFailed, match="took too long"):
        program.headway("run")
    with pytest.raises(ProofFailed, match="not reached in time"):
        program.headway("run")


def test_all_gpus_are_used_unless_fewer_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    eight = Hardware(cores=8, cuda_devices=8)
    assert devices_for(eight, None) == Devices(8, is_cpu=False)
    assert devices_for(eight, 2).worker_counts == [1, 2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6")
    assert devices_for(eight, 2).environment(2) == {"CUDA_VISIBLE_DEVICES": "3,5"}
    with pytest.raises(BadInput, match="--devices 9, but this machine has 8 GPUs"):
        devices_for(eight, 9)
    rehearsal = devices_for(Hardware(cores=2, cuda_devices=0), None)
    assert rehearsal.is_cpu
    assert rehearsal.worker_counts == [1, 2, 4]
    assert rehearsal.options(2) == ["--set", "resources.accelerators=cpu:2"]


def test_a_failed_check_is_the_exit_code_and_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CheckFailed) as raised:
        conclude(report(PASSED, FAILED, NOT_RUN), tmp_path)
    assert raised.value.exit_code == 4
    assert read_report(tmp_path / "prove.json") == report(PASSED, FAILED, NOT_RUN)
    said = capsys.readouterr().err
    assert said == f"1 passed, 1 failed, 1 not run; all of it: {tmp_path}/prove.json\n"


def test_without_a_failed_check_nothing_is_raised(tmp_path: Path) -> None:
    conclude(report(PASSED, NOT_RUN), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["prove.json"]


def test_the_rows_are_a_table() -> None:
    assert PASSED.row == f"passed   {'one worker learns':<60}  loss falls (12 s)"
    assert NOT_RUN.row == f"not run  {'restored':<60}  needs 2 devices"


def test_a_record_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prove.json").write_text(report().model_dump_json().replace(":1,", ":2,", 1))
    with pytest.raises(BadInput, match="is not a proof's record: version"):
        read_report(tmp_path / "prove.json")
