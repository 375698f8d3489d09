"""Facts that a worker gets from its launcher when it begins, whichever that is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headway.spec.resolve import Resolved
from headway.state.run_directory import worker_spec

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Start:
    resolved: Resolved
    rank: int
    """Number of this worker."""
    device: int
    """Number of its device on this machine, if it has one."""
    launch: str
    """Token of the start that it belongs to."""
    generation: int | None = None
    """Generation of this start, without a coordinator."""
    store: Path | Store | None = None
    """At which workers of a fixed group rendezvous."""
    steps_file: Path | None = None
    """File in which it records the steps it takes, for its launcher."""
    on_formed: Callable[[], None] = lambda: None
    """Is called when the world has formed: all workers have started."""
    note_failure: Callable[[str | None], None] = lambda words: None
    """Is told why this worker has failed; None: it has lost another one, which may have failed."""


def own_start() -> Start:
    """Read what Headway's own launcher gives: see `headway.train.__main__`."""
    given = os.environ
    store, generation = given.get("HEADWAY_STORE"), given.get("HEADWAY_GENERATION")
    steps = given.get("HEADWAY_STEPS")
    return Start(
        resolved=worker_spec(),
        rank=int(given["HEADWAY_RANK"]),
        device=int(given["HEADWAY_DEVICE"]),
        launch=given["HEADWAY_LAUNCH"],
        generation=int(generation) if generation else None,
        store=Path(store) if store else None,
        steps_file=Path(steps) if steps else None,
    )
