"""For which machines and which runs compiled code is kept together. Without torch.

torch's own keys decide what fits a graph; they do not know the processor, the compiler and the C
library, and a library that was built for another processor ends a worker with SIGILL. So the
machine has to be the same. Of the run only what decides the shapes of its graphs: if more were in
it, code would be compiled again that is there already; if less, code would be fetched that nobody
needs.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headway import __version__
from headway.launch.hardware import ROOT, cuda_name
from headway.spec.resolve import Resolved

CPU_FACTS = frozenset(
    {"vendor_id", "flags", "Features", "CPU implementer", "CPU part", "CPU variant", "isa"}
)
"""In /proc/cpuinfo, of x86, ARM and RISC-V."""
PACKAGES = ("torch", "triton", "transformers")
COMPILER_SECONDS = 20.0


def compile_identity(resolved: Resolved, root: Path = ROOT) -> str:
    """A digest: code that was compiled under it can be used."""
    text = json.dumps([machine_facts(root), run_facts(resolved)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def machine_facts(root: Path = ROOT) -> dict[str, object]:
    """`root` is the folder that holds dev and proc."""
    driver = ""
    with suppress(OSError):
        driver = (root / "proc/driver/nvidia/version").read_text()
    return {
        "architecture": platform.machine(),
        "processor": _processor(root / "proc/cpuinfo"),
        "libc": platform.libc_ver(),
        "compiler": _compiler(),
        "python": platform.python_version(),
        "headway": __version__,
        "packages": {name: _version(name) for name in PACKAGES},
        "device": cuda_name(root),
        "driver": driver,
    }


def run_facts(resolved: Resolved) -> dict[str, object]:
    """Not its model, nor its code: torch knows whether a graph is the same, and other weights of a
    model, or an edit of a loss, leave the graphs of its blocks as they are."""
    run = resolved.run
    return {
        "memory": run.memory.model_dump(mode="json"),
        "precision": run.precision,
        "sequence_length": run.data.sequence_length,
        "micro": resolved.micro,
        "threads": resolved.threads,
        "sharded": resolved.sharded,
        "checkpoint_activations": resolved.checkpoint_activations,
    }


def _processor(cpuinfo: Path) -> list[str]:
    lines = set()
    with suppress(OSError):
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in CPU_FACTS:
                lines.add(f"{name.strip()}: {' '.join(sorted(value.split()))}")
    return sorted(lines)


def _compiler() -> str:
    with suppress(OSError, subprocess.SubprocessError):
        command = [os.environ.get("CXX", "g++"), "--version"]
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILER_SECONDS, check=True
        )
        return said.stdout
    return "none"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
