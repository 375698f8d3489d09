"""One screen of `headway watch`: curves, members, losses and the newest events of a run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, zip_longest

from rich.text import Text

from headway.cli.output import short_count, short_loss, short_time, spending_text
from headway.report.run_data import RunData, lowest
from headway.report.series import Series
from headway.report.text_plot import text_plot, value_range

WIDE_COLUMNS = 120
"""From here on the small curves are beside the loss, otherwise below it."""
LABEL_COLUMNS = 8
SMALL = {"lr": "learning rate", "grad_norm": "gradient norm", "tokens_per_second": "tokens/s"}
SMALL_ROWS = 3
LEAST_LOSS_ROWS, MOST_LOSS_ROWS = 5, 20
FEWEST_EVENTS = 4
COLOURS = ("cyan", "yellow", "magenta", "green", "blue")
STATE_COLOURS = {"running": "green", "finished": "green", "failed": "red", "lost": "red"}
EMPTY: Series = ([], [])

Block = list[Text]
"""Lines of equal width."""


def watch_screen(run: RunData, events: Sequence[tuple[str, str]], width: int, height: int) -> Text:
    """`events`: times and words, the newest last."""
    head, facts = _head(run, width), _facts(run, width)
    room = height - len(head) - len(facts) - FEWEST_EVENTS - 2
    curves = _curves(run, width, room)
    lines = [*head, *curves, *facts, Text()]
    newest = events[-max(FEWEST_EVENTS, height - len(lines) - 1) :]
    for time, words in newest:
        line = Text.assemble((f"{time[11:19]}  ", "dim"), words)
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return Text("\n").join(lines)


def _head(run: RunData, width: int) -> Block:
    status = run.status
    total = status.total_steps
    right = f"step {status.step:,}" + (f" of {total:,}" if total is not None else "")
    if status.seconds_left is not None:
        right += f", {short_time(status.seconds_left)} left"
    first = Text.assemble(
        (run.name, "bold"), "  ", (status.state, STATE_COLOURS.get(status.state, "yellow"))
    )
    first.truncate(max(1, width - len(right) - 2), overflow="ellipsis", pad=True)
    first.append("  " + right)
    done = round(width * status.step / total) if total else 0
    return [first, Text("━" * done, "green") + Text("━" * (width - done), "dim")]


def _curves(run: RunData, width: int, rows: int) -> Block:
    if run.is_script and "loss" not in run.series:
        return [Text("what the script prints: headway logs -f", "dim")]
    loss = run.series.get("loss", EMPTY)
    curves = [*run.evaluations.values(), loss]  # the loss is drawn over the others
    names = Text.assemble(("loss", "bold"), f" {short_loss(run.status.loss)}")
    for number, (name, value) in enumerate(run.status.evaluations.items()):
        names.append(f"   {name} ", _colour(number - len(run.evaluations))).append(
            short_loss(value)
        )
    small = [
        (Text.assemble((title, "bold"), f" {_short(_last(run.series[key]))}"), [run.series[key]])
        for key, title in SMALL.items()
        if key in run.series
    ]
    if width >= WIDE_COLUMNS:
        left = width * 2 // 3
        each = max(SMALL_ROWS, min(rows, MOST_LOSS_ROWS) // max(1, len(small)) - 1)
        beside = [line for title, c in small for line in _plot(title, c, width - left - 2, each)]
        tall = _loss_rows(max(rows, len(beside)) - 2)
        return _beside([_plot(names, curves, left, tall, with_steps=True), beside])
    below_width = (width - 2 * (len(small) - 1)) // max(1, len(small))
    below = _beside([_plot(title, c, below_width, SMALL_ROWS) for title, c in small])
    tall = _loss_rows(rows - len(below) - 2)
    return [*_plot(names, curves, width, tall, with_steps=True), *below]


def _loss_rows(room: int) -> int:
    return max(LEAST_LOSS_ROWS, min(MOST_LOSS_ROWS, room))


def _plot(
    title: Text, curves: Sequence[Series], width: int, rows: int, with_steps: bool = False
) -> Block:
    steps = [step for xs, _ in curves for step in xs]
    x = (min(steps), max(steps)) if steps else (0.0, 1.0)
    low, high = value_range(curves)
    drawn = text_plot(curves, x, (low, high), (max(1, width - LABEL_COLUMNS), rows))
    lines = [title.copy()]
    newest = len(curves) - 1
    for at, cells in enumerate(drawn):
        label = _short(high) if at == 0 else _short(low) if at == rows - 1 else ""
        line = Text(f"{label:>{LABEL_COLUMNS - 2}} ┤", "dim")
        for who, same in groupby(cells, key=lambda cell: cell[1]):
            line.append(
                "".join(cell[0] for cell in same), "" if who is None else _colour(who - newest)
            )
        lines.append(line)
    if with_steps and steps:
        first, last = f"{x[0]:,.0f}", f"step {x[1]:,.0f}"
        space = width - LABEL_COLUMNS - len(first)
        lines.append(Text(f"{' ' * LABEL_COLUMNS}{first}{last:>{space}}", "dim"))
    for line in lines:
        line.truncate(width, overflow="ellipsis", pad=True)
    return lines


def _facts(run: RunData, width: int) -> Block:
    status = run.status
    facts = []
    if status.workers is not None:
        several = "s" if status.workers > 1 else ""
        facts.append(f"{status.workers} worker{several}, generation {status.generation}")
    if mfu := run.series.get("mfu"):
        facts.append(f"MFU {_last(mfu):.1%}")
    interruptions = run.interruptions
    if interruptions:
        lost = short_time(sum(one.seconds for one in interruptions))
        several = "s" if len(interruptions) > 1 else ""
        facts.append(f"{len(interruptions)} interruption{several}, {lost}")
    if status.goodput is not None:
        facts.append(f"goodput {status.goodput.ratio:.1%}")
    if status.spending is not None:
        facts.append(f"spent {spending_text(status.spending)}")
    if status.checkpoint_step is not None:
        facts.append(f"saved step {status.checkpoint_step:,}")
    if status.skipped_steps:
        several = "s" if status.skipped_steps > 1 else ""
        facts.append(f"{status.skipped_steps} step{several} skipped")
    for name, series in run.evaluations.items():
        facts.append(f"best {name} {short_loss(lowest(series))}")
    lines = [Text(line) for line in _filled(facts, width)]
    if status.failure:
        lines.append(Text(status.failure, "red"))
    if status.save_failure is not None:
        lines.append(Text(f"saving fails: {status.save_failure}", "red"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _filled(facts: Sequence[str], width: int) -> list[str]:
    """As many on a line as it holds."""
    lines: list[str] = []
    for fact in facts:
        if lines and len(lines[-1]) + 3 + len(fact) <= width:
            lines[-1] += f" · {fact}"
        else:
            lines.append(fact)
    return lines


def _beside(blocks: Sequence[Block]) -> Block:
    widths = [max((line.cell_len for line in block), default=0) for block in blocks]
    lines = []
    for row in zip_longest(*blocks):
        parts = [
            part if part is not None else Text(" " * width)
            for part, width in zip(row, widths, strict=True)
        ]
        lines.append(Text("  ").join(parts))
    return lines


def _colour(number: int) -> str:
    """Of a curve, counted backwards from the last one, which is 0."""
    return COLOURS[-number % len(COLOURS)]


def _last(series: Series) -> float | None:
    return series[1][-1]


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    if 0 < abs(value) < 0.001:
        return f"{value:.1e}".replace("e-0", "e-")
    return short_count(value) if abs(value) >= 1000 else f"{value:.3g}"
