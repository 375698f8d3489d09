"""A short storm over a run of four nodes: each kind of fault once, then all of it verified.
`make chaos` is the long one."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.live import LiveRun
from support.storm import KINDS, Storm
from support.stormed import problems_of, undisturbed, write_run
from support.waiting import wait_for

pytestmark = [pytest.mark.local, pytest.mark.chaos, pytest.mark.timeout(300)]

NODES = 4
COMPARED_STEPS = 100


def test_nothing_is_lost_in_a_storm(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    with ThreadPoolExecutor(1) as pool, LiveRun(folder, "storm", NODES) as run:
        # While the run imports torch: on two cores that saves half a minute.
        alone = pool.submit(undisturbed, folder, COMPARED_STEPS)
        storm = Storm(run, NODES, seed=1, pauses=(0.8, 1.6), say=say)
        storm.blow(len(KINDS))
        storm.finish()
        wait_for("the end of the undisturbed run", alone.done, 120)
        assert problems_of(storm, alone.result()) == []


def say(words: str) -> None:
    print(words, file=sys.stderr)
