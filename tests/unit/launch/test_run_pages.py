"""What is said of a run in the coordinator's pod."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from headway.clock import SystemClock
from headway.http_server import Answer, HttpServer
from headway.launch.coordinator_process import CoordinatorProcess
from headway.launch.run_pages import (
    KEPT_SECONDS,
    MADE_SHARE,
    MOST_KEPT_SECONDS,
    cached,
    newest_loss,
    run_pages,
)
from headway.member.protocol.sockets import bound_to
from headway.state.run_directory import Journal, RunDirectory
from support.clock import Patient


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Where a run's pages are, as the keeper serves them."""
    clock = SystemClock()
    directory = RunDirectory.create(folder / "it", clock)
    members = str(folder / "members")
    coordinator = CoordinatorProcess("it", members, folder, ["--http", "127.0.0.1:0"], clock)
    with coordinator.start("--after", "6").wait():
        pages = run_pages(coordinator, directory, clock)
        with HttpServer(bound_to("127.0.0.1", 0), pages, clock) as server:
            yield f"http://127.0.0.1:{server.port}"


def test_each_page_says_what_it_is(tmp_path: Path) -> None:
    """Prometheus 3 takes no metrics without it."""
    types = {
        "/metrics": CONTENT_TYPE_LATEST,
        "/healthz": "text/plain; charset=utf-8",
        **dict.fromkeys(("/state", "/history", "/status", "/events"), "application/json"),
    }
    with served(tmp_path) as address:
        for path, expected in types.items():
            with build_opener(ProxyHandler({})).open(address + path) as answer:
                assert (path, answer.headers["Content-Type"]) == (path, expected)


def test_a_page_is_made_once_for_all_who_ask_within_a_while(tmp_path: Path) -> None:
    """Anyone in the cluster may ask, and as often as they like."""
    clock = Patient()
    directory = RunDirectory.create(tmp_path / "it", clock)
    coordinator = CoordinatorProcess("it", str(tmp_path / "members"), tmp_path, [], clock)
    pages = run_pages(coordinator, directory, clock)
    journal = Journal(directory.launcher, clock)

    def events() -> list[str]:
        return [event["event"] for event in json.loads(pages["/events"]()[1])]

    def state() -> str:
        return str(json.loads(pages["/status"]()[1])["status"]["state"])

    journal.note("launched")
    assert (events(), state()) == (["launched"], "lost")
    journal.note("finished")
    assert (events(), state()) == (["launched"], "lost"), "what was made a moment ago"
    clock.passed += KEPT_SECONDS
    assert (events(), state()) == (["launched", "finished"], "finished")


def test_a_page_that_cannot_be_made_is_not_tried_by_everyone_in_turn(tmp_path: Path) -> None:
    """A store that is away costs each attempt many seconds."""
    tries = []

    def make() -> Answer:
        tries.append(1)
        raise OSError("the store is away")

    clock = Patient()
    page = cached(make, clock)
    for _ in range(5):
        with pytest.raises(OSError, match="away"):
            page()
    assert len(tries) == 1
    clock.passed += KEPT_SECONDS
    with pytest.raises(OSError, match="away"):
        page()
    assert len(tries) == 2


def test_what_takes_long_is_made_less_often() -> None:
    clock, tries = Patient(), []

    def make() -> Answer:
        tries.append(1)
        clock.passed += 2.0
        return "text/plain", b"long"

    page = cached(make, clock)
    for _ in range(10):
        page()
        clock.passed += 1.0
    assert len(tries) == 1
    clock.passed += 2.0 * MADE_SHARE
    page()
    assert len(tries) == 2


def test_a_page_that_took_a_minute_is_not_shown_for_ten() -> None:
    clock, tries = Patient(), []

    def make() -> Answer:
        tries.append(1)
        clock.passed += 60.0
        return "text/plain", b"first read of a bucket"

    page = cached(make, clock)
    page()
    clock.passed += MOST_KEPT_SECONDS - 1
    page()
    assert len(tries) == 1
    clock.passed += 1
    page()
    assert len(tries) == 2


@pytest.mark.parametrize("kind", [OSError, PermissionError])
def test_an_error_is_kept_for_a_moment_and_raised_again(kind: type[OSError]) -> None:
    """However long the attempt took. One exception raised again and again would grow: each raise
    adds to its traceback."""
    clock, tries, caught = Patient(), [], []

    def make() -> Answer:
        tries.append(1)
        clock.passed += 60.0
        raise kind("no answer")

    page = cached(make, clock)
    for _ in range(2):
        with pytest.raises(kind, match="no answer") as error:
            page()
        caught.append(error.value)
    assert len(tries) == 1
    assert caught[0] is not caught[1]
    clock.passed += KEPT_SECONDS
    with pytest.raises(kind, match="no answer"):
        page()
    assert len(tries) == 2


def test_a_loss_is_reported_until_the_run_has_recovered() -> None:
    launched = {"event": "launched"}
    lost = {"event": "lost", "node": 2, "how": "ended with exit code 137 (out of memory) (it-2-a)"}
    words = "node 2 was lost: its pod ended with exit code 137 (out of memory) (it-2-a)"
    assert newest_loss([launched, lost, {"event": "saved"}]) == words
    assert newest_loss([launched, lost, {"event": "changed"}]) is None
    assert newest_loss([lost, launched]) is None
    assert newest_loss([]) is None
