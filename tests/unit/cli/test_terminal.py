"""What a terminal shows while a run trains, whatever else is written to it."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from headway.cli.output import hint, warn
from headway.cli.progress import MovingLine
from headway.cli.run_frame import Frame, Trend, frame_lines, sparkline
from headway.cli.terminal import Line, LiveArea
from support.screen import screen

FRAME = Frame(
    step=1240,
    total_steps=3000,
    loss=2.1432,
    trend=[4.0, 3.0, 2.0, 1.0],
    lr=6e-4,
    grad_norm=1.234,
    tokens_per_second=11_400,
    mfu=0.412,
    elapsed_seconds=151,
    left_seconds=220,
    evaluations={"held-out": 2.201, "stories": None},
    workers=1,
    wanted_workers=2,
)
FIGURES = (
    *("41%", "step 1240/3000", "2:31 elapsed", "3:40 left", "loss 2.1432 █▆▃▁", "lr 6.00e-04"),
    *("held-out 2.2010", "stories not finite", "11.4k tokens/s", "1 of 2 workers"),
    *("grad norm 1.23", "41.2% MFU"),
)


def plain(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


@pytest.mark.parametrize(("width", "rows"), [(79, 3), (199, 2)])
def test_everything_is_shown_where_there_is_room(width: int, rows: int) -> None:
    lines = plain(frame_lines(FRAME, width))
    assert len(lines) == rows
    assert max(map(len, lines)) <= width
    assert [figure for figure in FIGURES if figure not in "\n".join(lines)] == []
    assert lines[0].startswith("━━━")


@pytest.mark.parametrize("width", [25, 39, 59])
def test_a_narrow_terminal_shows_what_matters(width: int) -> None:
    lines = plain(frame_lines(FRAME, width))
    assert "41%" in lines[0]
    assert "loss 2.1432" in lines[1]
    assert len(lines) <= 3
    if width > 30:
        assert "3:40 left" in lines[0]


def test_before_the_first_step() -> None:
    lines = plain(frame_lines(Frame(0, 300, None), 79))
    assert "0%  step 0/300" in lines[0]
    assert lines[1:] == ["waiting for the first step"]


def test_the_trend_is_that_of_the_newest_half() -> None:
    trend = Trend()
    assert trend.newest_half() == []
    for step in range(10_000):
        trend.add(100.0 if step < 4000 else 10_000 - step)
        trend.add(None)
    newest = trend.newest_half(cells=8)
    assert len(newest) == 8
    assert newest == sorted(newest, reverse=True)
    assert sparkline(newest) == "█▇▆▅▄▃▂▁"
    assert sparkline([1.0, 1.0]) == "▅▅"


def test_messages_are_printed_above(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(80, monkeypatch) as terminal:
        area = LiveArea()
        area.hold()
        area.draw([[("the bar", "cyan")], [("the figures", "")]])
        print("from own code", file=sys.stderr, flush=True)
        subprocess.run(["sh", "-c", "echo from a child >&2"], stderr=sys.stderr, check=True)
        area.draw([[("the bar!", "cyan")], [("the figures", "")]])
        area.above("an event")
        print("and no newline", end="", file=sys.stderr)
        area.close()
        print("error: the cause", file=sys.stderr)
        shown = terminal.shown()
        assert sorted(shown[:-2]) == ["an event", "from a child", "from own code"]
        assert shown[-2:] == ["and no newline", "error: the cause"], "nothing is left of the bar"


def test_a_redraw_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(80, monkeypatch) as terminal:
        area = LiveArea()
        area.draw([[("a long first line", "")], [("second", "")], [("third", "")]])
        area.draw([[("short", "")], [("2nd", "")]])
        assert terminal.shown() == ["short", "2nd"]
        area.above("stays")
        assert terminal.shown() == ["stays", "short", "2nd"]
        area.close()
        assert terminal.shown() == ["stays"]


def test_lines_are_cut_to_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """And messages that stay are not: whoever copies them needs all of it."""
    with screen(80, monkeypatch) as terminal:
        line = MovingLine()
        line.show("x" * 100)
        line.above("y" * 100)
        assert terminal.shown() == ["y" * 100, "x" * 80]


def test_a_bar_that_redraws_itself_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a download from the hub."""
    with screen(80, monkeypatch) as terminal:
        area = LiveArea()
        area.hold()
        print("10 %\r50 %\r\x1b[32m100 %\x1b[0m", file=sys.stderr, flush=True)
        print("done\r\n", end="", file=sys.stderr, flush=True)
        area.close()
        assert terminal.shown() == ["100 %", "done"]
        assert terminal.colours > 0


def test_a_closed_terminal_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(80, monkeypatch) as terminal:
        area = LiveArea()
        area.draw([[("the bar", "")]])
        terminal.hang_up()
        for _ in range(2):
            area.draw([[("another", "")]])
            area.above("an event")
        area.close()


@pytest.mark.parametrize(
    ("name", "value", "colours"), [("TERM", "xterm", True), ("NO_COLOR", "1", False)]
)
def test_colour_can_be_switched_off(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, colours: bool
) -> None:
    with screen(80, monkeypatch) as terminal:
        monkeypatch.setenv(name, value)
        area = LiveArea()
        area.draw(frame_lines(FRAME, area.width))
        warn("careful")
        assert terminal.shown()[0].startswith("━━━"), "the bar is drawn either way"
        assert bool(terminal.colours) == colours


def test_a_terminal_that_cannot_redraw_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(80, monkeypatch) as terminal:
        monkeypatch.setenv("TERM", "dumb")
        line = MovingLine()
        line.show("step 1")
        line.above("an event")
        line.show("step 2", now=True)
        line.close()
        hint("headway status")
        assert terminal.shown() == ["step 1", "an event", "step 2", "hint: headway status"]
        assert terminal.colours == 0


def test_pipes_get_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    line = MovingLine()
    line.show("step 1")
    warn("careful")
    line.close()
    assert sys.stderr.getvalue() == "step 1\nwarning: careful\n"  # type: ignore[attr-defined]
