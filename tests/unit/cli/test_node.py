"""What a worker's pod does before its node begins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import wait_for

SLOW_IMPORT = """
import sys
sys.path.insert(0, sys.argv[1])
import headway.cli.main
"""
SLOW = """
import os, time
open(os.environ["BEGUN"], "w").close()
time.sleep(60)
"""


def test_told_to_go_while_it_waits_for_its_storage(tmp_path: Path) -> None:
    """It goes with the code of one that has left, and not minutes later."""
    places = {
        "HEADWAY_RUN_DIRECTORY": str(tmp_path / "none"),
        "HEADWAY_COORDINATOR": "127.0.0.1:1",
        "HEADWAY_KEY": str(tmp_path / "key"),
        "HEADWAY_POD": "it-0-aaaaa",
        "JOB_COMPLETION_INDEX": "0",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "headway.cli.main", "node"],
        env={**os.environ, **places},
        stdout=subprocess.PIPE,
        text=True,
    ) as node:
        assert node.stdout is not None
        assert "waiting for the run directory" in node.stdout.readline()
        node.send_signal(signal.SIGTERM)
        assert node.wait(10) == 6


@pytest.mark.skipif(os.geteuid() != 0, reason="a first process needs root")
def test_told_to_go_while_it_imports(tmp_path: Path) -> None:
    """As the first process of a pod, which the kernel would let ignore it."""
    (tmp_path / "typer.py").write_text(SLOW)
    begun = tmp_path / "begun"
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", sys.executable, "-c", SLOW_IMPORT, str(tmp_path)],
        env={**os.environ, "BEGUN": str(begun)},
    ) as outside:
        wait_for("the import", begun.exists, 20)
        (first,) = (
            int(pid)
            for pid in Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
        )
        os.kill(first, signal.SIGTERM)
        assert outside.wait(10) == 143
