"""headway status: what a run is doing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.options import JsonOption, RunArgument
from headway.cli.output import print_json, short_count, short_loss, short_time

if TYPE_CHECKING:
    from headway.state.goodput import Goodput
    from headway.state.status import Change, Status


def status(run: RunArgument = None, json_: JsonOption = False) -> None:
    """Show what a run is doing: state, step, loss, speed, time left, last checkpoint."""
    from headway.clock import SystemClock
    from headway.state.find import find_run
    from headway.state.status import read_status

    found = read_status(find_run(run, Path.cwd()), SystemClock().now())
    if json_:
        print_json(found.as_json())
        return
    for key, value in _lines(found):
        print(f"{key:<12}{value}")


def _lines(found: Status) -> list[tuple[str, str]]:
    lines = [("run", found.name), ("state", found.state)]
    if found.failure:
        lines.append(("cause", found.failure))
    total = f" of {found.total_steps}" if found.total_steps is not None else ""
    lines.append(("step", f"{found.step}{total}"))
    if found.loss is not None:
        lines.append(("loss", f"{found.loss:.4f}"))
    for name, loss in found.evaluations.items():
        lines.append((name, short_loss(loss)))
    if found.tokens_per_second is not None:
        lines.append(("speed", f"{short_count(found.tokens_per_second)} tokens/s"))
    if found.seconds_left is not None:
        lines.append(("left", short_time(found.seconds_left)))
    if found.workers is not None and found.state == "running":
        several = "s" if found.workers > 1 else ""
        lines.append(("members", f"{found.workers} worker{several}, generation {found.generation}"))
    for index, change in enumerate(found.changes):
        lines.append(("" if index else "changes", _change(change)))
    if found.skipped_steps:
        lines.append(("skipped", f"{found.skipped_steps} steps (headway logs --events shows why)"))
    if found.checkpoint_step is not None:
        age = found.checkpoint_age_seconds
        ago = f", {short_time(age)} ago" if age is not None else ""
        lines.append(("checkpoint", f"step {found.checkpoint_step}{ago}"))
    if found.save_failure is not None:
        lines.append(("warning", f"saves fail: {found.save_failure}"))
    if found.goodput is not None:
        lines.append(("goodput", _goodput(found.goodput)))
    lines.append(("folder", found.folder))
    return lines


def _change(found: Change) -> str:
    again = ", a step was taken again" if found.discarded else ""
    return f"{found.time[11:19]}  {found.workers}: {found.reason} ({found.seconds:.1f} s{again})"


def _goodput(found: Goodput) -> str:
    """The share of time that went into learning, and what took most of the rest."""
    causes = sorted(found.lost_seconds.items(), key=lambda pair: -pair[1])
    worst = ", ".join(
        f"{cause} {short_time(seconds)}" for cause, seconds in causes[:3] if seconds >= 1
    )
    total = short_time(found.total_seconds)
    return f"{found.ratio:.1%} of {total}" + (f"; the rest went to {worst}" if worst else "")
