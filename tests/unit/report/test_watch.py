"""headway watch: what a person sees of a running run, in terminals of any width."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.report.text_plot import text_plot, value_range
from support.in_process import Headway
from support.interrupted_run import InterruptedRun, ten_interruptions
from support.stolen_time import Deadline

ALTERNATE, NORMAL = b"\x1b[?1049h", b"\x1b[?1049l"


def test_a_rising_line_goes_from_corner_to_corner() -> None:
    line = ([0.0, 1.0], [0.0, 1.0])
    rows = text_plot([line], (0, 1), (0, 1), (4, 2))
    assert ["".join(char for char, _ in row) for row in rows] == ["  ⡠⠊", "⡠⠊  "]


def test_what_is_not_finite_is_left_out() -> None:
    assert value_range([([1.0, 2.0, 3.0], [5.0, None, 7.0])]) == (5.0, 7.0)
    assert value_range([([1.0], [2.0])]) == (0.0, 4.0), "a constant is in the middle"
    assert text_plot([([1.0], [None])], (1, 1), (0, 1), (1, 1)) == [[(" ", None)]]


@pytest.mark.parametrize("columns", [40, 80, 119, 120, 200])
def test_one_screen_when_piped(
    headway: Headway, folder: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    ten_interruptions(folder)
    said = headway("watch", "spot")
    assert said.exit_code == 0, said.err
    lines = said.out.split("\n")
    assert max(map(len, lines)) <= columns, "nothing wraps"
    assert "\x1b" not in said.out
    for words in ("spot  finished", "step 600 of 600", "loss 0.3838", "held-out 0.4186"):
        assert words in said.out
    if columns >= 80:
        assert "8 interruptions, 0:20" in said.out
        assert "learning rate 0.001" in said.out
        assert "gradient norm 0.9" in said.out
    assert lines[-2].endswith("finished"), "the newest event"


def test_a_run_without_steps(headway: Headway, folder: Path) -> None:
    InterruptedRun(folder, "new", 10).launch()
    said = headway("watch", "new")
    assert said.exit_code == 0, said.err
    assert "step 0 of 10" in said.out


class Terminal:
    """`headway watch spot` in a terminal of 100 columns."""

    def __init__(self) -> None:
        self.terminal, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.before = termios.tcgetattr(child)
        self.child = child
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headway.cli.main", "watch", "spot"],
            stdin=child,
            stdout=child,
            stderr=child,
            env=os.environ | {"TERM": "xterm-256color"},
        )
        self.shown = b""

    def read_until(self, is_there: Callable[[bytes], bool]) -> None:
        deadline = Deadline(60)
        while not is_there(self.shown):
            assert not deadline.has_passed, self.shown[-2000:]
            if select.select([self.terminal], [], [], 0.2)[0]:
                self.shown += os.read(self.terminal, 65536)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self.terminal)
        os.close(self.child)


def test_follows_a_run_and_leaves_the_terminal_as_it_was(folder: Path) -> None:
    run = InterruptedRun(folder, "spot", 50)
    run.launch()
    run.train(20)
    with run.directory.held():
        terminal = Terminal()
        try:
            terminal.read_until(lambda shown: ALTERNATE in shown and b"step 20 of 50" in shown)
            run.train(1)
            terminal.read_until(lambda shown: b"step 21 of 50" in shown)
            terminal.process.send_signal(signal.SIGINT)
            terminal.read_until(lambda shown: NORMAL in shown)
            assert terminal.process.wait(30) == 0
            assert b"\x1b[?25h" in terminal.shown, "the cursor is back"
            assert termios.tcgetattr(terminal.child) == terminal.before
        finally:
            terminal.close()
