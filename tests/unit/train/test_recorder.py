"""What a run leaves to look at, whoever leads it: every step once, no gap where a leader died."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.clock import SystemClock
from headway.state.ledger import verify_ledger
from headway.state.record_log import FileLog, Log
from headway.state.rewinds import Record, apply_rewinds, without_stale
from headway.state.run_directory import RunDirectory, send_logs
from headway.train.evaluate import EvaluationResult
from headway.train.recorder import Recorder
from headway.train.step import StepResult
from headway.train.world import RankPlacement, World
from support.fake_s3 import fake_s3
from support.prepared import folder_in_memory

BATCH, LENGTH = 4, 8
FACTS = {"batch": BATCH, "samples": 100, "length": LENGTH, "data": "d", "code": None}
RESOLVED = SimpleNamespace(
    global_batch=BATCH,
    tokens_per_step=BATCH * LENGTH,
    run=SimpleNamespace(
        data=SimpleNamespace(sequence_length=LENGTH),
        track=[],
        objective=SimpleNamespace(type="causal"),
    ),
)


def recorder(location: str | Path, resolved: Any = RESOLVED) -> Recorder:
    """Of one worker: a process has its own view of the run directory."""
    return Recorder(RunDirectory(location), resolved, FACTS, SystemClock())


def world(generation: int, rank: int = 0, workers: int = 2) -> World:
    return World(rank, workers, generation, RankPlacement(torch.device("cpu")))


def begin(recorder: Recorder, world: World, step: int) -> None:
    """As a run does it."""
    recorder.begin(world, step)
    if world.is_leader:
        recorder.catch_up(step)


def result(step: int, loss: float = 2.0, **more: Any) -> StepResult:
    return StepResult(step=step, loss=loss, count=10, grad_norm=1.0, lr=0.1, **more)


def ledger(location: str | Path) -> list[str]:
    """Its lines in short."""

    def short(line: Record) -> str:
        if "begin" in line:
            return f"begin {line['begin']} at {line['step']}"
        return f"rewind {line['rewind']}" if "rewind" in line else str(line["step"])

    return [short(line) for line in RunDirectory(location).ledger.read()[0]]


def metrics(location: str | Path) -> list[int]:
    return [line["step"] for line in RunDirectory(location).steps()]


def evaluations(location: str | Path) -> list[tuple[int, str, float]]:
    lines = apply_rewinds(RunDirectory(location).evaluations.read()[0])
    return [(line["step"], line["set"], line["loss"]) for line in lines]


def nothing() -> None:
    pass


class Hooked(Log):
    """A log whose writer can come to a stop before it appends; and others can do something when it
    has just looked or appended."""

    def __init__(self, log: Log, after_look: Callable[[], None] = nothing) -> None:
        self.log = log
        self.after_look = after_look
        self.after_append: Callable[[], None] = nothing
        self.is_stopped = False
        self.held: list[tuple[Record, ...]] = []

    def append(self, *records: Record) -> None:
        if self.is_stopped:
            self.held.append(records)
            return
        self.log.append(*records)
        self.after_append()

    def last(self) -> Record | None:
        found = self.log.last()
        self.after_look()
        return found

    def go_on(self) -> None:
        self.is_stopped = False
        for records in self.held:
            self.append(*records)
        self.held.clear()

    def flush(self) -> None:
        self.log.flush()

    def pieces(
        self, position: int = 0, end: int | None = None
    ) -> Iterator[tuple[list[Record], int]]:
        return self.log.pieces(position, end)

    def end(self) -> int:
        return self.log.end()

    def is_position(self, position: int) -> bool:
        return self.log.is_position(position)

    def forget(self) -> None:
        self.log.forget()


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


# --- one leader


@pytest.mark.parametrize(("objective", "expected"), [("distill", 3.0), ("causal", 2.0)])
def test_perplexity_is_that_of_the_text(folder: Path, objective: str, expected: float) -> None:
    """Of a distillation the loss is a weighted sum, which is no perplexity's logarithm."""
    distilling = SimpleNamespace(**vars(RESOLVED))
    distilling.run = SimpleNamespace(**vars(RESOLVED.run))
    distilling.run.objective = SimpleNamespace(type=objective)
    writer = recorder(folder / "it", distilling)
    begin(writer, world(1), 0)
    writer.step(result(1, loss=2.0, extras={"loss_hard": 3.0, "loss_soft": 1.0}), {})
    (line,) = RunDirectory(folder / "it").steps()
    assert line["perplexity"] == pytest.approx(math.exp(expected))


