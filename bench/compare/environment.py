"""The environment of the other systems, made of hashed requirements, apart from Headway's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENVIRONMENT = Path(os.environ.get("COMPARE_ENV", tempfile.gettempdir() + "/headway-compare-env"))
OTHERS = ("torchft-nightly", "ray", "torchmonarch")
REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def make_environment() -> None:
    """Unless it is there, as these requirements have it."""
    made = ENVIRONMENT / "made-of"
    if made.exists() and made.read_bytes() == REQUIREMENTS.read_bytes():
        return
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "-q", "--clear", "--python", "3.11", ENVIRONMENT], check=True)
    sync = [
        uv,
        "pip",
        "sync",
        "-q",
        "--compile-bytecode",  # as ours has it: others restart by importing everything again
        "--require-hashes",
        str(REQUIREMENTS),
    ]
    subprocess.run(sync, env=os.environ | {"VIRTUAL_ENV": str(ENVIRONMENT)}, check=True)
    made.write_bytes(REQUIREMENTS.read_bytes())


def versions(python: Path) -> dict[str, str]:
    """And how long the imports of a worker take when nothing else runs."""
    is_ours = python == Path(sys.executable)
    names = ["torch", "transformers", *([] if is_ours else OTHERS)]
    code = "from transformers import GPT2LMHeadModel;"
    code += f"from importlib.metadata import version; print(*map(version, {names}))"
    began = time.monotonic()
    output = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    seconds = {"imports": f"{time.monotonic() - began:.1f} s"}
    return dict(zip(names, output.stdout.split(), strict=True)) | seconds
