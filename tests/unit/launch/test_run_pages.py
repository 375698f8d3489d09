"""What is said of a run in the coordinator's pod."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import msgspec
import pytest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from headway.clock import SystemClock
from headway.http_server import Answer, HttpServer
from headway.launch.run_pages import (
    KEPT_SECONDS,
    MADE_SHARE,
    MOST_KEPT_SECONDS,
    cached,
    newest_loss,
    num_training,
    run_pages,
)
from headway.member.protocol.generation import Domain, Generation
from headway.member.protocol.sockets import bound_to
from headway.state.record_log import RememberedLog
from headway.state.rewinds import Record
from headway.state.run_directory import Journal, RunDirectory
from headway.state.run_history import HistoryReader
from support.clock import Patient
from support.scraped_run import samples_of, scraped_run
from support.started_coordinator import ANY_PORT, coordinator_in


class AwayLog(RememberedLog):
    def pieces(
        self, position: int = 0, end: int | None = None
    ) -> Iterator[tuple[list[Record], int]]:
        raise OSError("the store is away")


@contextmanager
def served(folder: Path, is_store_away: bool = False) -> Iterator[str]:
    """Where a run's pages are, as the keeper serves them."""
    clock = SystemClock()
    directory = RunDirectory.create(folder / "it", clock)
    if is_store_away:
        directory.launcher = AwayLog(directory.launcher)
    with coordinator_in(folder, clock, http=ANY_PORT).start(after=6).wait() as coordinator:
        pages = run_pages(coordinator, HistoryReader(directory), clock)
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


def metrics_at(address: str) -> str:
    with build_opener(ProxyHandler({})).open(f"{address}/metrics") as answer:
        return str(answer.read(), "utf-8")


def test_metrics_are_those_of_the_coordinator_and_of_the_run(tmp_path: Path) -> None:
    with served(tmp_path) as address:
        samples = samples_of(metrics_at(address))
    assert {sample.labels["run"] for sample in samples} == {"it"}
    names = {sample.name for sample in samples}
    assert {"headway_coordinator_sessions", "headway_run_step"} <= names


def test_metrics_of_the_run_are_there_while_the_coordinator_restarts(tmp_path: Path) -> None:
    clock = SystemClock()
    directory = RunDirectory.create(tmp_path / "it", clock)
    coordinator = coordinator_in(tmp_path, clock)
    coordinator.http = "127.0.0.1:1"  # nobody listens there
    text = run_pages(coordinator, HistoryReader(directory), clock)["/metrics"]()[1].decode()
    assert "headway_run_step" in text
    assert "headway_coordinator" not in text


def test_a_run_whose_workers_are_all_gone_has_no_members_and_no_speed(tmp_path: Path) -> None:
    clock = SystemClock()
    directory = scraped_run(tmp_path, clock, name="it")
    coordinator = coordinator_in(tmp_path, clock, http=ANY_PORT)
    with directory.held(), coordinator.start().wait():
        text = run_pages(coordinator, HistoryReader(directory), clock)["/metrics"]()[1].decode()
    found = {sample.name: sample.value for sample in samples_of(text)}
    assert found["headway_run_members"] == found["headway_run_tokens_per_second"] == 0


@pytest.mark.parametrize(("is_paused", "expected"), [(False, 3), (True, 0)])
def test_workers_that_wait_for_others_do_not_train(is_paused: bool, expected: int) -> None:
    domains = tuple(Domain(workers, 1, True) for workers in (("a", "b"), ("c",)))
    generation = Generation(3, 1, domains, 0, is_paused, (), "b was lost")
    state = {"generation": json.loads(msgspec.json.encode(generation))}
    assert num_training(state) == expected


def test_metrics_of_the_coordinator_are_there_while_the_store_is_away(tmp_path: Path) -> None:
    with served(tmp_path, is_store_away=True) as address:
        text = metrics_at(address)
    assert "headway_coordinator_sessions" in text
    assert "headway_run_step" not in text


def test_a_page_is_made_once_for_all_who_ask_within_a_while(tmp_path: Path) -> None:
    """Anyone in the cluster may ask, and as often as they like."""
    clock = Patient()
    directory = RunDirectory.create(tmp_path / "it", clock)
    coordinator = coordinator_in(tmp_path, clock)
    pages = run_pages(coordinator, HistoryReader(directory), clock)
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
