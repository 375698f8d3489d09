"""What is said of a run in the coordinator's pod."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from headway.clock import SystemClock
from headway.launch.coordinator import Coordinator
from headway.launch.pages import newest_loss, pages_of
from headway.launch.serving import Server
from headway.state.rundir import RunDirectory


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Where a run's pages are, as the keeper serves them."""
    clock = SystemClock()
    directory = RunDirectory.create(folder / "it", clock)
    members = str(folder / "members")
    coordinator = Coordinator("it", members, folder, ["--http", "127.0.0.1:0"], clock)
    with coordinator.start("--after", "6").wait():
        pages = pages_of(coordinator, directory, clock)
        with Server(("127.0.0.1", 0), pages) as server:
            server.start()
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


def test_a_loss_is_told_until_the_run_goes_on_from_it() -> None:
    launched = {"event": "launched"}
    lost = {"event": "lost", "node": 2, "how": "ended with exit code 137 (out of memory) (it-2-a)"}
    words = "node 2 was lost: its pod ended with exit code 137 (out of memory) (it-2-a)"
    assert newest_loss([launched, lost, {"event": "saved"}]) == words
    assert newest_loss([launched, lost, {"event": "changed"}]) is None
    assert newest_loss([lost, launched]) is None
    assert newest_loss([]) is None
