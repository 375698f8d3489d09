"""Progress on stderr: one moving line in a terminal, else a plain line now and then."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from headway.cli.members import (
    change_text,
    newest_launch,
    readable_names,
    stuck_text,
    worker_label,
)
from headway.cli.output import say, short_count, short_loss, short_time
from headway.state.time_left import TimeLeft

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.state.run_directory import RunDirectory

PLAIN_SECONDS = 10.0
"""Between two lines without a terminal: the log of a day stays readable."""
SMOOTHING = 0.1
"""Weight of the newest step in the speed that is shown."""
FOLD_SECONDS = 3.0
"""When no step completes, all workers report it, each at its next check."""


class MovingLine:
    """A line that redraws itself in a terminal, and is printed every few seconds elsewhere."""

    def __init__(self) -> None:
        self.is_terminal = sys.stderr.isatty()
        self.drawn = ""
        self.last = -PLAIN_SECONDS
        self.said = ""

    def show(self, text: str, now: bool = False) -> None:
        if self.is_terminal:
            if text != self.drawn:
                # Erase to the end of the line: the new text may be shorter.
                sys.stderr.write(f"\r{text[: _width()]}\x1b[K")
                sys.stderr.flush()
                self.drawn = text
        elif text != self.said and (now or time.monotonic() - self.last >= PLAIN_SECONDS):
            say(text)
            self.last, self.said = time.monotonic(), text

    def above(self, text: str) -> None:
        """Prints a line that stays, above the moving one."""
        if self.drawn:
            sys.stderr.write("\r\x1b[K")
        say(text)
        self.drawn = ""

    def close(self) -> None:
        if self.drawn:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self.drawn = ""


def _width() -> int:
    import shutil

    return max(20, shutil.get_terminal_size().columns - 1)


class RunProgress:
    """Progress of training: the newest step as a moving line, events as lines that stay."""

    def __init__(self, directory: RunDirectory, clock: Clock) -> None:
        self.name = directory.as_typed
        self.directory = directory.here()
        self.clock = clock
        self.line = MovingLine()
        self.events_read = self.directory.events.read()[1]
        self.launcher_read = self.directory.launcher.read()[1]
        self.total_steps: int | None = None
        self.tokens_per_step = 0
        self.shown_step = -1
        self.seconds_per_step: float | None = None
        self.time_left = TimeLeft()
        self.ranks = 1
        self.workers: int | None = None
        self.stuck: list[dict[str, Any]] = []
        """Reports that no step completes, not shown yet."""
        self.stuck_at = 0.0
        self.stuck_step: int | None = None

    def show(self) -> None:
        """Called several times a second."""
        events, self.events_read = self.directory.events.read(self.events_read)
        seen, self.launcher_read = self.directory.launcher.read(self.launcher_read)
        for event in sorted([*seen, *events], key=lambda event: str(event["time"])):
            self._event(event)
        if self.stuck and self.clock.monotonic() - self.stuck_at >= FOLD_SECONDS:
            self._show_stuck()
        if self.total_steps is None:
            self.line.show("starting workers (importing torch takes a few seconds)")
            return
        newest = self.directory.metrics.last()
        if newest is not None and newest.get("step", self.shown_step) != self.shown_step:
            self._step(newest)

    def close(self) -> None:
        if self.stuck:
            self._show_stuck()
        self.line.close()

    def _event(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "launched":
                self.ranks = newest_launch([event]).ranks
            case "started":
                self._started(event)
            case "evaluated":
                losses = "  ".join(
                    f"{name} {short_loss(loss)}" for name, loss in event["losses"].items()
                )
                self.line.above(f"step {event['step']}: {losses}")
            case "skipped":
                self.line.above(f"step {event['step']} skipped: {event['reason']}")
            case "saved":
                self.line.above(f"step {event['step']}: saved {event['checkpoint']}")
            case "save_failed":
                good, age = event["last_good_step"], short_time(event["last_good_age_seconds"])
                newest = f"the newest checkpoint is of step {good}, {age} old"
                self.line.above(
                    f"warning: step {event['step']} could not be saved: {event['reason']}; "
                    f"{newest if good is not None else 'no checkpoint yet'}; retrying"
                )
            case "scaled":
                self.line.above(f"scaled from {event['before']} to {event['nodes']} nodes")
            case "lost":
                who = worker_label(event["node"], event["local_rank"], self.ranks)
                self.line.above(f"{who} {event['how']}; restarting it")
            case "left":
                self.line.above(f"node {event['node']} has left; restarting it")
            case "diverged":
                who = readable_names(", ".join(event["names"]), self.ranks)
                self.line.above(
                    f"warning: step {event['step']}: the weights of {who} differ from the "
                    "majority, perhaps by a memory error; restarting it"
                )
            case "coordinator_lost":
                self.line.above(f"the coordinator ended with {event['how']}; restarting it")
            case "changed":
                words = change_text(event, self.workers, self.ranks)
                self.line.above(f"step {event['step']}: {words}")
                self.workers = event["workers"]
            case "stuck":
                self._stuck(event)
            case "evaluation_changed" | "arithmetic_changed":
                self.line.above(f"note: {event['reason']}")
            case "built_whole":
                self.line.above(f"warning: {event['reason']}")
            case "passed_over":
                self.line.above(f"warning: skipping {event['checkpoint']}: {event['reason']}")

    def _started(self, event: dict[str, Any]) -> None:
        self.total_steps = event["total_steps"]
        self.tokens_per_step = event["tokens_per_step"]
        self.shown_step = event["step"]
        self.time_left.start()
        self.stuck_step = None
        resumed = event["resumed_from"]
        begin = f"resuming from step {resumed}" if resumed is not None else "starting"
        workers = self.workers = event["workers"]
        self.line.above(
            f"{begin}: {short_count(event['parameters'])} parameters, {event['total_steps']} steps "
            f"of {short_count(event['tokens_per_step'])} tokens, {workers} "
            f"worker{'s' if workers > 1 else ''} on {event['device']}"
        )
        if event["no_mfu"]:
            self.line.above(event["no_mfu"])

    def _stuck(self, report: dict[str, Any]) -> None:
        """Collects the reports about one step: they are shown once."""
        if report["step"] != self.stuck_step:
            self.stuck_step, self.stuck_at = report["step"], self.clock.monotonic()
            self.stuck = [report]
        elif self.stuck:
            self.stuck.append(report)

    def _show_stuck(self) -> None:
        self.line.above(f"warning: {stuck_text(self.stuck, self.name, self.ranks)}")
        self.stuck = []

    def _step(self, line: dict[str, Any]) -> None:
        assert self.total_steps is not None
        self.shown_step = line["step"]
        before = self.seconds_per_step or line["seconds"]
        self.seconds_per_step = before + SMOOTHING * (line["seconds"] - before)
        speed = self.tokens_per_step / self.seconds_per_step
        self.time_left.add(line)
        left = self.time_left.seconds(self.total_steps) or 0.0
        mfu = f"  {line['mfu']:.1%} MFU" if "mfu" in line else ""
        self.line.show(
            f"step {line['step']}/{self.total_steps}  loss {short_loss(line['loss'])}  "
            f"{short_count(speed)} tokens/s{mfu}  {short_time(left)} left",
            now=line["step"] == self.total_steps,
        )
