"""A line that is damaged, or not whole, is left out and counted, and nothing stumbles over it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.clock import SystemClock, stamp
from headway.state.event_order import in_order
from headway.state.find_run import list_runs
from headway.state.log_lines import KEYS_OF_EVENTS, KEYS_OF_STEPS, decoded, encoded
from headway.state.run_directory import RunDirectory
from headway.state.status import read_status
from support.scraped_run import scraped_run

NOW = 1_800_000_000.0
STEP: dict[str, Any] = {"step": 4, "generation": 2, "time": stamp(NOW), "loss": 1.5}


def test_a_line_is_json_with_a_checksum() -> None:
    line = encoded({"step": 4, "text": "größer"})
    assert json.loads(line).keys() == {"step", "text", "sum"}
    assert decoded(line[:-1]) == {"step": 4, "text": "größer"}


def test_no_flipped_bit_of_a_line_is_believed() -> None:
    line = encoded(STEP)[:-1]
    for at in range(8 * len(line)):
        flipped = bytearray(line)
        flipped[at // 8] ^= 1 << at % 8
        found = decoded(bytes(flipped), "metrics")
        assert found is None or STEP.items() <= found.items(), bytes(flipped)


@pytest.mark.parametrize("line", [b"{}", b'{"time": 5}', b"[]", b"5", b"", b"{", b'{"event": "x"}'])
@pytest.mark.parametrize("log", ["events", "launcher", "metrics", "evaluations", "samples"])
def test_what_lacks_all_that_readers_need_is_left_out(line: bytes, log: str) -> None:
    assert decoded(line, log) is None


@pytest.mark.parametrize("event", KEYS_OF_EVENTS)
def test_an_event_of_another_writer_needs_all_its_keys(event: str) -> None:
    values = {"names": [], "losses": {}, "how": "x", "device": "cpu", "reason": "r", "seconds": 1}
    values |= {"checkpoint": "c", "launcher": "torchrun", "rates": []}
    keys = KEYS_OF_EVENTS[event].split()
    whole = {"time": stamp(NOW), "event": event, **{key: values.get(key, 1) for key in keys}}
    assert decoded(json.dumps(whole).encode(), "events") == whole
    for key in whole:
        less = {name: value for name, value in whole.items() if name != key}
        assert decoded(json.dumps(less).encode(), "events") is None or key == "event"


def test_a_wrong_time_is_no_time() -> None:
    line = json.dumps({"time": "yesterday", "event": "alive"}).encode()
    assert decoded(line, "events") is None


@pytest.mark.parametrize("log", ["events", "launcher", "metrics", "evaluations"])
@pytest.mark.parametrize("line", ["{}", '{"time": 5}', "[1]", "half of a li", '{"step": "x"}'])
def test_status_leaves_bad_lines_out_and_says_how_many(tmp_path: Path, log: str, line: str) -> None:
    directory = scraped_run(tmp_path)
    good = read_status(directory, NOW)
    with directory.store.path(f"{log}.jsonl").open("a") as file:
        file.write(f"{line}\n{line}\n")
    found = read_status(RunDirectory.open(directory.location), NOW)
    assert (found.step, found.state, found.damaged_lines) == (good.step, good.state, 2)


def test_one_flipped_digit_hides_no_later_steps(tmp_path: Path) -> None:
    """It was taken for a line of a newer generation, and all that came after for stale."""
    directory = scraped_run(tmp_path)
    path = directory.store.path("metrics.jsonl")
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first.replace(b'"generation":1', b'"generation":9') + b"".join(rest))
    found = read_status(RunDirectory.open(directory.location), NOW)
    assert (found.step, found.damaged_lines) == (2, 1)


def test_a_list_shows_the_runs_beside_a_damaged_one(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "good", SystemClock())
    bad = RunDirectory.create(tmp_path / "bad", SystemClock())
    bad.store.write("run.json", b"{")
    said: list[str] = []
    assert [run.name for run in list_runs(str(tmp_path), said.append)] == ["good"]
    assert said[0].startswith(f"{bad.location}/run.json is damaged")


def event(name: str, generation: int | None, seconds: float) -> dict[str, Any]:
    more = {} if generation is None else {"generation": generation}
    return {"event": name, "time": stamp(NOW + seconds), **more}


def test_events_are_in_the_order_of_launches_whatever_the_clocks_say() -> None:
    """The first launch's worker was a day ahead; its launcher noted its end after the second."""
    launcher = [
        event("launched", 1, 0),
        event("launched", 3, 50),
        event("failed", 1, 60),
        event("lost", 3, 70),
    ]
    workers = [
        event("started", 1, 86_400),
        event("saved", None, 86_410),
        event("finished", 2, 86_420),
        event("started", 3, 55),
        event("saved", None, 54),
    ]
    assert [(one["event"], one.get("generation")) for one in in_order(launcher, workers)] == [
        ("launched", 1),
        ("failed", 1),
        ("started", 1),
        ("saved", None),
        ("finished", 2),
        ("launched", 3),
        ("started", 3),
        ("saved", None),
        ("lost", 3),
    ]


def test_keys_of_steps_are_those_that_are_written() -> None:
    assert set(KEYS_OF_STEPS) == {"activations", "evaluations", "metrics", "samples"}
