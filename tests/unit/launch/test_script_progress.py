"""When a script that keeps ending is given up, and when not: days of it, with a told clock."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from headway.errors import Exit, RunFailed
from headway.launch.failure_domains import failure_domains
from headway.launch.local_run import LocalRun
from headway.launch.node_run import NodeRun, NodeSettings
from headway.launch.pod_decisions import CrashCounter
from headway.launch.script_progress import (
    MOST_ALIKE,
    MOST_ALIKE_LATE,
    MOST_EARLY,
    MOST_SHORT,
    SHORT_SPAN_SECONDS,
    ScriptEnd,
    ScriptEnds,
)
from headway.launch.supervise import ScriptPlace
from headway.memory_limits import Memory
from headway.spec.resolve import Resolved
from headway.state.run_directory import RunDirectory
from support.chains import LAUNCH
from support.fake_fork_server import FakeForkServer, Life, ToldClock
from support.scripts import resolved_script

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
TYPO = "Traceback (most recent call last):\n  File train.py\nNameError: name 'lost' is not defined"
PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Connection closed by peer [10.0.0.{}]:20{}"


@pytest.fixture
def script(tmp_path: Path) -> Resolved:
    return resolved_script(tmp_path, nodes=3)


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """Root of a machine that counts those it kills for memory."""
    for name, content in {
        "kernel/proc/self/cgroup": "0::/\n",
        "kernel/proc/meminfo": "MemTotal: 2097152 kB\n",
        "kernel/sys/fs/cgroup/memory.events": "oom_kill 0\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path / "kernel"


class Watched:
    """Launchers of a script whose workers live as they are told."""

    def __init__(self, script: Resolved, folder: Path, kernel: Path) -> None:
        self.clock = ToldClock()
        self.memory = Memory(kernel)
        self.script, self.folder = script, folder
        self.directory = RunDirectory.create(script.run_directory, self.clock)

    def node(self, live: Callable[[str, float], Life]) -> FakeForkServer:
        """One pod's, until its part is over."""
        place = ScriptPlace(self.folder / "work", self.folder / "scratch")
        settings = NodeSettings("it-1-x7k2p", 1, LAUNCH, "headway-it:7460", Path("/key"), place)
        run = NodeRun(
            self.script, self.directory, settings, self.clock, lambda _: None, memory=self.memory
        )
        return self._supervised(run, range(1, 2), live)

    def here(self, live: Callable[[str, float], Life]) -> FakeForkServer:
        """That of all nodes, on one machine."""
        run = LocalRun(self.script, self.directory, self.clock, memory=self.memory)
        return self._supervised(run, range(3), live)

    def _supervised(
        self, run: NodeRun | LocalRun, nodes: range, live: Callable[[str, float], Life]
    ) -> FakeForkServer:
        self.folder.mkdir(exist_ok=True)
        fake = FakeForkServer(self.clock, live)
        run.workers.fork_server = fake  # type: ignore[assignment]
        run.workers.scratch = self.folder
        for domain in failure_domains(self.script, nodes):
            run.workers.start(domain)
        assert run._supervise() == Exit.DONE
        return fake


@pytest.fixture
def watched(script: Resolved, tmp_path: Path, kernel: Path) -> Watched:
    return Watched(script, tmp_path / "node", kernel)


def until_evening(code: int, words: str = "", every: float = 5 * MINUTE) -> Callable[..., Life]:
    def live(name: str, now: float) -> Life:
        return Life(every, 0 if now > DAY else code, words)

    return live


def test_a_node_is_lost_every_five_minutes_for_a_day(watched: Watched) -> None:
    """A script without a heartbeat, which saves every half an hour or when it is asked to end: its
    generation is over each time, as seen from a node that stays."""
    fake = watched.node(until_evening(Exit.GENERATION_OVER))
    assert len(fake.starts) > 280


