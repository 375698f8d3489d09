"""`make prove-rehearsal`: the proof kit from end to end, on this machine; INTO keeps its folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from headway.prove.report import read_report

TARGET_SECONDS = 900


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        into = Path(os.environ.get("INTO") or Path(scratch, "prove"))
        words = [sys.executable, "-m", "headway.cli.main", "prove", "--into", str(into)]
        code = subprocess.run(words, stdout=sys.stderr, check=False).returncode
        report = read_report(into / "prove.json")
    line = {
        "name": "prove-rehearsal",
        "figure": report.seconds,
        "target": TARGET_SECONDS,
        "pass": code == 0 and report.passed and report.seconds <= TARGET_SECONDS,
        "spread": {check.name: [check.outcome, check.figure] for check in report.checks},
        "machine": report.machine,
    }
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
