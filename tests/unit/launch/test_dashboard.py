"""The dashboard and the guide's alerts ask for metrics that exist, and no metric is forgotten."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headway.clock import SystemClock
from support.dashboard import GUIDE, METRIC, alert_queries, dashboard_queries, metrics_in, panels
from support.scraped_run import samples_of, scrape, scraped_run
from support.started_coordinator import ANY_PORT, coordinator_in


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of all metrics: of a run that has something for each, and of a coordinator."""
    folder = tmp_path_factory.mktemp("run")
    run = scraped_run(folder)
    with run.held():
        names = {sample.name for sample in scrape(run)}
    return names | coordinator_metrics(folder)


def coordinator_metrics(folder: Path) -> set[str]:
    with coordinator_in(folder, SystemClock(), http=ANY_PORT).start().wait() as coordinator:
        text = coordinator.page("/metrics")[1].decode()
    return {sample.name for sample in samples_of(text)}


@pytest.mark.parametrize("query", [*dashboard_queries().values(), *alert_queries().values()])
def test_every_query_asks_for_metrics_that_exist(query: str, known: set[str]) -> None:
    assert metrics_in(query)
    assert metrics_in(query) <= known


@pytest.mark.parametrize("query", [*dashboard_queries().values(), *alert_queries().values()])
def test_runs_of_the_same_name_in_two_namespaces_are_two(query: str) -> None:
    labels = re.findall(r"\b(?:by|on) \(([^)]*)\)", query)
    assert labels
    assert all(names.startswith("namespace, run") for names in labels)


def test_every_panel_says_which_namespace_and_run_it_shows() -> None:
    for panel in panels():
        for target in panel["targets"]:
            names = target["expr"].count("headway_")
            assert target["expr"].count('{namespace=~"$namespace",run=~"$run"}') == names
            assert target["legendFormat"].startswith("{{namespace}}/{{run}}"), panel["title"]


def test_the_guide_lists_the_runs_metrics_and_no_others(known: set[str]) -> None:
    listed = {name for name in METRIC.findall(GUIDE.read_text()) if name.startswith("headway_run_")}
    assert listed == {name for name in known if name.startswith("headway_run_")}


def test_the_coordinator_has_the_metrics_that_are_asked_for_and_no_others(known: set[str]) -> None:
    queries = [*dashboard_queries().values(), *alert_queries().values()]
    asked = {name for query in queries for name in metrics_in(query)}
    own = {name for name in known if name.startswith("headway_coordinator_")}
    assert own == {name for name in asked if name.startswith("headway_coordinator_")}


def test_panels_do_not_overlap_and_each_has_its_number() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())
