"""Images that Headway names itself (`images.json`), and which images the pods of a target run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headway.kube.nccl_libraries import named_libraries
from headway.kube.pod_overrides import TargetMismatch
from headway.spec.run_file import RunFile
from headway.spec.target_file import Target

BUILD = "headway image build --push REGISTRY/NAME --on TARGET"
"""Errors about a target have its name in place of TARGET."""


@dataclass(frozen=True)
class StockImages:
    """The content of `images.json`."""

    core: str
    """Headway and its wheels, without torch. A release writes it; empty until then."""
    pytorch: str
    """PyTorch's own image for NVIDIA GPUs, which also runs on CPUs."""
    python: str
    """Version of Python in that image."""
    torch: str
    """Version of torch in that image."""
    efa: str
    """Image with AWS' plugin for NCCL in /opt/amazon."""


@cache
def stock_images() -> StockImages:
    found = json.loads(Path(__file__).with_name("images.json").read_text())
    pytorch = found["pytorch"]
    return StockImages(
        core=found["core"]["image"],
        pytorch=pytorch["image"],
        python=pytorch["python"],
        torch=pytorch["torch"],
        efa=found["efa"]["image"],
    )


@dataclass(frozen=True)
class TargetImages:
    """Images of a target's pods; None where nothing names one."""

    worker: str | None
    coordinator: str | None
    brings_headway: bool
    """Whether workers get Headway from the coordinator's pod, because their image may lack it."""


def target_images(target: Target, stock: StockImages | None = None) -> TargetImages:
    """Without `image`, workers run PyTorch's own image, if there is a core to bring Headway."""
    stock = stock or stock_images()
    core = target.coordinator.image or (stock.core if target.image is None else "")
    if not core:
        return TargetImages(target.image, target.image, False)
    return TargetImages(target.image or stock.pytorch, core, True)


def require_images(run: RunFile, target: Target) -> None:
    """Raise if no image is named, or if the one that Headway names lacks a library of NCCL's."""
    stock = stock_images()
    worker = target_images(target, stock).worker
    if worker is None:
        raise TargetMismatch(
            "it is missing, and this version of Headway has no released image of its own",
            ("image",),
            BUILD,
        )
    wanted = run.resources.accelerators
    # A volume may have the library.
    if worker != stock.pytorch or wanted is None or wanted.is_cpu or target.pod.mounts:
        return
    for variable, libraries in named_libraries(target.pod.env).items():
        raise TargetMismatch(
            f"NCCL needs {' or '.join(libraries)} for it, which PyTorch's own image lacks",
            ("pod", "env", variable),
            BUILD,
        )