@pytest.mark.parametrize("objective", ["masked", None])
def test_there_is_no_perplexity_where_the_loss_is_not_that_of_the_next_token(
    folder: Path, objective: str | None
) -> None:
    resolved = SimpleNamespace(**vars(RESOLVED))
    resolved.run = SimpleNamespace(**vars(RESOLVED.run))
    resolved.run.objective = SimpleNamespace(type=objective)
    writer = recorder(folder / "it", resolved)
    begin(writer, world(1), 0)
    writer.step(result(1, loss=2.0), {})
    writer.evaluation(1, {"held-out": EvaluationResult(1.0, 10, {})})
    (line,) = RunDirectory(folder / "it").steps()
    (evaluated,) = RunDirectory(folder / "it").evaluations.read()[0]
    assert "perplexity" not in {**line, **evaluated}


def test_a_step_is_in_the_ledger_once_it_is_settled(folder: Path) -> None:
    """The next one was committed after it, a checkpoint holds it, or the run ends with it."""
    leader = recorder(folder)
    begin(leader, world(1), 0)
    assert ledger(folder) == ["begin 1 at 0"]
    leader.step(result(1), {})
    assert (metrics(folder), ledger(folder)) == ([1], ["begin 1 at 0"])
    leader.step(result(2), {})
    assert ledger(folder) == ["begin 1 at 0", "1"]
    leader.settle()
    assert ledger(folder) == ["begin 1 at 0", "1", "2"]
    leader.settle()
    leader.step(result(3), {})
    leader.close()
    assert ledger(folder) == ["begin 1 at 0", "1", "2", "3"]
    assert verify_ledger(RunDirectory(folder).ledger.read()[0]).samples == 3 * BATCH


def test_a_line_of_metrics_is_all_that_is_known_of_a_step(folder: Path) -> None:
    leader = recorder(folder)
    begin(leader, world(1), 0)
    leader.step(result(1, extras={"accuracy": 0.5}), {"tokens_per_second": 7.0})
    leader.step(result(2, loss=float("nan"), skipped="the loss is nan"), {})
    first, second = RunDirectory(folder).steps()
    assert (first["loss"], first["accuracy"], first["tokens_per_second"]) == (2.0, 0.5, 7.0)
    assert (first["tokens"], first["targets"]) == (BATCH * LENGTH, 10)
    assert (second["loss"], second["skipped"]) == (None, "the loss is nan")
    leader.close()
    lines = RunDirectory(folder).ledger.read()[0]
    assert [line["learned"] for line in lines[1:]] == [True, False]
    assert {(line["generation"], line["members"]) for line in lines[1:]} == {(1, 2)}


def test_others_write_nothing(folder: Path) -> None:
    other = recorder(folder)
    begin(other, world(1, rank=1), 0)
    other.step(result(1), {})
    other.evaluation(1, {"held-out": EvaluationResult(1.0, 10, {})})
    other.activations(1, [{"mean": 1.0}])
    other.settle()
    other.close()
    assert not list(folder.rglob("*.jsonl"))


# --- another leads


@pytest.fixture
def pair(folder: Path) -> tuple[Recorder, Recorder]:
    """A leader and another, after three steps."""
    leader, other = recorder(folder), recorder(folder)
    for rank, one in enumerate((leader, other)):
        begin(one, world(1, rank), 0)
        for step in (1, 2, 3):
            one.step(result(step), {})
    return leader, other


