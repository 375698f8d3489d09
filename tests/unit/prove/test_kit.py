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
from headway.prove.report import CheckResult, ProofReport, RateResult, read_report
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


def test_a_failed_check_is_the_exit_code_and_on_the_page(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed) as raised:
        conclude(report(PASSED, FAILED, NOT_RUN), tmp_path)
    assert raised.value.exit_code == 4
    page = (tmp_path / "prove.html").read_text()
    assert "Failed: 1 passed, 1 failed, 1 not run." in page
    assert "error: &lt;no&gt; disk" in page, "what a program printed is no markup"
    assert read_report(tmp_path / "prove.json") == report(PASSED, FAILED, NOT_RUN)


def test_without_a_failed_check_the_files_are_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conclude(report(PASSED, NOT_RUN), tmp_path)
    assert capsys.readouterr().out == f"{tmp_path}/prove.html\n{tmp_path}/prove.json\n"
    page = (tmp_path / "prove.html").read_text()
    assert "Headway 0.1.0 on 4 x NVIDIA H100 80GB HBM3" in page
    assert "rehearsal" not in page
    assert "<script" not in page
    assert "http" not in page, "it fetches nothing"


def test_a_rehearsal_says_that_it_proves_nothing_about_gpus(tmp_path: Path) -> None:
    conclude(report(PASSED).model_copy(update={"is_rehearsal": True}), tmp_path)
    assert "proves nothing about GPUs" in (tmp_path / "prove.html").read_text()


def test_a_proof_on_a_target_says_so_and_shows_speeds_that_are_no_comparison(
    tmp_path: Path,
) -> None:
    rate = RateResult(preset="tiny", workers=4, tokens_per_second=12_345.6)
    conclude(report(PASSED).model_copy(update={"nodes": 2, "rates": [rate]}), tmp_path)
    page = (tmp_path / "prove.html").read_text()
    assert "Headway 0.1.0 on 2 nodes: 4 x NVIDIA H100 80GB HBM3" in page
    assert "12,346" in page
    assert "compare nothing" in page
    assert "<h2>Target</h2>" in page
    assert read_report(tmp_path / "prove.json").rates == [rate]


def test_a_check_in_a_line() -> None:
    assert PASSED.line == "passed: one worker learns: loss falls (12 s)"
    assert NOT_RUN.line == "not run: restored: needs 2 devices"


def test_a_record_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prove.json").write_text(report().model_dump_json().replace(":1,", ":2,", 1))
    with pytest.raises(BadInput, match="is not a proof's record: version"):
        read_report(tmp_path / "prove.json")
