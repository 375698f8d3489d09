"""`make ran-on FILE=prove.json`: writes what `headway prove` found on a machine into the table "Ran
on" of docs/status.md. The row of a machine that is in the table already is replaced."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headway.errors import BadInput, HeadwayError
from headway.prove.report import ProofReport, read_report

STATUS = Path(__file__).parents[1] / "docs" / "status.md"
HEADER = "| ran on | versions | headway prove | date |"


def main() -> int:
    try:
        report = read_report(Path(os.environ.get("FILE", "prove.json")))
        STATUS.write_text(with_row(STATUS.read_text("utf-8"), report), "utf-8")
    except HeadwayError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(row(report))
    return 0


def with_row(page: str, report: ProofReport) -> str:
    lines = page.split("\n")
    if HEADER not in lines:
        raise BadInput(f"{STATUS} has no table that begins with {HEADER}")
    first = lines.index(HEADER) + 2
    end = next(i for i in range(first, len(lines)) if not lines[i].startswith("|"))
    kept = [line for line in lines[first:end] if not line.startswith(f"| {_where(report)} |")]
    return "\n".join([*lines[:first], *kept, row(report), *lines[end:]])


def row(report: ProofReport) -> str:
    torch = report.machine.get("torch", "unknown").split("\n")[0]
    versions = [f"Headway {report.headway}", f"torch {torch}"]
    versions += [f"{name} {report.machine[name]}" for name in ("NCCL",) if name in report.machine]
    cells = [_where(report), ", ".join(versions), report.verdict, report.started[:10]]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _where(report: ProofReport) -> str:
    if report.is_rehearsal:
        cores = report.machine.get("cores", "?")
        return f"{cores} cores of {report.device}, no GPU: {report.num_devices} workers"
    return f"{report.num_devices} x {report.device}"


if __name__ == "__main__":
    sys.exit(main())
