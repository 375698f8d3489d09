"""The table "Ran on" of docs/status.md, from a proof's record."""

from __future__ import annotations

import pytest

from headway.errors import BadInput
from headway.prove.report import CheckResult, ProofReport
from tools.ran_on import HEADER, STATUS, row, with_row

PASSED = CheckResult(name="one worker learns", outcome="passed", figure="loss falls", seconds=12)
FAILED = CheckResult(name="export", outcome="failed", figure="no disk", seconds=3)


def report(*checks: CheckResult, num_devices: int = 4) -> ProofReport:
    return ProofReport(
        headway="0.1.0",
        started="2026-11-16T22:00:00.000Z",
        seconds=200.0,
        device="NVIDIA L4",
        num_devices=num_devices,
        is_rehearsal=False,
        tolerance=1e-3,
        machine={"torch": "2.15.0+cu132", "NCCL": "2.28.3"},
        checks=list(checks),
    )


BEFORE = f"# Status\n\n{HEADER}\n|---|---|---|---|\n| a laptop | x | y | z |\n\nMore text.\n"
ROW = "| 4 x NVIDIA L4 | Headway 0.1.0, torch 2.15.0+cu132, NCCL 2.28.3 | 1 passed | 2026-11-16 |"


def test_a_new_machine_gets_a_row_at_the_end() -> None:
    after = with_row(BEFORE, report(PASSED))
    assert after == BEFORE.replace("y | z |\n", f"y | z |\n{ROW}\n")


def test_a_known_machine_gets_its_row_again_also_if_it_fails_now() -> None:
    once = with_row(BEFORE, report(PASSED))
    again = with_row(once, report(PASSED, FAILED))
    assert again == once.replace("1 passed |", "1 passed, 1 failed |")
    assert with_row(again, report(PASSED, num_devices=2)).count("NVIDIA L4") == 2


def test_a_page_without_the_table_is_refused() -> None:
    with pytest.raises(BadInput, match="no table"):
        with_row("# Status\n", report(PASSED))


def test_the_status_page_has_the_table() -> None:
    assert row(report(PASSED)) in with_row(STATUS.read_text(), report(PASSED))