def test_nodes_are_killed_here_every_five_minutes_for_a_day(watched: Watched) -> None:
    """Each time another one, or always the same. The others end with their generation."""
    chance = Random(1)
    victims = {n: chance.randrange(3) for n in range(400)}

    def live(name: str, now: float) -> Life:
        if now > DAY:
            return Life(5 * MINUTE, 0)
        round_ = round((now - 1000) / (5 * MINUTE))
        is_victim = victims[round_] == int(name[5])
        return Life(5 * MINUTE, -signal.SIGKILL if is_victim else Exit.GENERATION_OVER)

    assert len(watched.here(live).starts) > 3 * 280


def test_here_the_same_node_is_killed_every_five_minutes_for_a_day(watched: Watched) -> None:
    assert len(watched.node(until_evening(-signal.SIGKILL)).starts) > 280


def test_a_script_is_sent_sigterm_by_somebody_every_five_minutes_for_a_day(
    watched: Watched,
) -> None:
    """By a batch system, or an administrator: its worker ends by the same signal."""
    assert len(watched.node(until_evening(-signal.SIGTERM)).starts) > 280


def test_it_is_killed_a_few_times_soon_after_each_start(watched: Watched) -> None:
    """By somebody who tries whether it survives that."""
    codes = iter([-signal.SIGKILL] * 8 + [0])
    assert len(watched.node(lambda name, now: Life(20.0, next(codes))).starts) == 9


def test_a_lost_peer_is_sometimes_taken_for_an_error_of_the_script(watched: Watched) -> None:
    """The coordinator had not noticed within 5 s who was lost. One in three, at one node."""
    chance = Random(2)

    def live(name: str, now: float) -> Life:
        seconds = chance.uniform(4 * MINUTE, 6 * MINUTE)
        if now > DAY:
            return Life(seconds, 0)
        if chance.random() < 1 / 3:
            port = chance.randrange(100, 999)
            return Life(seconds, Exit.PEER_LOST, PEER.format(chance.randrange(9), port))
        return Life(seconds, Exit.GENERATION_OVER)

    assert len(watched.node(live).starts) > 250


def test_errors_of_a_month_after_hours_each(watched: Watched) -> None:
    """Of memory that fails on some machine, always in the same words."""
    chance = Random(3)

    def live(name: str, now: float) -> Life:
        seconds = chance.expovariate(1 / (6 * HOUR)) + 11 * MINUTE
        code = 0 if now > 30 * DAY else Exit.PEER_LOST
        return Life(seconds, code, "RuntimeError: CUDA error: uncorrectable ECC error")

    assert len(watched.node(live).starts) > 60


def test_pods_of_spot_machines_are_killed_every_five_minutes_for_a_day() -> None:
    """Without a goodbye that is heard, always that of the same node."""
    crashes = CrashCounter()
    for number in range(288):
        killed = ScriptEnd(
            4 * MINUTE, is_error=True, was_killed=True, words="ended with exit code 137"
        )
        assert crashes.add_script(1, killed, step=0, now=300.0 * number) is None
    assert not crashes.is_hopeless


def test_nodes_of_a_large_run_are_reclaimed_or_join_all_within_minutes(watched: Watched) -> None:
    """A hundred generations of some seconds."""
    began = watched.clock.time

    def live(name: str, now: float) -> Life:
        return Life(20.0, 8) if now < began + 30 * MINUTE else Life(HOUR, 0)

    assert len(watched.node(live).starts) > 80


def ended(watched: Watched, live: Callable[[str, float], Life]) -> tuple[str, float]:
    """What is said when the run is given up, and after how long."""
    began = watched.clock.time
    with pytest.raises(RunFailed) as caught:
        watched.node(live)
    return caught.value.message, watched.clock.time - began


def always(seconds: float, code: int, words: str = "", step: int = 0) -> Callable[..., Life]:
    return lambda name, now: Life(seconds, code, words, step)


