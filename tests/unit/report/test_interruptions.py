"""One loss is one interruption, wherever somebody looks; a start and a planned change are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.registry import CollectorRegistry

from headway.clock import SystemClock
from headway.launch.run_metrics import RunMetrics
from headway.report.planned import measured_so_far
from headway.state.run_directory import RunDirectory
from headway.state.run_history import HistoryReader, summarize
from support.in_process import Headway
from support.interrupted_run import InterruptedRun


def live_loss(run: InterruptedRun) -> None:
    """The others continue; the launcher restarts the worker, which joins."""
    run.lose("was killed by SIGKILL")
    run.change("node-1.1/0 is lost: its connection closed", 1, 0.6)
    run.train(3)
    run.change("node-1.2/0 is ready", 2, 0.2)


def live_loss_that_members_note_first(run: InterruptedRun) -> None:
    run.change("node-1.1/0 is lost: its connection closed", 1, 0.6)
    run.lose("was killed by SIGKILL")
    run.train(3)
    run.change("node-1.2/0 is ready", 2, 0.2)


def restart(run: InterruptedRun) -> None:
    run.restart("was killed by SIGKILL")


def two_lost_at_once(run: InterruptedRun) -> None:
    run.lose("was killed by SIGKILL")
    run.restart("was killed by SIGKILL")


def restart_that_no_launcher_noted(run: InterruptedRun) -> None:
    run.begin_again()


def live_scale(run: InterruptedRun) -> None:
    run.scale(3)
    run.change("node-2.1/0 is ready", 3, 0.2)
    run.train(3)
    run.scale(2)
    run.change("node-2.1/0 leaves as planned", 2, 0.2)


def restart_for_scale(run: InterruptedRun) -> None:
    run.scale(3)
    run.begin_again()


def stop_and_start(run: InterruptedRun) -> None:
    run.end("stopped")
    run.wait(100)
    run.launch()


def crash_and_start(run: InterruptedRun) -> None:
    run.lose("was killed by SIGKILL")
    run.wait(100)
    run.launch()


@pytest.mark.parametrize("in_a_summary", [False, True])
@pytest.mark.parametrize(
    ("happens", "number"),
    [
        (live_loss, 1),
        (live_loss_that_members_note_first, 1),
        (restart, 1),
        (two_lost_at_once, 1),
        (restart_that_no_launcher_noted, 1),
        (live_scale, 0),
        (restart_for_scale, 0),
        (stop_and_start, 0),
        (crash_and_start, 0),
    ],
)
def test_all_views_agree(
    headway: Headway,
    folder: Path,
    happens: Callable[[InterruptedRun], None],
    number: int,
    in_a_summary: bool,
) -> None:
    run = InterruptedRun(folder, "it", 100)
    run.launch()
    run.train(5)
    happens(run)
    run.train(5)
    if in_a_summary:
        for _ in range(2):  # the first only says up to where the second goes
            summarize(run.directory)
    found = seen(headway, run.directory)
    assert found == dict.fromkeys(found, number)


def seen(headway: Headway, directory: RunDirectory) -> dict[str, int]:
    headway("report", "it")
    status = dict(line.split(None, 1) for line in headway("status", "it").out.splitlines())
    compared = dict(line.split(None, 1) for line in headway("compare", "it").out.splitlines()[1:])
    screen = headway("watch", "it").out
    page = (next(Path().rglob("report.html"))).read_text()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunMetrics(HistoryReader(directory), SystemClock()))
    labels = {"run": "it"}
    return {
        "status": int(status.get("interrupted", "0 times").split()[0]),
        "status --json": json.loads(headway("status", "it", "--json").out)["interruptions"],
        "report": int(page.partition("auses, ")[2].partition(" of them interruptions")[0]),
        "compare": int(compared["interrupted"].replace("never", "0").split()[0]),
        "compare --json": json.loads(headway("compare", "it", "--json").out)["runs"][0][
            "interruptions"
        ],
        "watch": int(screen.partition(" interruption")[0].split()[-1])
        if " interruption" in screen
        else 0,
        "plan": measured_so_far(directory).interruptions,
        "metrics": int(registry.get_sample_value("headway_run_interruptions_total", labels) or 0),
    }


def test_a_step_that_was_never_finished_is_not_one_that_is_repeated(
    headway: Headway, folder: Path
) -> None:
    """The ledger counts steps that were committed and are taken again."""
    run = InterruptedRun(folder, "it", 100)
    run.launch()
    run.train(5)
    run.change("node-1.1/0 is lost: its connection closed", 1, 0.6)
    run.train(5)
    assert "0 steps repeated" in headway("ledger", "verify", "it").out
    assert "its unfinished step discarded" in headway("status", "it").out
    assert "repeated" not in headway("status", "it").out
