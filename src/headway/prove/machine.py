"""Versions and hardware of this machine, for a report."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

from headway.memory_limits import byte_size
from headway.prove.devices import Devices
from headway.prove.judge import ProofFailed
from headway.prove.program import Program
from headway.spec.resolve import Hardware

NVIDIA_SMI_SECONDS = 30.0


def machine_facts(hardware: Hardware, devices: Devices, program: Program) -> dict[str, str]:
    """By name, in the order in which they are shown. What is not known is left out."""
    facts = {
        "devices": _device_words(hardware, devices),
        "processor": processor_name(),
        "cores": str(hardware.cores),
        "memory": byte_size(hardware.memory_bytes) if hardware.memory_bytes else "",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "Python": platform.python_version(),
    }
    try:
        facts |= program.module("headway.train.versions")
    except ProofFailed as failed:
        facts["torch"] = str(failed)
    if not devices.is_cpu:
        facts["driver"] = _nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader", "-i=0")
        facts["topology"] = _nvidia_smi("topo", "-m")
    return {name: value for name, value in facts.items() if value}


def device_name(hardware: Hardware, devices: Devices) -> str:
    return processor_name() if devices.is_cpu else hardware.device_name or "GPUs of several kinds"


def processor_name(info: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = info.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _device_words(hardware: Hardware, devices: Devices) -> str:
    if devices.is_cpu:
        return "none: a rehearsal on the CPU"
    return f"{devices.num_devices} of {hardware.cuda_devices} x {device_name(hardware, devices)}"


def _nvidia_smi(*arguments: str) -> str:
    """Its output; empty where it is missing or fails."""
    path = shutil.which("nvidia-smi")
    if path is None:
        return ""
    try:
        done = subprocess.run(
            [path, *arguments],
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