def test_a_successor_has_nothing_to_add_but_the_last_step(
    folder: Path, pair: tuple[Recorder, Recorder]
) -> None:
    _, other = pair
    assert ledger(folder) == ["begin 1 at 0", "1", "2"]
    begin(other, world(2), 3)
    assert ledger(folder) == ["begin 1 at 0", "1", "2", "3", "rewind 3", "begin 2 at 3"]
    assert metrics(folder) == [1, 2, 3]


def test_what_only_the_dead_leader_had_committed_never_was(
    folder: Path, pair: tuple[Recorder, Recorder]
) -> None:
    leader, other = pair
    leader.step(result(4, loss=4.0), {})
    leader.settle()  # to save it
    leader.evaluation(4, {"held-out": EvaluationResult(1.0, 10, {})})
    leader.activations(4, [{"mean": 1.0}])
    assert ledger(folder)[-1] == "4"
    begin(other, world(2), 3)
    assert ledger(folder)[-3:] == ["4", "rewind 3", "begin 2 at 3"]
    assert metrics(folder) == [1, 2, 3]
    directory = RunDirectory(folder)
    for log in (directory.evaluations, directory.activations):
        assert apply_rewinds(log.read()[0]) == []
    other.step(result(4, loss=5.0), {})
    other.close()
    assert directory.steps()[-1]["loss"] == 5.0
    verdict = verify_ledger(directory.ledger.read()[0])
    assert (verdict.breach, verdict.steps, verdict.redone) == (None, 4, 1)


def test_a_step_that_another_has_committed_and_the_leader_has_not_is_kept(
    folder: Path, pair: tuple[Recorder, Recorder]
) -> None:
    _, other = pair
    other.step(result(4), {})
    other.settle(upto=4)
    begin(other, world(2), 4)
    assert ledger(folder) == ["begin 1 at 0", "1", "2", "3", "4", "rewind 4", "begin 2 at 4"]
    assert metrics(folder) == [1, 2, 3, 4]


def test_a_newcomer_can_lead_one_day(folder: Path, pair: tuple[Recorder, Recorder]) -> None:
    """It gets the lines that others keep, as it gets the state: as JSON."""
    leader, other = pair
    leader.evaluation(3, {"held-out": EvaluationResult(1.0, 10, {})})
    leader.settle(upto=3)
    newcomer = recorder(folder)
    newcomer.replace_kept_records(json.loads(json.dumps(leader.kept_records())))
    for log in ("metrics", "evaluations", "ledger"):
        (folder / f"{log}.jsonl").unlink()  # nothing of what the others had to write is there
    begin(newcomer, world(2), 3)
    assert ledger(folder) == ["begin 1 at 0", "1", "2", "3", "rewind 3", "begin 2 at 3"]
    assert metrics(folder) == [1, 2, 3]
    assert evaluations(folder) == [(3, "held-out", 1.0)]
    assert other.kept_records() != newcomer.kept_records()


def test_records_of_a_step_committed_alone_are_replaced(
    folder: Path, pair: tuple[Recorder, Recorder]
) -> None:
    """A step that it committed alone, in a generation that is over, is not what others did."""
    leader, other = pair
    leader.step(result(4, loss=1.0), {})
    other.step(result(4, loss=2.0), {})  # say, in a later generation
    other.settle(upto=4)
    leader.settle(upto=4)
    leader.replace_kept_records(other.kept_records())
    begin(leader, world(3), 4)
    assert RunDirectory(folder).ledger.read()[0][-3]["loss"] == 2.0


def test_one_that_leaves_writes_no_more(folder: Path, pair: tuple[Recorder, Recorder]) -> None:
    leader, other = pair
    written = ledger(folder)
    leader.resign()
    assert not leader.is_leader
    leader.close()
    assert ledger(folder) == written, "its last step is for whoever leads now"
    begin(other, world(2), 3)
    other.close()
    assert ledger(folder) == [*written, "3", "rewind 3", "begin 2 at 3"]


