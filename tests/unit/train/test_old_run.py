"""What a save, a change of members and a status ask of an object store does not grow with the age
of a run. Requests are counted, not times."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.clock import SystemClock, stamp
from headway.state.chain import Chain
from headway.state.find_run import list_runs
from headway.state.run_directory import RunDirectory
from headway.state.run_history import HistoryReader
from headway.state.status import read_status, status_of
from support.chains import LAUNCH
from support.counted_s3 import Requests, counted_s3
from support.little import Little, world_of_one
from support.old_run import Aging

from .test_recorder import recorder

GENERATIONS = {"young": 25, "old": 425}
MOST_MORE = 1.2
Cost = tuple[int, int]


def costs(run: Aging, requests: Requests) -> dict[str, Cost]:
    """Of one that has never looked at the run before, but for those that say `again`."""
    location, found = run.directory.location, {}
    kept = HistoryReader(RunDirectory.open(location))
    kept.read()
    found["status"] = requests.during(lambda: read_status(RunDirectory.open(location), run.time))
    found["list"] = requests.during(
        lambda: [read_status(one, run.time) for one in list_runs(location.rsplit("/", 1)[0])]
    )
    found["status again"] = requests.during(
        lambda: status_of(kept.directory, kept.read(), run.time)
    )
    chain = Chain(RunDirectory.open(location), LAUNCH)
    found["start"] = requests.during(lambda: chain.start(stamp(run.time)))
    leader = recorder(location)
    number = run.generation + 1
    leader.begin(world_of_one(number), run.step)

    def change() -> None:
        chain.begin(number, run.step, 1, stamp(run.time))
        leader.catch_up(run.step)

    found["change"] = requests.during(change)
    found["change again"] = requests.during(lambda: leader.catch_up(run.step))
    little = Little(leader.directory, number)
    little.train.step, little.train.committed_in = run.step, number
    found["save"] = requests.during(little.save)
    little.train.step += 1
    found["save again"] = requests.during(little.save)
    assert little.saver.failures == 0
    return found


def test_an_old_run_costs_what_a_young_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found: dict[str, dict[str, Cost]] = {}
    for age, generations in GENERATIONS.items():
        with counted_s3() as requests:
            directory = RunDirectory.create(f"s3://bucket/{age}/it", SystemClock())
            run = Aging(directory)
            run.live(generations, 10)
            found[age] = costs(run, requests)
    for operation, (num, num_bytes) in found["old"].items():
        young_num, young_bytes = found["young"][operation]
        assert num <= MOST_MORE * young_num, (operation, num, young_num)
        # The past is summed up in some bytes for each hundred generations.
        assert num_bytes <= MOST_MORE * young_bytes + 20_000, (operation, num_bytes, young_bytes)
