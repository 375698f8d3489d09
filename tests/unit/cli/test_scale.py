"""More or fewer nodes for a run that goes on, and what `status` shows of its members."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headway.cli.run import nodes_left_by_scale
from headway.cli.target_run import TargetRun
from headway.clock import SystemClock, stamp
from headway.errors import BadInput, Exit
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, resolve
from headway.state.run_directory import Journal, RunDirectory
from support.in_process import Headway

NOON = 1_700_049_600.0
"""12:00:00 in UTC."""


class Set(SystemClock):
    """Says the time it is set to."""

    time = NOON

    def now(self) -> float:
        return self.time


def run_of(folder: Path, nodes: int, *overrides: str) -> RunDirectory:
    file = folder / "run.yaml"
    file.write_text("version: 1\nname: it\nmodel: {type: gpt2}\nbatch: {global: 4}\n")
    resolved = resolve(
        load_run(file, ["data.train=prepared", "resources.accelerators=cpu:1", *overrides]),
        Hardware(cores=4, cuda_devices=0),
        nodes=nodes,
        parameters=None,
        train_set=folder,
        validation_sets={},
    )
    directory = RunDirectory.create(folder / "runs" / "it", SystemClock())
    directory.write_spec(resolved)
    return directory


@contextmanager
def is_running(directory: RunDirectory) -> Iterator[None]:
    with directory.held():
        yield


def test_a_running_run_is_scaled(headway: Headway, folder: Path) -> None:
    directory = run_of(folder, 2)
    assert directory.wanted_nodes() is None
    with is_running(directory):
        said = headway("scale", "--nodes", "5")
        assert (said.exit_code, said.out) == (0, "")
        assert "scaling it to 5 nodes" in said.err
        assert directory.wanted_nodes() == 5
        assert "to 1 node;" in headway("scale", "it", "--nodes", "1").err
        assert directory.wanted_nodes() == 1


def test_a_start_without_nodes_takes_the_last_number_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = run_of(folder, 2)
    assert nodes_left_by_scale(directory) is None
    assert capsys.readouterr().err == "", "it was never scaled"
    directory.want_nodes(5)
    assert nodes_left_by_scale(directory) == 5
    assert capsys.readouterr().err == "5 nodes, as set by headway scale\n"
    directory.want_nodes(1)
    nodes_left_by_scale(directory)
    assert capsys.readouterr().err == "1 node, as set by headway scale\n"


def test_one_node_with_elastic_live_is_scaled(headway: Headway, folder: Path) -> None:
    with is_running(run_of(folder, 1, "elastic=live")):
        assert headway("scale", "--nodes", "3").exit_code == 0


def test_a_stopped_run_is_resumed_instead(headway: Headway, folder: Path) -> None:
    directory = run_of(folder, 2)
    said = headway("scale", "--nodes", "5")
    assert (said.exit_code, said.out) == (Exit.NOT_FOUND, "")
    assert said.err.splitlines() == [
        "error: run it is not running on this machine",
        "hint: headway resume it --nodes 5",
    ]
    assert directory.wanted_nodes() is None


def test_nodes_that_restart_together_can_change(headway: Headway, folder: Path) -> None:
    directory = run_of(folder, 2, "elastic=restart")
    with is_running(directory):
        said = headway("scale", "--nodes", "5")
    assert said.exit_code == Exit.DONE
    assert directory.wanted_nodes() == 5


def test_one_node_that_restarts_as_a_whole_is_stopped_first(headway: Headway, folder: Path) -> None:
    directory = run_of(folder, 1)
    with is_running(directory):
        said = headway("scale", "--nodes", "5")
    assert (said.exit_code, said.out) == (Exit.BAD_INPUT, "")
    assert "hint: headway stop it && headway resume it --nodes 5" in said.err
    assert directory.wanted_nodes() is None


def test_nodes_that_hold_no_whole_copy_of_the_model_are_refused(
    headway: Headway, folder: Path
) -> None:
    directory = run_of(folder, 2, "elastic=restart", "shard=2 nodes")
    with is_running(directory):
        said = headway("scale", "--nodes", "3")
        assert (said.exit_code, said.out) == (Exit.BAD_INPUT, "")
        assert said.err.splitlines() == [
            "error: shard: 2 nodes: 3 nodes are not a multiple of 2",
            "hint: headway scale it --nodes 2",
        ]
        assert directory.wanted_nodes() is None
        assert headway("scale", "--nodes", "4").exit_code == Exit.DONE
    assert directory.wanted_nodes() == 4


def test_nodes_that_hold_no_whole_copy_are_refused_on_a_target(folder: Path) -> None:
    spec = run_of(folder, 2, "elastic=restart", "shard=2 nodes").read_spec()
    run = TargetRun("it", "lab", cast(Any, None), folder)
    run.__dict__["cluster"] = SimpleNamespace(launched_as=lambda: spec)
    with pytest.raises(BadInput, match="5 nodes are not a multiple of 2") as caught:
        run.require_scalable(5)
    assert caught.value.hint == "headway scale it --on lab --nodes 4"
    run.require_scalable(6)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--nodes", "0"], Exit.BAD_INPUT),
        (["--nodes", "many"], Exit.BAD_INPUT),
        ([], Exit.BAD_INPUT),
        (["nothing", "--nodes", "2"], Exit.NOT_FOUND),
    ],
)
def test_invalid_arguments_are_refused(
    headway: Headway, folder: Path, arguments: list[str], code: Exit
) -> None:
    directory = run_of(folder, 2)
    with is_running(directory):
        assert headway("scale", *arguments).exit_code == code
    assert directory.wanted_nodes() is None


# --- status


def train(directory: RunDirectory) -> None:
    """Three workers, one of which is lost and replaced."""
    clock = Set()
    launcher, events = Journal(directory.launcher, clock), Journal(directory.events, clock)
    launcher.note("launched", workers=3)
    events.note(
        "started",
        total_steps=300,
        workers=3,
        generation=1,
        seconds={"import": 0.5, "build": 0.25, "load": 0.0},
    )
    directory.metrics.append(
        {
            "step": 7,
            "time": stamp(NOON),
            "loss": 2.5,
            "tokens_per_second": 1234.0,
            "seconds": 1,
            "data_seconds": 0.0,
        }
    )
    changes = [
        ("node-1.1/0 is lost: its connection closed", 2, 0.84, True),
        ("node-1.2/0 is ready", 3, 0.2, False),
    ]
    for generation, (reason, workers, seconds, discarded) in enumerate(changes, start=2):
        clock.time += 61
        events.note(
            "changed",
            generation=generation,
            step=7,
            workers=workers,
            reason=reason,
            discarded=discarded,
            seconds=seconds,
        )


def shown(text: str) -> list[tuple[str, str]]:
    """Names, and what is said of them."""
    return [(line[:12].strip(), line[12:]) for line in text.splitlines()]


def test_status_shows_members_and_how_they_changed(headway: Headway, folder: Path) -> None:
    directory = run_of(folder, 3)
    train(directory)
    changes = [
        ("changes", "12:01:01  node 1 is lost: its connection closed; 2 workers continue "
         "(0.8 s, its unfinished step discarded)"),
        ("", "12:02:02  node 1 is ready; 3 workers continue (0.2 s)"),
    ]  # fmt: skip
    with is_running(directory):
        rows = shown(headway("status").out)
        at = rows.index(("members", "3 workers, generation 3"))
        assert rows[at + 1 : at + 3] == changes
        found = json.loads(headway("status", "--json").out)
    assert (found["workers"], found["generation"]) == (3, 3)
    assert [change["workers"] for change in found["changes"]] == [2, 3]
    assert found["changes"][0]["discarded"] is True
    # What it was made of is still told when it has ended, who is in it is not.
    Journal(directory.events, Set()).note("finished", step=7)
    rows = shown(headway("status").out)
    assert set(changes) <= set(rows)
    assert "members" not in dict(rows)


def test_a_run_of_one_worker_has_nothing_more_to_report(headway: Headway, folder: Path) -> None:
    directory = run_of(folder, 1)
    Journal(directory.launcher, Set()).note("launched", workers=1)
    facts = {"total_steps": 300, "workers": 1, "generation": 4}
    seconds = {"import": 0.5, "build": 0.25, "load": 0.0}
    Journal(directory.events, Set()).note("started", **facts, seconds=seconds)
    with is_running(directory):
        rows = dict(shown(headway("status").out))
    assert rows["members"] == "1 worker, generation 4"
    assert "changes" not in rows