def test_an_evaluation_that_the_dead_leader_could_not_write_is_written(
    folder: Path, pair: tuple[Recorder, Recorder]
) -> None:
    results = {name: EvaluationResult(1.0, 10, {}) for name in ("a", "b")}
    _, other = pair
    other.evaluation(3, results)
    begin(other, world(2), 3)
    assert evaluations(folder) == [(3, "a", 1.0), (3, "b", 1.0)]


def test_a_step_done_again_by_one_who_could_not_write_it_has_the_loss_it_had_last(
    folder: Path,
) -> None:
    """The second leader began, and its ledger says so; its metrics did not get there."""
    leaders = [recorder(folder) for _ in range(3)]
    for rank, one in enumerate(leaders):
        begin(one, world(1, rank), 0)
        one.step(result(1), {})
    leaders[0].step(result(2, loss=4.0), {})  # nobody else has
    written = (folder / "metrics.jsonl").read_bytes()
    for rank, one in enumerate(leaders[1:]):
        begin(one, world(2, rank), 1)
        one.step(result(2, loss=5.0), {})
    (folder / "metrics.jsonl").write_bytes(written)
    begin(leaders[2], world(3), 2)
    assert [line["loss"] for line in RunDirectory(folder).steps()] == [2.0, 5.0]


@pytest.mark.parametrize("alone", [False, True], ids=["what all have", "and what it has alone"])
def test_a_leader_that_goes_on_while_another_takes_over_is_no_breach(
    folder: Path, pair: tuple[Recorder, Recorder], alone: bool
) -> None:
    """It writes between its successor's look and its successor's lines."""
    leader, other = pair

    def wake() -> None:
        leader.step(result(4, loss=4.0), {})
        if alone:
            leader.settle()

    other.directory.ledger = Hooked(other.directory.ledger, after_look=wake)
    begin(other, world(2), 3)
    assert ledger(folder) == [
        *("begin 1 at 0", "1", "2", "3"),
        *(["4"] if alone else []),
        *("3", "rewind 3", "begin 2 at 3"),
    ]
    other.step(result(4, loss=5.0), {})
    other.close()
    verdict = verify_ledger(RunDirectory(folder).ledger.read()[0])
    assert (verdict.breach, verdict.steps, verdict.redone) == (None, 4, int(alone))
    assert [line["loss"] for line in RunDirectory(folder).steps()] == [2.0, 2.0, 2.0, 5.0]


class Away(FileLog):
    """Its store does not answer the first time."""

    was_asked = False

    def last(self, block_bytes: int = 65536) -> Record | None:
        if not self.was_asked:
            self.was_asked = True
            raise OSError("the store does not answer")
        return super().last(block_bytes)


@pytest.mark.parametrize("away", ["metrics", "ledger", "evaluations", "activations"])
def test_a_store_that_is_away_is_asked_again_and_nothing_is_there_twice(
    folder: Path, pair: tuple[Recorder, Recorder], away: str
) -> None:
    leader, other = pair
    leader.step(result(4), {})
    leader.settle()
    other.begin(world(2), 3)
    setattr(other.directory, away, Away(folder / f"{away}.jsonl"))
    with pytest.raises(OSError, match="does not answer"):
        other.catch_up(3)
    other.catch_up(3)
    assert ledger(folder) == ["begin 1 at 0", "1", "2", "3", "4", "rewind 3", "begin 2 at 3"]
    assert [line.get("step") for line in RunDirectory(folder).metrics.read()[0]] == [
        *(1, 2, 3, 4),
        None,
    ]


# --- any history

LOGS = ("metrics", "evaluations", "ledger")


def logs_of(recorder: Recorder) -> list[Hooked]:
    return [getattr(recorder.directory, name) for name in LOGS]


@dataclass(eq=False)
class Worker:
    recorder: Recorder
    state: list[float] = field(default_factory=list)
    """The loss of each step that made it; no two attempts at a step have the same."""
    committed_in: int = 0
    evaluated: int = 0
    """The step it was evaluated at last."""

    @property
    def name(self) -> tuple[int, int]:
        return len(self.state), self.committed_in


