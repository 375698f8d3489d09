"""How much of its code a worker has compiled, and how much it found compiled: an event after its
tenth step."""

from __future__ import annotations

import os
import time
from pathlib import Path

from headway.clock import Clock
from headway.spec.resolve import Resolved
from headway.state.run_directory import Journal

NUM_STEPS = 10
"""The first steps compile; ten are more than any graph needs to be seen."""


class CompileCounts:
    """Of the first worker of each node: its folder is the node's."""

    def __init__(self, resolved: Resolved, rank: int, journal: Journal, clock: Clock) -> None:
        self._is_counting = resolved.run.memory.compile and rank % resolved.ranks_per_node == 0
        self._node = rank // resolved.ranks_per_node
        self._journal, self._clock = journal, clock
        self._began, self._began_at = clock.monotonic(), time.time()
        # Later it is set by torch: to a folder of all runs of this user.
        self._folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        self._num_steps = 0
        self._first_step_seconds = 0.0

    def took_step(self) -> None:
        if not self._is_counting:
            return
        self._num_steps += 1
        if self._num_steps == 1:
            self._first_step_seconds = self._clock.monotonic() - self._began
        if self._num_steps == NUM_STEPS:
            self._is_counting = False
            self._journal.note(
                "compiled",
                node=self._node,
                **_graphs(),
                libraries=self._num_libraries(),
                first_step_seconds=round(self._first_step_seconds, 3),
            )

    def _num_libraries(self) -> int | None:
        """Built on this node since this worker was started, for CPUs; None: not known."""
        if self._folder is None:
            return None
        try:
            found = Path(self._folder).rglob("*.so")
            return sum(path.stat().st_mtime >= self._began_at for path in found)
        except OSError:  # another worker of this node is building one
            return None


def _graphs() -> dict[str, int]:
    from torch._dynamo.utils import counters

    counted = counters["inductor"]
    missed = counted["fxgraph_cache_miss"] + counted["fxgraph_cache_bypass"]
    return {"from_cache": counted["fxgraph_cache_hit"], "compiled": missed}
