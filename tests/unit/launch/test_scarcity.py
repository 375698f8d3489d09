"""When pods are given back, and when they are tried for again. No cluster: facts and a clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headway.kube.gave_back import GaveBack
from headway.launch.job_decisions import JobFacts
from headway.launch.pod_decisions import PodFacts
from headway.launch.scarcity import (
    MOST_PAUSE_SECONDS,
    GiveBack,
    ScarcityRules,
    ScarcityTracker,
    TryAgain,
)
from headway.spec.target_file import ScarcityConfig

RULES = ScarcityRules(give_back_seconds=60.0, try_again_seconds=30.0)
LOOK_SECONDS = 5.0
JOB = JobFacts(4, is_suspended=False, queue=None, was_stopped=False, has_ended=False, failure=None)


def pod(index: int, machine: str | None = "node", **facts: bool | float | str) -> PodFacts:
    return replace(
        PodFacts(f"it-{index}", index, machine, 0.0, False, delete_by=None, has_ended=False),
        **facts,  # type: ignore[arg-type]
    )


def suspended(mark: GaveBack) -> JobFacts:
    return replace(JOB, is_suspended=True, gave_back=mark)


@pytest.fixture
def tracker() -> ScarcityTracker:
    return ScarcityTracker(RULES, needed=2, chance=lambda: 0.5)


def test_too_few_pods_are_held_for_the_stated_time_and_no_longer(tracker: ScarcityTracker) -> None:
    pods = [pod(0), pod(1, machine=None)]
    assert tracker.look(JOB, pods, 100.0) == []
    assert tracker.look(JOB, pods, 159.0) == []
    (given_back,) = tracker.look(JOB, pods, 160.0)
    assert given_back == GiveBack(GaveBack(190.0, 1, held=1, needed=2), 60.0, 30.0)
    assert tracker.look(JOB, pods, 162.0) != [], "until it has worked"


@pytest.mark.parametrize(
    "pods",
    [
        [pod(0), pod(1)],
        [pod(0, machine=None), pod(1, machine=None)],
        [pod(0, has_ended=True), pod(1, has_ended=True)],
        [pod(0, delete_by=9.0), pod(1, machine=None)],
    ],
    ids=["enough", "none", "ended", "leaving"],
)
def test_other_pods_are_not_given_back(tracker: ScarcityTracker, pods: list[PodFacts]) -> None:
    for now in range(0, 1000, 2):
        assert tracker.look(JOB, pods, float(now)) == []


def test_the_time_is_counted_without_a_break(tracker: ScarcityTracker) -> None:
    few, enough = [pod(0)], [pod(0), pod(1)]
    tracker.look(JOB, few, 0.0)
    tracker.look(JOB, enough, 58.0)
    assert tracker.look(JOB, few, 60.0) == []
    assert tracker.look(JOB, few, 118.0) == []
    assert len(tracker.look(JOB, few, 120.0)) == 1


@pytest.mark.parametrize("how", ["is_suspended", "has_ended"])
def test_a_run_that_stops_gives_nothing_back(tracker: ScarcityTracker, how: str) -> None:
    job = replace(JOB, **{how: True})
    assert [tracker.look(job, [pod(0)], now) for now in (0.0, 1000.0)] == [[], []]


def test_it_tries_again_when_it_is_time_and_its_pods_have_ended(tracker: ScarcityTracker) -> None:
    mark = GaveBack(190.0, 0, 1, 2)
    assert tracker.look(suspended(mark), [], 189.0) == []
    assert tracker.look(suspended(mark), [pod(0, delete_by=300.0)], 191.0) == []
    assert tracker.look(suspended(mark), [pod(0, has_ended=True)], 191.0) == [TryAgain(mark)]


def test_a_time_from_a_clock_that_was_wrong_is_not_waited_for(tracker: ScarcityTracker) -> None:
    mark = GaveBack(190.0 + 2 * MOST_PAUSE_SECONDS, 0, 1, 2)
    assert tracker.look(suspended(mark), [], 190.0) == [TryAgain(mark)]


def test_a_clock_that_is_a_little_behind_does_not_end_the_longest_pause() -> None:
    """That of the next keeper."""
    one = ScarcityTracker(RULES, needed=2, chance=lambda: 1.0, attempt=20)
    one.look(JOB, [pod(0)], 0.0)
    (given_back,) = one.look(JOB, [pod(0)], 60.0)
    assert isinstance(given_back, GiveBack)
    for seconds in (2.0, 60.0):
        new = ScarcityTracker(RULES, needed=2)
        assert new.look(suspended(given_back.mark), [], 60.0 - seconds) == []


def test_pods_that_the_job_counts_as_ready_are_not_given_back(tracker: ScarcityTracker) -> None:
    """The watch may be behind, if the API server is slow or refuses it: the run trains."""
    job = replace(JOB, ready=2)
    for now in (0.0, 60.0, 1000.0):
        assert tracker.look(job, [pod(0), pod(1, machine=None)], now) == []
    few = replace(JOB, ready=1)
    assert tracker.look(few, [pod(0), pod(1, machine=None)], 1002.0) == []
    assert len(tracker.look(few, [pod(0), pod(1, machine=None)], 1062.0)) == 1


NO_IMAGE = "the image cannot be pulled: registry/none"


def stuck(*indices: int) -> list[PodFacts]:
    """They have machines, and do not start."""
    return [pod(index, waits_for=NO_IMAGE) for index in indices]


def test_pods_that_never_start_hold_their_machines_for_the_stated_time_and_no_longer(
    tracker: ScarcityTracker,
) -> None:
    assert tracker.look(JOB, stuck(0, 1), 100.0) == []
    assert tracker.look(JOB, [pod(0), *stuck(1)], 159.0) == []
    (given_back,) = tracker.look(JOB, stuck(0, 1), 160.0)
    mark = GaveBack(190.0, 1, held=2, needed=2, stuck=2, why=NO_IMAGE)
    assert given_back == GiveBack(mark, 60.0, 30.0)
    assert mark.shortage == (
        "had 0 of the 2 nodes that it needs (2 more did not start: the image cannot be pulled: "
        "registry/none)"
    )


def test_a_run_of_one_node_whose_pod_never_starts_gives_it_back() -> None:
    alone = ScarcityTracker(RULES, needed=1)
    alone.look(JOB, stuck(0), 0.0)
    assert len(alone.look(JOB, stuck(0), 60.0)) == 1


def test_the_time_to_start_begins_when_there_are_machines(tracker: ScarcityTracker) -> None:
    """The second came late, and an image takes minutes."""
    tracker.look(JOB, stuck(0), 0.0)
    tracker.look(JOB, stuck(0, 1), 58.0)
    assert tracker.look(JOB, stuck(0, 1), 117.0) == []
    assert len(tracker.look(JOB, stuck(0, 1), 118.0)) == 1


def test_machines_that_come_and_go_do_not_let_pods_wait_for_ever(tracker: ScarcityTracker) -> None:
    for now in range(0, 60, 2):
        assert tracker.look(JOB, stuck(*range(1 + now // 2 % 2)), float(now)) == []
    assert len(tracker.look(JOB, stuck(0, 1), 62.0)) == 1


def test_pods_that_start_in_time_stay(tracker: ScarcityTracker) -> None:
    tracker.look(JOB, stuck(0, 1), 0.0)
    for now in (59.0, 61.0, 1000.0):
        assert tracker.look(JOB, [pod(0), pod(1), *stuck(2)], now) == []
    assert tracker.look(JOB, stuck(0, 1), 1001.0) == [], "counted anew"


def test_pauses_grow_until_the_run_has_what_it_needs(tracker: ScarcityTracker) -> None:
    pauses, now = [], 0.0
    for _ in range(9):
        tracker.look(JOB, [pod(0)], now)
        (given_back,) = tracker.look(JOB, [pod(0)], now + 60)
        assert isinstance(given_back, GiveBack)
        pauses.append(given_back.pause_seconds)
        now = given_back.mark.retry_at
        assert tracker.look(suspended(given_back.mark), [], now) == [TryAgain(given_back.mark)]
    assert pauses == [30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0]
    tracker.look(JOB, [pod(0), pod(1)], now)
    tracker.look(JOB, [pod(0)], now)
    (given_back,) = tracker.look(JOB, [pod(0)], now + 60)
    assert isinstance(given_back, GiveBack)
    assert given_back.pause_seconds == 30.0


def test_a_new_keeper_goes_on_from_the_mark() -> None:
    new = ScarcityTracker(RULES, needed=2, chance=lambda: 0.5)
    mark = GaveBack(190.0, 3, 1, 2)
    assert new.look(suspended(mark), [], 100.0) == []
    assert new.look(suspended(mark), [], 190.0) == [TryAgain(mark)]
    new.look(JOB, [pod(0)], 192.0)
    (given_back,) = new.look(JOB, [pod(0)], 252.0)
    assert isinstance(given_back, GiveBack)
    assert given_back.mark.attempt == 4


@given(attempt=st.integers(0, 10_000), chance=st.floats(0, 1))
def test_a_pause_is_random_and_bounded(attempt: int, chance: float) -> None:
    pause = RULES.pause_seconds(attempt, chance)
    average = min(30.0 * 2.0 ** min(attempt, 20), MOST_PAUSE_SECONDS)
    assert 0.5 * average <= pause <= 1.5 * average
    assert RULES.pause_seconds(attempt, 0.0) < RULES.pause_seconds(attempt, 1.0)


def test_a_first_pause_over_the_longest_is_refused() -> None:
    assert ScarcityConfig.model_validate({"try_again_after": "1h"}).try_again_after.amount == 3600
    with pytest.raises(ValidationError, match="longer than 1h, the longest pause"):
        ScarcityConfig.model_validate({"try_again_after": "2h"})


def test_rules_survive_an_environment_variable() -> None:
    assert ScarcityRules.parse("900 0.5") == ScarcityRules(900.0, 0.5)
    assert ScarcityRules.parse(str(RULES)) == RULES


# Several runs that share a cluster


@dataclass
class SimulatedRun:
    """Its Job and its pods, as Kubernetes would keep them, and a keeper that may be replaced."""

    name: str
    needed: int
    nodes: int
    work_seconds: float
    """How long it trains with what it needs."""
    random: Random
    job: JobFacts = JOB
    held: int = 0
    """Pods with a machine."""
    trained: float = 0.0
    short_seconds: float = 0.0
    """How long it has held pods that it cannot train with."""
    longest_short: float = 0.0
    was_stopped: bool = False
    tracker: ScarcityTracker = field(init=False)

    def __post_init__(self) -> None:
        self.replace_keeper()

    def replace_keeper(self) -> None:
        self.tracker = ScarcityTracker(RULES, self.needed, chance=self.random.random)

    @property
    def has_finished(self) -> bool:
        return self.trained >= self.work_seconds

    @property
    def num_pending(self) -> int:
        is_over = self.has_finished or self.job.is_suspended
        return 0 if is_over else self.nodes - self.held

    def pods(self) -> list[PodFacts]:
        num_pods = self.held + self.num_pending
        return [pod(index, "node" if index < self.held else None) for index in range(num_pods)]

    def pass_time(self, seconds: float) -> None:
        if self.held >= self.needed:
            self.trained += seconds
        self.short_seconds = self.short_seconds + seconds if 0 < self.held < self.needed else 0.0
        self.longest_short = max(self.longest_short, self.short_seconds)
        if self.has_finished:
            self.held = 0

    def look(self, now: float) -> None:
        if self.has_finished or self.was_stopped:
            return
        for decision in self.tracker.look(self.job, self.pods(), now):
            if isinstance(decision, GiveBack):
                self.job, self.held = suspended(decision.mark), 0
            else:
                self.job = JOB

    def stop(self) -> None:
        self.was_stopped, self.job, self.held = True, replace(JOB, is_suspended=True), 0

    def resume(self) -> None:
        """Also one that gave its pods back: by hand."""
        self.was_stopped, self.job = False, JOB


@dataclass
class SharedCluster:
    slots: int
    runs: list[SimulatedRun]
    random: Random
    now: float = 0.0

    def schedule(self) -> None:
        """Free slots go to pods that wait, in any order."""
        while (waiting := [one for one in self.runs if one.num_pending]) and self.free > 0:
            self.random.choice(waiting).held += 1

    @property
    def free(self) -> int:
        return self.slots - sum(run.held for run in self.runs)

    def step(self) -> None:
        self.schedule()
        assert self.free >= 0
        for run in self.random.sample(self.runs, len(self.runs)):
            run.look(self.now)
        self.now += LOOK_SECONDS
        for run in self.runs:
            run.pass_time(LOOK_SECONDS)


def cluster_of(slots: int, needs: list[tuple[int, int]], seed: int) -> SharedCluster:
    """`needs`: fewest and most nodes of each run."""
    random = Random(seed)
    runs = [
        SimulatedRun(f"run{number}", fewest, most, 600.0, random)
        for number, (fewest, most) in enumerate(needs)
    ]
    return SharedCluster(slots, runs, random)


def test_two_halves_that_wait_for_each_other_end() -> None:
    """The plight itself: 4..8 twice on six machines, three each."""
    cluster = cluster_of(6, [(4, 8), (4, 8)], seed=0)
    for run in cluster.runs:
        run.held = 3
    while not all(run.has_finished for run in cluster.runs):
        cluster.step()
        assert cluster.now < 8 * 3600


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32), slots=st.integers(2, 12), data=st.data())
def test_runs_that_need_more_than_half_finish_one_after_the_other(
    seed: int, slots: int, data: st.DataObject
) -> None:
    needs = []
    for _ in range(data.draw(st.integers(2, 4), label="runs")):
        fewest = data.draw(st.integers(slots // 2 + 1, slots))
        needs.append((fewest, data.draw(st.integers(fewest, 2 * slots))))
    cluster = cluster_of(slots, needs, seed)
    while not all(run.has_finished for run in cluster.runs):
        cluster.step()
        assert sum(run.held >= run.needed for run in cluster.runs) <= 1
        assert cluster.now < 48 * 3600, "a pause is an hour at most"
    longest = max(run.longest_short for run in cluster.runs)
    assert longest <= RULES.give_back_seconds + 2 * LOOK_SECONDS


WHAT = st.sampled_from(["stop", "resume", "new keeper", "machine lost", "machine back"])


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    history=st.lists(st.tuples(st.integers(0, 60), WHAT, st.integers(0, 1)), max_size=25),
)
def test_nobody_holds_too_few_pods_for_longer_than_stated(
    seed: int, history: list[tuple[int, str, int]]
) -> None:
    """Whatever happens meanwhile. A new keeper counts anew."""
    cluster = cluster_of(5, [(3, 4), (3, 5)], seed)
    num_new_keepers = 0
    for num_steps, what, which in history:
        for _ in range(num_steps):
            cluster.step()
        run = cluster.runs[which]
        match what:
            case "stop" if not run.has_finished:
                run.stop()
            case "resume" if not run.has_finished:
                run.resume()
            case "new keeper":
                run.replace_keeper()
                num_new_keepers += 1
            case "machine lost" if cluster.slots > 1:
                cluster.slots -= 1
                if cluster.free < 0:
                    next(one for one in cluster.runs if one.held).held -= 1
            case "machine back" if cluster.slots < 5:
                cluster.slots += 1
        for one in cluster.runs:
            assert not (one.was_stopped and one.held), "stopped is stopped"
    cluster.slots = 5
    for run in cluster.runs:
        if run.was_stopped:
            run.resume()
    began = cluster.now
    while not all(run.has_finished for run in cluster.runs):
        cluster.step()
        assert cluster.now < began + 48 * 3600
    stated = (1 + num_new_keepers) * (RULES.give_back_seconds + 2 * LOOK_SECONDS)
    assert max(run.longest_short for run in cluster.runs) <= stated


# Several kinds of accelerator


H100, A100, L4 = "H100:8", "A100-80:8", "L4:8"


@pytest.fixture
def choosing() -> ScarcityTracker:
    return ScarcityTracker(RULES, needed=2, kinds=(H100, A100, L4), chance=lambda: 0.5)


def given_back(tracker: ScarcityTracker, kind: str, num_held: int, now: float) -> GiveBack:
    """Of a run that holds so many machines of this kind."""
    job = replace(JOB, accelerators=kind)
    pods = [pod(index, "node" if index < num_held else None) for index in range(3)]
    assert tracker.look(job, pods, now) == []
    (decision,) = tracker.look(job, pods, now + RULES.give_back_seconds)
    assert isinstance(decision, GiveBack)
    return decision


def tried(tracker: ScarcityTracker, kind: str, mark: GaveBack) -> str | None:
    """The kind with which it tries again, when it is time."""
    (decision,) = tracker.look(
        replace(suspended(mark), accelerators=kind), [], max(mark.retry_at, 0.0)
    )
    assert isinstance(decision, TryAgain)
    return decision.kind


def test_the_next_kind_is_tried_at_once_and_after_the_last_there_is_a_pause(
    choosing: ScarcityTracker,
) -> None:
    first = given_back(choosing, H100, 1, 0.0)
    assert first.pause_seconds == 0.0
    assert tried(choosing, H100, first.mark) == A100
    second = given_back(choosing, A100, 0, 100.0)
    assert second.pause_seconds == 0.0
    assert tried(choosing, A100, second.mark) == L4
    third = given_back(choosing, L4, 1, 200.0)
    assert third.pause_seconds == 30.0
    assert tried(choosing, L4, third.mark) == H100
    again = given_back(choosing, H100, 1, 300.0)
    assert again.pause_seconds == 0.0
    assert tried(choosing, H100, again.mark) == A100
    assert given_back(choosing, L4, 1, 400.0).pause_seconds == 60.0, "of the second round"


def test_a_run_that_held_nothing_does_not_pause(choosing: ScarcityTracker) -> None:
    """Its pods are what autoscalers see."""
    last = given_back(choosing, L4, 0, 0.0)
    assert last.pause_seconds == 0.0
    assert tried(choosing, L4, last.mark) == H100


def test_a_kind_of_which_there_is_enough_is_kept(choosing: ScarcityTracker) -> None:
    for now in range(0, 1000, 10):
        job = replace(JOB, accelerators=A100)
        assert choosing.look(job, [pod(0), pod(1), pod(2, machine=None)], float(now)) == []


def test_a_kind_that_somebody_has_edited_is_followed_by_the_first(
    choosing: ScarcityTracker,
) -> None:
    decision = given_back(choosing, "B200:8", 1, 0.0)
    assert tried(choosing, "B200:8", decision.mark) == H100