class Run:
    """Workers that come, commit and are lost; what the first of them writes is real."""

    def __init__(self, location: str | Path, workers: int) -> None:
        self.location = location
        self.generation = 0
        self.workers: list[Worker] = []
        self.saved: list[list[float]] = [[]]
        """What checkpoints hold, the newest last."""
        self.num_attempts = 0
        self.stopped: list[Recorder] = []
        """Of leaders that stand still, with what they are about to write."""
        self.wakes_at: tuple[str, str] | None = None
        """When they continue, if that is while the next leader takes over: log and moment."""
        self.assemble(workers, 0)

    def recorder(self) -> Recorder:
        made = recorder(self.location)
        for name in LOGS:
            setattr(made.directory, name, Hooked(getattr(made.directory, name)))
        return made

    def assemble(self, newcomers: int, leader: int) -> None:
        """A new generation of whoever is left, as `begin` of a run does it."""
        self.generation += 1
        holders = list(self.workers)
        new = [Worker(self.recorder()) for _ in range(newcomers or not holders)]
        self.workers = [*holders, *new]
        if holders:
            source = max(holders, key=lambda worker: worker.name)
            for worker in holders:
                worker.recorder.settle(upto=len(source.state))
            notes = json.dumps(source.recorder.kept_records())
            for worker in self.workers:
                if worker in new or worker.name != source.name:
                    worker.recorder.replace_kept_records(json.loads(notes))
                    worker.state, worker.committed_in = list(source.state), source.committed_in
            level = min(one.evaluated for one in holders if one.name == source.name)
            for worker in self.workers:
                worker.evaluated = level
            first = holders[leader % len(holders)]
            self.workers.remove(first)
            self.workers.insert(0, first)
        else:
            for worker in self.workers:
                worker.state = list(self.saved[-1])
                worker.evaluated = len(worker.state)
        step = len(self.workers[0].state)
        # Checkpoints beyond the step at which a later generation begins do not count.
        self.saved = [state for state in self.saved if len(state) <= step]
        self.begin(step)
        self.evaluate()

    def begin(self, step: int) -> None:
        wakes_at, self.wakes_at = self.wakes_at, None
        if wakes_at is not None:
            name, moment = wakes_at
            setattr(getattr(self.workers[0].recorder.directory, name), moment, self.wake)
        for rank, worker in enumerate(self.workers):
            begin(worker.recorder, world(self.generation, rank, len(self.workers)), step)
        for log in logs_of(self.workers[0].recorder):
            log.after_look = log.after_append = nothing

    def commit(self, workers: list[Worker]) -> None:
        self.num_attempts += 1
        for worker in workers:
            worker.state.append(self.num_attempts / 1024)
            worker.committed_in = self.generation
            worker.recorder.step(result(len(worker.state), loss=worker.state[-1]), {})

    def evaluate(self) -> None:
        """All of them, if it is due."""
        if self.is_due(self.workers[0]):
            for worker in self.workers:
                one = EvaluationResult(worker.state[-1], 10, {})
                worker.recorder.evaluation(len(worker.state), {"a": one, "b": one})
                worker.evaluated = len(worker.state)

    def is_due(self, worker: Worker) -> bool:
        return len(worker.state) % 2 == 0 and worker.evaluated != len(worker.state)

    def stop(self, recorder: Recorder) -> None:
        """What it writes from now on is written when it wakes."""
        self.stopped.append(recorder)
        for log in logs_of(recorder):
            log.is_stopped = True

    def wake(self) -> None:
        """Leaders that hung continue, and do not know yet that others continued without them."""
        stopped, self.stopped = self.stopped, []
        for recorder in stopped:
            for log in logs_of(recorder):
                log.go_on()
            send_logs(recorder.directory)

    def stall(self) -> None:
        """A generation's leader comes to a stop when it has looked, and has written nothing."""
        self.generation += 1
        self.stop(self.workers[0].recorder)
        self.begin(len(self.workers[0].state))
        self.workers.pop(0)

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.commit(self.workers)
            self.evaluate()

    def save(self, workers: list[Worker]) -> None:
        for worker in workers:
            worker.recorder.settle()
        if self.workers[0] in workers:
            send_logs(self.workers[0].recorder.directory)
            self.saved.append(list(self.workers[0].state))

    def send(self) -> None:
        """As every minute, without a checkpoint."""
        send_logs(self.workers[0].recorder.directory)

    def go_back(self) -> None:
        """All are there, but were taken for lost: nobody holds the state any longer."""
        self.generation += 1
        for worker in self.workers:
            worker.state, worker.committed_in = list(self.saved[-1]), 0
            worker.evaluated = len(worker.state)
        self.begin(len(self.saved[-1]))

    def lose(self, committed: int, lost: int, saves: bool, stops: bool) -> Worker | None:
        """A step that some of them have committed and some have not survived. Masks by rank. The
        leader, if it died; it may have stopped only."""
        leader = self.workers[0]
        done = [worker for rank, worker in enumerate(self.workers) if committed >> rank & 1]
        left = [worker for rank, worker in enumerate(self.workers) if not lost >> rank & 1]
        stops = stops and leader not in left
        if stops:
            self.stop(leader.recorder)
        self.commit(done)
        if saves and not any(map(self.is_due, done)):  # what is saved has been evaluated
            self.save([worker for worker in done if not stops or worker is not leader])
        elif stops and leader in done:
            leader.recorder.settle()  # to save it
        self.workers = left
        return None if stops or leader in left else leader

    def end(self) -> None:
        self.steps(1)
        self.workers[0].recorder.close()
        send_logs(self.workers[0].recorder.directory)

    def require_exact(self) -> None:
        state = self.workers[0].state
        directory = RunDirectory(self.location)
        lines = directory.ledger.read()[0]
        verdict = verify_ledger(lines)
        assert verdict.breach is None, (verdict.breach, ledger(self.location))
        counting = apply_rewinds([line for line in without_stale(lines) if "begin" not in line])
        assert [line["loss"] for line in counting] == state
        assert [line["loss"] for line in directory.steps()] == state
        assert metrics(self.location) == list(range(1, len(state) + 1))
        even = [(step, loss) for step, loss in enumerate(state, 1) if step % 2 == 0]
        assert evaluations(self.location) == [(s, name, loss) for s, loss in even for name in "ab"]