def test_an_error_soon_after_each_start_ends_the_run(watched: Watched) -> None:
    said, after = ended(watched, always(90.0, Exit.PEER_LOST, TYPO))
    assert said.endswith(
        "NameError: name 'lost' is not defined\nworker it-1-x7k2p.3/0 failed, 3 times in a row in "
        "the same way, about 88 s after its start"
    )
    assert after < 10 * MINUTE


def test_an_error_at_the_first_save_ends_the_run(watched: Watched) -> None:
    """Half an hour after each start: a month of machines would be spent on it."""
    said, after = ended(watched, always(30 * MINUTE, Exit.PEER_LOST, "OSError: disk is full"))
    assert f"{MOST_ALIKE_LATE} times in a row in the same way, about 30 minutes" in said
    assert after < 3 * HOUR


def test_an_error_whose_heartbeat_shows_progress_does_not(watched: Watched) -> None:
    steps = iter(range(10, 10**6, 10))

    def live(name: str, now: float) -> Life:
        return Life(90.0, 0 if now > 2 * HOUR else Exit.PEER_LOST, TYPO, next(steps))

    assert len(watched.node(live).starts) > 60


def test_a_heartbeat_that_always_ends_at_one_step_ends_the_run(watched: Watched) -> None:
    said, _ = ended(watched, always(90.0, Exit.PEER_LOST, TYPO, step=40))
    assert "4 times in a row" in said or "3 times in a row" in said


def test_errors_of_all_kinds_soon_after_each_start_end_the_run(watched: Watched) -> None:
    seconds = iter(range(10, 10**4, 37))

    def live(name: str, now: float) -> Life:
        lived = next(seconds) % 500
        return Life(10.0 + lived, Exit.PEER_LOST, f"error {'a' * (lived % 7)}")

    said, _ = ended(watched, live)
    assert f"{MOST_EARLY} times in a row within 10 minutes" in said


def test_starts_that_are_over_at_once_for_an_hour_end_the_run(watched: Watched) -> None:
    said, after = ended(watched, always(6.0, Exit.GENERATION_OVER, "node 2 is lost"))
    assert "times in a row within 60 s of its start" in said
    assert SHORT_SPAN_SECONDS <= after < 2 * SHORT_SPAN_SECONDS


def test_pods_that_always_run_out_of_memory_end_the_run() -> None:
    crashes = CrashCounter()
    out = ScriptEnd(40 * MINUTE, is_error=True, words="ended with exit code 137 (out of memory)")
    said = [crashes.add_script(2, out, 0, HOUR * number) for number in range(MOST_ALIKE_LATE)]
    assert said[:-1] == [None] * (MOST_ALIKE_LATE - 1)
    assert said[-1] == (
        "its pod ended with exit code 137 (out of memory), 5 times in a row in the same way, about "
        "40 minutes after its start"
    )


def test_a_start_that_came_past_the_point_of_an_error_begins_anew() -> None:
    ends = ScriptEnds()
    error, beyond = ScriptEnd(1800.0, True, words="x"), ScriptEnd(7200.0)
    for number in range(4 * MOST_ALIKE_LATE):
        ends.add(beyond if number % 4 == 3 else error, 0, 1800.0 * number)
        assert not ends.are_too_many(1800.0 * number)


def test_short_starts_whose_heartbeats_show_progress_are_not_too_many() -> None:
    """Each takes some steps and saves, within a minute."""
    ends = ScriptEnds()
    for number in range(3 * MOST_SHORT):
        ends.add(ScriptEnd(50.0), 10 * number, 300.0 * number)
        assert not ends.are_too_many(300.0 * number)


def test_few_ends_are_never_too_many() -> None:
    ends = ScriptEnds()
    for _ in range(MOST_ALIKE - 1):
        ends.add(ScriptEnd(5.0, True, words="x"), 0, 0.0)
    assert not ends.are_too_many(1e6)
    ends = ScriptEnds()
    for _ in range(MOST_SHORT - 1):
        ends.add(ScriptEnd(5.0), 0, 0.0)
    assert not ends.are_too_many(1e6)
