"""Who is heard of and who counts, in the coordinator's own words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headway.member.nodes import place_of

SILENT_SECONDS = 2.5
"""Workers say something each second."""


def present(state: Mapping[str, Any]) -> set[str]:
    """Pods with a worker that is heard of. A session may stay open for long after a machine has
    gone: nobody is there to close it."""
    return _pods(
        name
        for name, pod in state["pods"].items()
        if pod["session"] is not None and (pod["silent_seconds"] or 0.0) < SILENT_SECONDS
    )


def members_of(state: Mapping[str, Any]) -> set[str]:
    """Pods that the run counts on."""
    return _pods(pod for one in state["generation"]["domains"] for pod in one["pods"])


def _pods(workers: Iterable[str]) -> set[str]:
    return {place_of(worker) for worker in workers}
