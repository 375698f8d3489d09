"""A real Prometheus reads a real run's metrics, as the keeper serves them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.http_server import HttpServer, Pages
from headway.launch.run_pages import run_pages
from headway.member.protocol.sockets import bound_to
from headway.state.run_history import HistoryReader
from support.dashboard import (
    alert_queries,
    alert_rules,
    dashboard_queries,
    with_something_to_show,
)
from support.live import RUN_FILE, LiveRun, write_run
from support.prometheus import Prometheus, check_rules, lint, require_prometheus
from support.started_coordinator import ANY_PORT, coordinator_in

pytestmark = [
    pytest.mark.local,
    pytest.mark.timeout(300),
    pytest.mark.long("Prometheus has to be installed; unit tests parse the same text"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Iterator[LiveRun]:
    require_prometheus()
    folder = tmp_path_factory.mktemp("scraped")
    write_run(folder, text, with_something_to_show(RUN_FILE))
    with LiveRun(folder, "it", 2) as live:
        live.wait_for_step(60)
        yield live


@pytest.fixture(scope="module")
def pages(run: LiveRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """Of that run. Its coordinator is beside the one that the launcher has."""
    folder, clock = tmp_path_factory.mktemp("coordinator"), SystemClock()
    with coordinator_in(folder, clock, http=ANY_PORT).start().wait() as coordinator:
        yield run_pages(coordinator, HistoryReader(run.directory), clock)


@pytest.fixture(scope="module")
def prometheus(pages: Pages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with HttpServer(bound_to("127.0.0.1", 0), pages, SystemClock()) as server:
        targets = [{"targets": [f"127.0.0.1:{server.port}"]}]
        config = {"job_name": "headway", "static_configs": targets}
        with Prometheus(tmp_path_factory.mktemp("prometheus"), [config]) as made:
            made.wait_for("headway_run_step")
            yield made


@pytest.mark.parametrize("query", dashboard_queries().values(), ids=dashboard_queries())
def test_every_query_of_the_dashboard_returns_data(prometheus: Prometheus, query: str) -> None:
    series = prometheus.wait_for(query, 30)
    assert {one["metric"].get("run") for one in series} == {"it"}


def test_the_run_goes_on_between_two_scrapes(prometheus: Prometheus) -> None:
    prometheus.wait_for("max by (run) (changes(headway_run_step[10s])) > 1")
    (members,) = prometheus.query("headway_run_members_wanted")
    assert members["value"][1] == "2"


def test_alerts_are_taken_and_raised_for_what_they_are_about(
    prometheus: Prometheus, tmp_path: Path
) -> None:
    assert check_rules(tmp_path, alert_rules()) == ""
    prometheus.wait_for("count_over_time(headway_run_step[15m]) > 3")
    for alert, query in alert_queries().items():
        # The coordinator here has no workers: it is below the minimum, and the alert says so.
        assert bool(prometheus.query(query)) == (alert == "HeadwayRunBelowMinimum"), alert


def test_promtool_finds_nothing_to_complain_of(pages: Pages) -> None:
    assert lint(pages["/metrics"]()[1]) == ""
