"""A run in this process, step by step, as the one worker or as one of several: to be timed beside
something else."""

from __future__ import annotations

from pathlib import Path

from headway.clock import SystemClock, stamp
from headway.spec.resolve import Resolved
from headway.state.chain import Chain
from headway.state.run_directory import RunDirectory
from headway.train.device import device_of
from headway.train.loop import advance
from headway.train.stop_request import StopRequest
from headway.train.worker_run import WorkerRun, begin_world, open_run
from headway.train.world import OneWorld, World, WorldShape, form_world

LAUNCH = "trial"


class Trial:
    """COLLECTIVE, if there are several workers. They meet at the file `store`."""

    def __init__(
        self, resolved: Resolved, generation: int = 1, rank: int = 0, store: Path = Path("unused")
    ) -> None:
        self.world: World = form_world(
            rank=rank,
            shape=WorldShape(resolved.nodes, resolved.ranks_per_node, resolved.copy_nodes),
            device=device_of(resolved, rank),
            store=store,
            generation=generation,
        )
        self._worlds = OneWorld(self.world)
        if self.world.is_leader:
            directory = RunDirectory.open(resolved.run_directory)
            Chain(directory, LAUNCH).start(stamp(SystemClock().now()))
        self.run: WorkerRun = open_run(
            resolved,
            self.world.placement,
            worker_number=rank,
            launch=LAUNCH,
            stop=StopRequest(),
            clock=SystemClock(),
        )
        begin_world(self.run, self.world, self._worlds)

    def advance(self) -> None:
        advance(self.run, self.world, self._worlds)

    def close(self) -> None:
        self.run.training.feed.close()
        self._worlds.close("measured")
