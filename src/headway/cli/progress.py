"""Progress on stderr: a bar and figures in a terminal, else a plain line now and then."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from headway.cli.event_words import event_text
from headway.cli.members import newest_launch, stuck_text
from headway.cli.output import say, short_count, short_loss, short_time
from headway.cli.run_frame import Frame, Trend, frame_lines
from headway.cli.terminal import LiveArea, can_redraw
from headway.state.event_order import in_order
from headway.state.record_log import FileLog
from headway.state.time_left import TimeLeft

if TYPE_CHECKING:
    from headway.cli.terminal import Line
    from headway.clock import Clock
    from headway.state.run_directory import RunDirectory

PLAIN_SECONDS = 10.0
"""Between two lines without a terminal: the log of a day stays readable."""
SMOOTHING = 0.1
"""Weight of the newest step in the speed that is shown."""
SAMPLE_CHARACTERS = 240
"""Of a prompt and its continuation, about three lines."""
FOLD_SECONDS = 3.0
"""When no step completes, all workers report it, each at its next check."""
DRAW_SECONDS = 0.25
"""Between two frames: a frame for each step of a millisecond would cost more than the step."""


class MovingLine:
    """A line that redraws itself in a terminal, and is printed every few seconds elsewhere."""

    def __init__(self) -> None:
        self.area = LiveArea() if can_redraw(sys.stderr) else None
        self.last = -PLAIN_SECONDS
        self.said = ""

    def show(self, text: str, now: bool = False) -> None:
        if self.area is not None:
            self.area.draw([[(text, "")]])
        elif text != self.said and (now or time.monotonic() - self.last >= PLAIN_SECONDS):
            say(text)
            self.last, self.said = time.monotonic(), text

    def above(self, text: str) -> None:
        """Prints a line that stays, above the moving one."""
        if self.area is not None:
            self.area.above(text)
        else:
            say(text)

    def close(self) -> None:
        """In a terminal, the line is gone: what comes next says how it ended."""
        if self.area is not None:
            self.area.close()


def sample_text(prompt: str, text: str) -> str:
    """In one line: the prompt, a bar, and the continuation."""
    words = f"{' '.join(prompt.split())} | {' '.join(text.split())}"
    return words if len(words) <= SAMPLE_CHARACTERS else f"{words[:SAMPLE_CHARACTERS]}..."


class RunProgress:
    """Progress of training: the newest figures at the bottom, events as lines that stay."""

    starting = "starting workers (importing torch takes a few seconds)"

    def __init__(self, directory: RunDirectory, clock: Clock) -> None:
        self.name = directory.as_typed
        self.directory = directory.here()
        self.clock = clock
        self.line = MovingLine()
        metrics = self.directory.metrics
        assert isinstance(metrics, FileLog), "files on this machine"
        self.events_read = self.directory.events.read()[1]
        self.launcher_read = self.directory.launcher.read()[1]
        self.samples_read = self.directory.samples.read()[1]
        self.metrics_read = metrics.end()
        self.began = clock.monotonic()
        self.drawn_at = -DRAW_SECONDS
        self.frame: Frame | None = None
        self.tokens_per_step = 0
        self.trend = Trend()
        self.seconds_per_step: float | None = None
        self.time_left = TimeLeft()
        self.ranks = 1
        self.workers: int | None = None
        self.wanted_workers: int | None = None
        self.stuck: list[dict[str, Any]] = []
        """Reports that no step completes, not shown yet."""
        self.stuck_at = 0.0
        self.stuck_step: int | None = None
        if self.line.area is not None:
            self.line.area.hold()

    def show(self) -> None:
        """Called several times a second."""
        events, self.events_read = self.directory.events.read(self.events_read)
        seen, self.launcher_read = self.directory.launcher.read(self.launcher_read)
        for event in in_order(seen, events):
            self.time_left.event(event)
            self._event(event)
        if self.stuck and self.clock.monotonic() - self.stuck_at >= FOLD_SECONDS:
            self._show_stuck()
        records, self.metrics_read = self.directory.metrics.read(self.metrics_read)
        for record in records:
            if "step" in record and self.frame is not None:
                self._step(self.frame, record)
        if self.line.area is not None:
            self._draw(self.line.area)
        elif self.frame is None:
            self.line.show(self.starting)
        elif any("step" in record for record in records):
            self.frame.left_seconds = self.time_left.seconds()
            is_last = self.frame.step == self.frame.total_steps
            self.line.show(self._plain(self.frame), now=is_last)

    def _draw(self, area: LiveArea) -> None:
        now = self.clock.monotonic()
        if now - self.drawn_at < DRAW_SECONDS:
            return
        self.drawn_at = now
        elapsed = now - self.began
        if self.frame is None:
            area.draw([[(self.starting, ""), (f"  {short_time(elapsed)}", "dim")]])
            return
        self.frame.elapsed_seconds = elapsed
        self.frame.left_seconds = self.time_left.seconds()
        self.frame.trend = self.trend.newest_half()
        area.draw(self._lines(self.frame, area.width))

    def _lines(self, frame: Frame, width: int) -> list[Line]:
        return frame_lines(frame, width)

    def close(self) -> None:
        if self.stuck:
            self._show_stuck()
        self.line.close()

    def _event(self, event: dict[str, Any]) -> None:
        text = event_text(event, self.workers, self.ranks)
        match event["event"]:
            case "launched":
                self.ranks = newest_launch([event]).ranks
                self.wanted_workers = event["workers"]
            case "started":
                self._started(event)
            case "evaluated":
                self.line.above(text)
                self._show_samples()
                if self.frame is not None:
                    self.frame.evaluations = {**self.frame.evaluations, **event["losses"]}
            case "large_files" | "left_files" | "cannot_leave":
                self.line.above(f"warning: {text}")
            case "skipped" | "saved":
                self.line.above(text)
            case "save_failed":
                good, age = event["last_good_step"], short_time(event["last_good_age_seconds"])
                newest = f"the newest checkpoint is of step {good}, {age} old"
                newest = newest if good is not None else "no checkpoint yet"
                self.line.above(f"warning: {text}; {newest}; retrying")
            case "scaled":
                self.line.above(text)
                self.wanted_workers = event["nodes"] * self.ranks
            case "lost" | "left" | "coordinator_lost":
                self.line.above(f"{text}; restarting it")
            case "diverged":
                self.line.above(f"warning: {text}, perhaps by a memory error; restarting it")
            case "changed":
                self.line.above(text)
                self._set_workers(event["workers"])
            case "stuck":
                self._stuck(event)
            case "built_whole":
                self.line.above(f"warning: {event['reason']}")
            case "passed_over":
                self.line.above(f"warning: skipping {event['checkpoint']}: {event['reason']}")

    def _started(self, event: dict[str, Any]) -> None:
        before = self.frame.evaluations if self.frame is not None else {}
        self.frame = Frame(event["step"], event["total_steps"], loss=None, evaluations=before)
        self.tokens_per_step = event["tokens_per_step"]
        self.stuck_step = None
        resumed = event["resumed_from"]
        begin = f"resuming from step {resumed}" if resumed is not None else "starting"
        workers = event["workers"]
        self._set_workers(workers)
        self.line.above(
            f"{begin}: {short_count(event['parameters'])} parameters, {event['total_steps']} steps "
            f"of {short_count(event['tokens_per_step'])} tokens, {workers} "
            f"worker{'s' if workers > 1 else ''} on {event['device']}"
        )
        if event["no_mfu"]:
            self.line.above(event["no_mfu"])

    def _show_samples(self) -> None:
        """Those of an evaluation are written before its event."""
        samples, self.samples_read = self.directory.samples.read(self.samples_read)
        for sample in samples:
            if "prompt" in sample:
                self.line.above(f"  {sample_text(sample['prompt'], sample['text'])}")

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

    def _set_workers(self, workers: int) -> None:
        self.workers = workers
        if self.frame is not None:
            self.frame.workers, self.frame.wanted_workers = workers, self.wanted_workers

    def _step(self, frame: Frame, record: dict[str, Any]) -> None:
        before = self.seconds_per_step or record["seconds"]
        self.seconds_per_step = before + SMOOTHING * (record["seconds"] - before)
        self.time_left.step(record)
        self.trend.add(record["loss"])
        frame.step, frame.loss = record["step"], record["loss"]
        frame.lr, frame.grad_norm = record["lr"], record["grad_norm"]
        frame.tokens_per_second = self.tokens_per_step / self.seconds_per_step
        frame.mfu = record.get("mfu")

    def _plain(self, frame: Frame) -> str:
        mfu = f"  {frame.mfu:.1%} MFU" if frame.mfu is not None else ""
        return (
            f"step {frame.step}/{frame.total_steps}  loss {short_loss(frame.loss)}  "
            f"{short_count(frame.tokens_per_second or 0.0)} tokens/s{mfu}  "
            f"{short_time(frame.left_seconds or 0.0)} left"
        )
