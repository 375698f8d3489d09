"""Metrics as Prometheus 3 reads them, by the parser of its own module: it refuses a page without a
content type that it knows, where version 2 guesses. No Prometheus has to be installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest

from headway.clock import SystemClock
from headway.http_server import HttpServer
from headway.launch.run_pages import run_pages
from headway.member.protocol.sockets import bound_to
from headway.state.run_history import HistoryReader
from support.s3 import CACHE
from support.scraped_run import samples_of, scraped_run
from support.started_coordinator import ANY_PORT, coordinator_in

pytestmark = [
    pytest.mark.local,
    pytest.mark.timeout(660),
    pytest.mark.long("Go builds the parser, in two minutes"),
]

SOURCE = Path(__file__).parents[1] / "prometheus_parser"
BUILD_SECONDS = 600.0
Series = tuple[str, frozenset[tuple[str, str]], float]


@pytest.fixture(scope="module")
def parser() -> Path:
    """Go builds it again only if its files have changed."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Prometheus' parser is built with Go, which is not here")
    CACHE.mkdir(parents=True, exist_ok=True)
    made = CACHE / "prometheus-parser"
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
    command = [go, "build", "-trimpath", "-o", str(made), "."]
    subprocess.run(command, cwd=SOURCE, env=environment, check=True, timeout=BUILD_SECONDS)
    return made


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, bytes]]:
    """Content type and content of `/metrics`, as the keeper serves it: the coordinator's, and the
    run's."""
    folder, clock = tmp_path_factory.mktemp("scraped"), SystemClock()
    directory = scraped_run(folder, clock)
    with coordinator_in(folder, clock, run="wiki", http=ANY_PORT).start().wait() as coordinator:
        pages = run_pages(coordinator, HistoryReader(directory), clock)
        with HttpServer(bound_to("127.0.0.1", 0), pages, clock) as server:
            address = f"http://127.0.0.1:{server.port}/metrics"
            with build_opener(ProxyHandler({})).open(address, timeout=30) as answer:
                yield answer.headers["Content-Type"], answer.read()


def parsed(parser: Path, kind: str, content: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [parser, kind], input=content, capture_output=True, timeout=60, check=False
    )


def test_version_3_takes_every_series(parser: Path, page: tuple[str, bytes]) -> None:
    done = parsed(parser, *page)
    assert done.returncode == 0, done.stderr.decode()
    found = {series_of(json.loads(line)) for line in done.stdout.splitlines()}
    expected = {
        (sample.name, frozenset(sample.labels.items()), float(sample.value))
        for sample in samples_of(page[1].decode())
    }
    assert found == expected
    names = {name for name, _, _ in found}
    assert {"headway_run_loss", "headway_run_losses_total", "headway_run_info"} <= names
    assert any(not name.startswith("headway_run_") for name in names), "the coordinator's"


def test_version_3_refuses_a_page_that_does_not_say_what_it_is(
    parser: Path, page: tuple[str, bytes]
) -> None:
    """So the test above would find that."""
    done = parsed(parser, "", page[1])
    assert done.returncode == 1
    assert b"blank Content-Type" in done.stderr


def series_of(line: dict[str, object]) -> Series:
    labels = line["labels"]
    assert isinstance(labels, dict)
    name = labels.pop("__name__")
    return str(name), frozenset(labels.items()), float(str(line["value"]))
