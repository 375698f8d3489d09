"""Variables of worker processes, whoever starts them. Libraries read some when they are loaded, so
they are set before."""

from __future__ import annotations

import os
from collections.abc import Mapping

DEFAULTS = {
    "PYTHONUNBUFFERED": "1",
    # OpenMP threads that spin while they wait make a step ten times slower when anything else wants
    # the cores, and a fifth faster when nothing does. A laptop has a browser open.
    "GOMP_SPINCOUNT": "1000",
}
NCCL_DEFAULTS = {
    # The coordinator says who is lost. torch's own watchdog only ends a worker whose collective has
    # timed out, without cleaning up, and asks nobody. docs/decisions.md: "torch's NCCL watchdogs
    # stay off".
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""Of training workers. A script has its own rules, and its users know torch's."""


def allocator_defaults(device: str, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Of torch's allocator on an accelerator: without expandable segments, memory is lost between
    blocks of different sizes, which sharded models and evaluations ask for. The variable's earlier
    name, if the user has set that, would lose to ours."""
    if device == "cpu" or "PYTORCH_CUDA_ALLOC_CONF" in given:
        return {}
    return {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def with_packages(packages: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which Python finds them before those of the image, and a shell their
    commands."""
    if packages is None:
        return dict(environment)
    before = {"PYTHONPATH": packages, "PATH": f"{packages}/bin"}
    joined = {
        name: os.pathsep.join(filter(None, (first, environment.get(name))))
        for name, first in before.items()
    }
    return {**environment, **joined}
