"""The README's first commands, as typed in a folder that has nothing but a wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.local,
    pytest.mark.timeout(1200),
    pytest.mark.long("unpacks 6 GB of packages and trains the README's run to its end"),
]


def test_the_readme_from_a_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    block = re.search(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    typed = block[1].replace("'.[train]'", f"'./{wheel.name}[train]'")
    assert wheel.name in typed
    # PyTorch's own index is not reached from every machine that runs tests; PyPI is.
    typed = typed.replace(" --torch-backend=auto", "")

    # As in a new terminal: uv and Python, and no Headway of ours. With UV_PYTHON, uv would install
    # into that Python, and not into the activated environment.
    commands = tmp_path / "bin"
    commands.mkdir()
    found = shutil.which("uv") or Path(sys.executable).with_name("uv")
    (commands / "uv").symlink_to(found)
    (commands / "python3").symlink_to(Path(sys.base_prefix, "bin", "python3"))
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "UV_PYTHON")
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ours},
        "PATH": f"{commands}:/usr/bin:/bin",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_CONSTRAINT": str(ROOT / "requirements" / "all.txt"),
    }
    ended = subprocess.run(
        ["bash", "-ec", typed], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "finished: " in ended.stderr
    assert ended.stdout.splitlines()[-1].strip()
    assert (tmp_path / ".venv" / "bin" / "headway").exists()
