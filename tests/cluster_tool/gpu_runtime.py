"""A container runtime that puts GPUs into containers, as NVIDIA does it: runc, with eight devices
more in what it is asked to create. Nothing is behind them."""

from __future__ import annotations

import sys
from pathlib import Path

RUNTIME = "nvidia"
"""Of a RuntimeClass, and of containerd's settings."""
PROGRAM = f"""\
#!{sys.executable} -IS
import json, os, sys

if "create" in sys.argv:
    bundle = sys.argv[sys.argv.index("--bundle") + 1]
    path = os.path.join(bundle, "config.json")
    with open(path) as file:
        content = json.load(file)
    # Each is /dev/null by another name: that is allowed in every container.
    content["linux"].setdefault("devices", []).extend(
        {{"path": f"/dev/nvidia{{number}}", "type": "c", "major": 1, "minor": 3, "fileMode": 0o666}}
        for number in range(8)
    )
    with open(path, "w") as file:
        json.dump(content, file)
os.execvp("runc", ["runc", *sys.argv[1:]])
"""


def write(path: Path) -> None:
    path.write_text(PROGRAM)
    path.chmod(0o755)
