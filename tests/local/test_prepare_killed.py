"""Killed at any moment, with any number of processes, in any number of parts: the same bytes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.data.prepare.job import PrepareJob, prepare
from support.preparing import kill_and_prepare, mixed_corpus, run_parts, shard_bytes

pytestmark = [pytest.mark.local, pytest.mark.chaos, pytest.mark.timeout(300)]

KILLS = int(os.environ.get("KILLS", "3"))
NUM_BYTES = 6_000_000
PARTS = 7


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> PrepareJob:
    return mixed_corpus(tmp_path_factory.mktemp("corpus"), NUM_BYTES)


@pytest.fixture(scope="module")
def alone(job: PrepareJob) -> Path:
    """Prepared by one process, undisturbed."""
    prepare(job, lambda progress: None, SystemClock())
    return Path(job.into)


def same(made: Path, alone: Path) -> None:
    assert shard_bytes(made) == shard_bytes(alone)
    for file in ("manifest.json", "problems.jsonl", "recipe.json"):
        assert (made / file).read_bytes() == (alone / file).read_bytes()


@pytest.mark.parametrize(
    "processes", [1, pytest.param(2, marks=pytest.mark.long("the gate kills one process"))]
)
def test_killed_repeatedly(job: PrepareJob, alone: Path, tmp_path: Path, processes: int) -> None:
    killed = replace(job, into=str(tmp_path / "set"), processes=processes)
    assert kill_and_prepare(killed, KILLS, seed=processes) == KILLS, "it ended before a kill"
    same(tmp_path / "set", alone)


@pytest.mark.parametrize("processes", [2, 4])
def test_any_number_of_processes(
    job: PrepareJob, alone: Path, tmp_path: Path, processes: int
) -> None:
    more = replace(job, into=str(tmp_path / "set"), processes=processes)
    prepare(more, lambda progress: None, SystemClock())
    same(tmp_path / "set", alone)


def test_any_number_of_parts(job: PrepareJob, alone: Path, tmp_path: Path) -> None:
    run_parts(replace(job, into=str(tmp_path / "set")), PARTS)
    same(tmp_path / "set", alone)