class Taped(FileLog):
    """A file whose newest lines can be taken away again, as if their writer had died before."""

    def __init__(self, path: Path, tape: list[tuple[Path, int]]) -> None:
        super().__init__(path)
        self.tape = tape

    def append(self, *records: Record) -> None:
        if records:
            self.tape.append((self.path, self.path.stat().st_size if self.path.exists() else 0))
        super().append(*records)


class RunInFolder(Run):
    """A leader that dies has not written its last lines, and half of one."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.tapes: dict[Recorder, list[tuple[Path, int]]] = {}
        super().__init__(folder, workers)

    def recorder(self) -> Recorder:
        made, tape = super().recorder(), list[tuple[Path, int]]()
        for name, log in zip(LOGS, logs_of(made), strict=True):
            log.log = Taped(Path(self.location, f"{name}.jsonl"), tape)
        self.tapes[made] = tape
        return made

    def assemble(self, newcomers: int, leader: int) -> None:
        super().assemble(newcomers, leader)
        for worker in self.workers[1:]:
            self.tapes[worker.recorder].clear()  # others write behind it now

    def save(self, workers: list[Worker]) -> None:
        super().save(workers)
        if self.workers[0] in workers:
            self.tapes[self.workers[0].recorder].clear()

    def send(self) -> None:
        super().send()
        self.tapes[self.workers[0].recorder].clear()

    def cut(self, dead: Worker, lines: int, half: int) -> None:
        tape = self.tapes[dead.recorder]
        unwritten = tape[len(tape) - min(lines, len(tape)) :]
        for path, size in reversed(unwritten):
            os.truncate(path, size + half)
            half = 0


STEPS = st.tuples(st.just("steps"), st.integers(1, 3))
SAVE = st.tuples(st.just("save"))
SEND = st.tuples(st.just("send"))
JOIN = st.tuples(st.just("join"), st.integers(0, 2), st.integers(0, 2))
BACK = st.tuples(st.just("back"))
WAKE = st.tuples(st.just("wake"))
WAKES_AT = st.none() | st.tuples(
    st.sampled_from(LOGS), st.sampled_from(["after_look", "after_append"])
)
STALL = st.tuples(st.just("stall"), WAKES_AT)
MASK = st.integers(0, 7)
LOSE = st.tuples(
    st.just("lose"),
    MASK,
    MASK,
    st.booleans(),
    st.booleans(),
    # Of those who die: lines that were not written, and what was of the first of them.
    st.tuples(st.integers(0, 20), st.integers(0, 60)),
    WAKES_AT,
)
HISTORY = st.lists(st.one_of(STEPS, SAVE, SEND, JOIN, BACK, LOSE, STALL, WAKE), max_size=12)


def require_exact(run: Run, history: list[tuple[Any, ...]]) -> None:
    for what, *how in history:
        match what:
            case "steps":
                run.steps(*how)
            case "save":
                run.save(run.workers)
            case "send":
                run.send()
            case "join":
                run.assemble(*how)
            case "back":
                run.go_back()
            case "stall":
                run.stall()
                (run.wakes_at,) = how
                run.assemble(0, 0)
            case "wake":
                run.wake()
            case "lose":
                *how, unwritten, run.wakes_at = how
                dead = run.lose(*how)
                if dead is not None and isinstance(run, RunInFolder):
                    run.cut(dead, *unwritten)
                run.assemble(0, 0)
    run.end()
    run.require_exact()


@settings(max_examples=80)
@given(HISTORY)
def test_whoever_dies_and_when_the_records_are_exact(history: list[tuple[Any, ...]]) -> None:
    """Leaders die with any of their lines unwritten, one after the other, and all at once; or they
    stop, and write late what others have written or undone."""
    with folder_in_memory() as folder:
        require_exact(RunInFolder(folder, 2), history)


@contextmanager
def run_in_a_store(workers: int) -> Iterator[Run]:
    with fake_s3(), folder_in_memory() as cache, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        yield Run("s3://bucket/it", workers)


@settings(max_examples=60)
@given(HISTORY)
def test_in_an_object_store_as_well(history: list[tuple[Any, ...]]) -> None:
    """There lines are sent now and then, and a leader dies with those since the last time."""
    with run_in_a_store(2) as run:
        require_exact(run, history)


@pytest.mark.parametrize("again", range(5))
def test_a_leader_dies_before_it_could_send_that_steps_are_done_again(again: int) -> None:
    """All have died once; then, in the first minute of the second start, its leader."""
    with run_in_a_store(2) as run:
        run.steps(3)
        run.save(run.workers)
        run.steps(2)
        run.send()
        run.workers.clear()
        run.assemble(2, 0)
        run.steps(again)
        run.workers.pop(0)
        run.assemble(0, 0)
        run.end()
        run.require_exact()


def test_a_leader_that_goes_on_after_a_change_sends_nothing_twice() -> None:
    with run_in_a_store(2) as run:
        run.steps(2)
        run.workers.pop()
        run.assemble(1, 0)
        run.steps(1)
        run.end()
        run.require_exact()


def test_one_that_leads_again_does_not_send_what_it_could_not_send_before() -> None:
    """Another has led in between, and has written all of it."""
    with run_in_a_store(2) as run:
        run.steps(2)
        run.assemble(0, 1)
        run.steps(1)
        run.send()
        run.assemble(0, 1)
        run.end()
        run.require_exact()
