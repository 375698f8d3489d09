"""Scripts of examples/scripts, which know nothing of Headway."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.example_scripts import SCRIPTS, Script

pytestmark = [pytest.mark.local, pytest.mark.timeout(600)]


@pytest.mark.long("two minutes, mostly imports")
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_by_itself_and_by_torchrun(script: Script, tmp_path: Path) -> None:
    """It trains to its end on two processes, and then continues where it was, alone."""
    code = script.copy_to(tmp_path)
    output = tmp_path / "output"
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone"]
    first = trained([*torchrun, "--nproc-per-node=2", *script.arguments(output, 1)], code)
    assert script.step.search(first), first
    assert script.resumed not in first
    assert (output / script.model).exists(), first
    second = trained([sys.executable, *script.arguments(output, 2)], code)
    assert script.resumed in second


def trained(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
