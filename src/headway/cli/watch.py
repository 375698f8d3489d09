"""headway watch: a run live in the terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from headway.cli.options import OnOption, RunArgument
from headway.cli.report import runs_of
from headway.cli.terminal import can_redraw

if TYPE_CHECKING:
    from rich.text import Text

    from headway.clock import Clock
    from headway.state.run_directory import RunDirectory

LOCAL_SECONDS, REMOTE_SECONDS = 1.0, 10.0
"""Between two screens; an object store gets new lines only now and then."""
IDLE_FACTOR = 10
"""Reading a long run takes longer: at most a tenth of the time goes into it."""
PLAIN_ROWS = 40
"""Of a screen that is printed once, where there is no terminal."""
ENDED = ("finished", "stopped", "failed")
"""Also `lost`, for a run on this machine. Elsewhere that only means that nothing was written for a
while."""


def watch(run: RunArgument = None, on: OnOption = None) -> None:
    """Watch a run in the terminal: curves, speed, members and newest events, until it ends.

    Ctrl-C ends it; the run continues. Without a terminal, prints one screen."""
    from rich.console import Console

    from headway.clock import SystemClock

    (directory,) = runs_of([run] if run is not None else None, on)
    console, clock = Console(highlight=False), SystemClock()
    if can_redraw(sys.stdout):
        _follow(directory, console, clock)
    else:
        console.print(_screen(directory, clock, console.width, PLAIN_ROWS)[0])


def _follow(directory: RunDirectory, console: Any, clock: Clock) -> None:
    """Draws on the terminal's second screen. The last one stays on the first."""
    from rich.live import Live

    is_local = directory.store.is_local
    pause = LOCAL_SECONDS if is_local else REMOTE_SECONDS
    screen, state = _screen(directory, clock, console.width, console.height)
    try:
        with (
            ended_by_signals(),
            Live(screen, console=console, screen=True, auto_refresh=False) as live,
        ):
            while state not in ENDED and not (is_local and state == "lost"):
                began = clock.monotonic()
                # A store that fails for a while does not end it: the last screen stays.
                with suppress(OSError):
                    screen, state = _screen(directory, clock, console.width, console.height)
                live.update(screen, refresh=True)
                clock.sleep(max(pause, IDLE_FACTOR * (clock.monotonic() - began)))
    except KeyboardInterrupt:
        pass
    console.print(screen)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does: what was taken is given back. Ctrl-C does so even if it was
    ignored by whoever started this process, as in the background of a script."""
    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _screen(directory: RunDirectory, clock: Clock, width: int, height: int) -> tuple[Text, str]:
    """What is shown now, and the state of the run."""
    from headway.cli.event_words import event_lines
    from headway.cli.watch_screen import watch_screen
    from headway.report.run_data import run_data

    found = run_data(directory, clock.now())
    events = event_lines(directory.history())
    return watch_screen(found, events, width, height), found.status.state
