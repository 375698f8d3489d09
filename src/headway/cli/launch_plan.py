"""The plan of a start, kept in the run directory: `headway plan RUN` and the report compare it with
what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.cli.epoch_samples import samples_of_set
from headway.cli.output import warn
from headway.clock import SystemClock, stamp
from headway.plan.outcome import PLAN, PlanRecord
from headway.state.run_directory import RunDirectory

if TYPE_CHECKING:
    from headway.spec.load import Loaded


def note_plan(
    loaded: Loaded, location: str, nodes: int, on: str | None = None, train_set: str = ""
) -> None:
    """Before a start of the run at `location`. `on`: its target; None: this machine. `train_set`:
    location of the set that it trains on. A plan that cannot be made or kept stops no run."""
    record = planned(loaded, nodes, on, train_set)
    if record is None:
        return
    try:
        RunDirectory(location).store.write(PLAN, record.as_text().encode())
    except OSError as error:
        warn(f"the plan of this start is not kept: {error}")


def planned(loaded: Loaded, nodes: int, on: str | None, train_set: str = "") -> PlanRecord | None:
    """None if nothing can be planned: a script, or a model that only its own code knows."""
    from headway.cli.plan.gate import plan_for

    length = loaded.run.data.sequence_length
    found = plan_for(loaded, on, nodes, samples_of_set(train_set, length) if train_set else None)
    if found is None:
        return None
    first, place = found.fleets[0], found.asked.place
    sections = (found.model, *first.sections)
    figures = {entry.key: entry.figure for section in sections for entry in section.entries}
    if not figures:
        return None
    return PlanRecord(stamp(SystemClock().now()), f"{first.fleet} ({place.words})", figures)
