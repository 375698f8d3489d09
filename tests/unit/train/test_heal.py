"""The run's state for those who lack it: bit by bit, or not at all. Workers are threads here, the
groups between them are real."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed import HashStore

from headway.errors import PeerLost
from headway.member.worker.state_choice import NO_STATE
from headway.spec.run_file import GuardConfig, OptimizerConfig
from headway.train import state_transfer
from headway.train.collectives import PendingCollective, WorkerGroup
from headway.train.domain_group import DomainGroup
from headway.train.gradient_all_reduce import GradientReducer
from headway.train.heal import ChosenState, choose_state, hand_over_state, held_state
from headway.train.loss_guard import LossGuard
from headway.train.optim import make_moments, make_optimizer
from headway.train.precision import LossScale
from headway.train.state_tensors import state_tensors
from headway.train.step import Training
from headway.train.weight_copies import WeightCopies
from headway.train.worker_run import _heal
from headway.train.world import RankPlacement, World
from support.together import Died, group_of, outcomes, together
from support.waiting import wait_for

RECORDS = [[{"step": 1, "loss": None}], [{"begin": 1, "step": 0}]]
KIND, OTHER_KIND, THIRD_KIND = 11, 22, 33
BLOCK_BYTES = 2**13
"""So that the header of a Zoo is one block, and its state several."""


def header_collectives(num_receivers: int) -> int:
    """Its length; then itself, to one receiver, which sends it to the others two rounds later."""
    return 2 if num_receivers == 1 else 4


class Zoo(nn.Module):
    """One of everything that a model may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.turned = nn.Parameter(torch.randn(5, 3).t())
        self.number = nn.Parameter(torch.randn(()))
        self.brain = nn.Parameter(torch.randn(3, 4).bfloat16())
        self.small_float = nn.Parameter(torch.randn(3).half())
        self.large_float = nn.Parameter(torch.randn(2, 2).double())
        self.large_number = nn.Parameter(torch.randn(()).double())
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(4))
        self.large = nn.Parameter(torch.randn(90, 53))
        self.register_buffer("seen", torch.randint(100, ()))
        self.register_buffer("mask", torch.rand(3) > 0.5)
        self.register_buffer("small", torch.randint(100, (5,), dtype=torch.uint8))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("flipped", torch.randn(4, 2).t())


class Worker:
    """One worker's state, and how it continues."""

    def __init__(self, seed: int, steps: int = 0, committed_in: int = 0, kind: int = KIND) -> None:
        self.kind = kind
        torch.manual_seed(seed)
        model = Zoo()
        nothing = cast(Any, None)
        self.training = Training(
            resolved=nothing,
            total_steps=100,
            model=model,
            optimizer=make_optimizer(OptimizerConfig(), model),
            objective=nothing,
            feed=nothing,
            scale=LossScale("fp16"),
            guard=LossGuard(GuardConfig()),
            gradient_reducer=GradientReducer(list(model.parameters())),
            copies=WeightCopies(model, "fp16", is_sharded=False),
            committed_in=committed_in,
        )
        for _ in range(steps):
            self.advance()

    def advance(self) -> None:
        training = self.training
        training.step += 1
        for index, (name, parameter) in enumerate(training.model.named_parameters()):
            if parameter.requires_grad and name != "unused":
                parameter.grad = (parameter.detach() + index + training.step).clone()
        training.optimizer.step()
        training.optimizer.zero_grad()
        training.model.get_buffer("seen").add_(1)
        training.guard.record(1 / training.step, None)
        training.scale.update(finite=training.step % 3 != 0)

    @property
    def name(self) -> tuple[int, int]:
        return self.training.step, self.training.committed_in

    def contents(self) -> dict[str, Any]:
        """All of it, as bytes."""
        training = self.training
        contents: dict[str, Any] = {
            state_tensor.name: (
                state_tensor.local.dtype,
                state_tensor.shape,
                state_tensor.local.contiguous().view(-1).view(torch.uint8).tolist(),
            )
            for state_tensor in state_tensors(training.model, training.optimizer)
        }
        contents["scale"] = (training.scale.scale, training.scale.good_steps)
        contents["guard"] = training.guard.state()
        return contents

    def take_part(self, group: WorkerGroup, holds: bool = True) -> Any:
        choice = choose_state(self.training, group, self.name if holds else NO_STATE, self.kind)
        assert choice is not None
        return hand_over_state(self.training, group, choice, RECORDS if holds else [])


def in_turn(workers: list[Worker], holds: list[bool]) -> list[Any]:
    return together(
        len(workers), lambda group: workers[group.rank].take_part(group, holds[group.rank])
    )


# --- which state


def chosen(
    step: int, within: int, holders: tuple[int, ...], receivers: tuple[int, ...], evaluated: int
) -> ChosenState:
    """Among workers of one kind."""
    kinds = (KIND,) * (len(holders) + len(receivers))
    return ChosenState(step, within, holders, receivers, evaluated, kinds)


MORE = partial(pytest.param, marks=pytest.mark.long("the gate has other moments of it"))


@pytest.mark.parametrize(
    ("brought", "expected"),
    [
        # Nobody has it: it comes from a checkpoint, whatever somebody believes to have.
        ([None, None], None),
        ([None], None),
        # All are level, as after a loss during a step.
        ([(5, 2), (5, 2)], chosen(5, 2, (0, 1), (), 0)),
        # One has committed a step that the other has not: it cannot be told who is alone with it.
        ([(4, 2), (5, 2)], chosen(5, 2, (1,), (0,), 0)),
        # One alone has committed a step: it was not settled, and good state is not overwritten.
        ([(4, 2), (5, 2), (4, 2)], chosen(4, 2, (0, 2), (1,), 0)),
        ([(5, 2), (4, 2), (4, 2), (4, 2)], chosen(4, 2, (1, 2, 3), (0,), 0)),
        # As many have it as have not.
        ([(4, 2), (5, 2), (4, 2), (5, 2)], chosen(5, 2, (1, 3), (0, 2), 0)),
        # Most have it. Newcomers do not count, whatever they believe to have.
        ([(4, 2), (5, 2), (5, 2)], chosen(5, 2, (1, 2), (0,), 0)),
        ([(4, 2), (5, 2), None, None], chosen(5, 2, (1,), (0, 2, 3), 0)),
        # The same step, committed again by a later generation, after it was lost with the first.
        ([(5, 2), (5, 3), None], chosen(5, 3, (1,), (0, 2), 0)),
        # A higher step counts more than a later generation.
        ([(6, 1), (5, 9)], chosen(6, 1, (0,), (1,), 0)),
        # The very beginning is a state, too.
        ([None, (0, 0)], chosen(0, 0, (1,), (0,), 0)),
        # One whose healing broke off believes to hold something, and does not.
        ([(0, 0), NO_STATE], chosen(0, 0, (0,), (1,), 0)),
        ([NO_STATE, None], None),
    ],
)
def test_the_state_that_most_holders_bring_is_taken(
    brought: list[tuple[int, int] | None], expected: ChosenState | None
) -> None:
    def work(group: WorkerGroup) -> ChosenState | None:
        worker = Worker(group.rank)
        name = brought[group.rank]
        worker.training.step, worker.training.committed_in = name or (50, 7)
        return choose_state(worker.training, group, name or NO_STATE, KIND)

    assert together(len(brought), work) == [expected] * len(brought)


def test_an_evaluation_that_not_all_have_finished_is_done_again() -> None:
    """Of those who have the state: what others have evaluated says nothing."""

    def work(group: WorkerGroup) -> ChosenState | None:
        training = Worker(0).training
        training.step = 4 if group.rank == 0 else 5
        training.evaluated_step = (0, 5, 3)[group.rank]
        return choose_state(training, group, (training.step, 0), KIND)

    assert [choice and choice.evaluated_step for choice in together(3, work)] == [3, 3, 3]


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=4)
)
def test_all_choose_the_same_and_whoever_lacks_it_is_named(
    brought: list[tuple[bool, int, int]],
) -> None:
    def work(group: WorkerGroup) -> ChosenState | None:
        training = Worker(0).training
        holds, step, committed_in = brought[group.rank]
        return choose_state(training, group, (step, committed_in) if holds else NO_STATE, KIND)

    choice, *others = together(len(brought), work)
    assert all(other == choice for other in others)
    names = [(step, within) for holds, step, within in brought if holds]
    if choice is None:
        assert not names
        return
    best = (choice.step, choice.committed_in)
    assert best == max(names, key=lambda name: (names.count(name), name))
    level = [rank for rank, one in enumerate(brought) if one == (True, *best)]
    assert list(choice.holders) == level
    assert sorted([*level, *choice.receivers]) == list(range(len(brought)))


# --- handing it over


@pytest.mark.parametrize("block_bytes", [1000, BLOCK_BYTES, state_transfer.BLOCK_BYTES])
def test_newcomers_and_those_behind_get_it_bit_by_bit(
    monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(state_transfer, "BLOCK_BYTES", block_bytes)
    newcomer, behind = Worker(seed=1), Worker(seed=2, steps=3, committed_in=1)
    source, level = Worker(2, 4, 2), Worker(2, 4, 2)
    expected = source.contents()
    workers = [newcomer, behind, source, level]
    records = in_turn(workers, [False, True, True, True])
    assert records == [RECORDS, RECORDS, None, None], "who needs nothing gets nothing"
    for worker in workers:
        assert worker.contents() == expected
        assert worker.name == (4, 2)
    for worker in workers:
        worker.advance()
    for worker in workers[1:]:
        assert worker.contents() == newcomer.contents(), "they continue alike"
    module = cast(Zoo, newcomer.training.model)
    assert module.head.weight is module.embedding.weight, "what was tied is tied"


def test_holders_may_have_made_their_state_in_another_order() -> None:
    """One from a checkpoint, the other by its steps: parts of both make one state."""
    first, second, newcomer = Worker(2, 4, 2), Worker(2, 4, 2), Worker(1)
    state = second.training.optimizer.state
    for parameter in state:
        state[parameter] = dict(reversed(state[parameter].items()))
    in_turn([first, second, newcomer], [True, True, False])
    assert newcomer.contents() == first.contents()


def test_each_kind_of_processor_receives_from_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have other last bits of the same state: a mixture of both would be nobody's."""
    monkeypatch.setattr(state_transfer, "BLOCK_BYTES", BLOCK_BYTES)
    here = [Worker(2, 4, 2), Worker(2, 4, 2)]
    there = [Worker(2, 4, 2, OTHER_KIND), Worker(2, 4, 2, OTHER_KIND)]
    for worker in there:
        with torch.no_grad():
            cast(Zoo, worker.training.model).large.mul_(1 + 1e-7)
    newcomers = [Worker(1), Worker(1, kind=OTHER_KIND), Worker(1, kind=THIRD_KIND)]
    workers = [there[0], here[0], newcomers[0], newcomers[1], here[1], newcomers[2], there[1]]
    bits = here[0].contents(), there[0].contents()
    assert bits[0] != bits[1]
    in_turn(workers, [True, True, False, False, True, False, True])
    assert newcomers[0].contents() == here[0].contents() == bits[0]
    assert newcomers[1].contents() == there[0].contents() == bits[1]
    assert newcomers[2].contents() == bits[1], "of its kind is nobody: the first holder's"


@pytest.mark.parametrize("steps_before", [0, 2])
def test_before_the_first_step_there_is_no_optimizer_state(steps_before: int) -> None:
    """Also for one that has some: it was further once, in a run that went back."""
    newcomer, source = Worker(seed=1, steps=steps_before), Worker(seed=2)
    in_turn([newcomer, source], [False, True])
    assert newcomer.contents() == source.contents()
    assert not newcomer.training.optimizer.state
    for worker in (newcomer, source):
        worker.advance()
    assert newcomer.contents() == source.contents()


def test_moments_that_were_made_beforehand_are_received_into() -> None:
    """A newcomer makes them before the others wait for it. What no holder has is dropped."""
    newcomer, source = Worker(seed=1), Worker(2, 4, 2)
    model, state = cast(Zoo, newcomer.training.model), newcomer.training.optimizer.state
    make_moments(newcomer.training.optimizer)
    moments = [state[model.large]["exp_avg"], state[model.large]["exp_avg_sq"]]
    in_turn([newcomer, source], [False, True])
    assert newcomer.contents() == source.contents()
    assert state[model.large]["exp_avg"] is moments[0]
    assert state[model.large]["exp_avg_sq"] is moments[1]
    assert model.unused not in state


def test_those_who_have_it_receive_nothing() -> None:
    """Not even the same again: a holder's memory is left alone."""
    level, source, newcomer = Worker(2, 4, 2), Worker(2, 4, 2), Worker(1)
    tensors = [*level.training.model.state_dict().values()]
    tensors += [
        value for state in level.training.optimizer.state.values() for value in state.values()
    ]
    versions = [tensor._version for tensor in tensors]
    in_turn([source, level, newcomer], [True, True, False])
    assert [tensor._version for tensor in tensors] == versions


# --- what goes wrong on the way


class Faulty:
    """A worker's group, whose collective number `at` is interfered with: before it, as a worker
    that dies, or after it, as a link that changes what arrives."""

    def __init__(
        self,
        group: WorkerGroup,
        at: int,
        before: Callable[[], None] = lambda: None,
        after: Callable[[torch.Tensor], None] = lambda received: None,
    ) -> None:
        self.rank, self.size = group.rank, group.size
        self.all_gather = group.all_gather
        self._group, self._left, self._before, self._after = group, at, before, after

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        is_hit = self._is_hit()
        if is_hit:
            self._before()
        self._group.broadcast(tensor, source)
        if is_hit:
            self._after(tensor)

    def start_all_to_all(self, received: torch.Tensor, *others: Any) -> PendingCollective:
        is_hit = self._is_hit()
        if is_hit:
            self._before()
        pending = self._group.start_all_to_all(received, *others)

        def wait() -> None:
            pending.wait()
            if is_hit:
                self._after(received)

        return PendingCollective(wait, pending.abandon)

    def _is_hit(self) -> bool:
        self._left -= 1
        return self._left == -1


def die() -> None:
    raise Died


def dies_in_the_middle(*receivers: Worker) -> Callable[[], None]:
    """When they all know what they are about to get."""

    def die_then() -> None:
        wait_for("the middle", lambda: all(one.name == NO_STATE for one in receivers), 20)
        raise Died

    return die_then


def flip_a_bit(tensor: torch.Tensor) -> None:
    tensor[len(tensor) // 2] ^= 1


def test_what_is_said_of_the_state_is_checked_too() -> None:
    receiver, source = Worker(1, 3, 1), Worker(2, 4, 2)
    expected = receiver.contents()

    def work(group: WorkerGroup) -> Any:
        if group.rank == 0:
            return receiver.take_part(cast(Any, Faulty(group, 1, after=flip_a_bit)))
        return source.take_part(group)

    refused, _ = outcomes(2, work)
    assert isinstance(refused, PeerLost)
    assert "checksum does not match" in str(refused)
    assert (receiver.contents(), receiver.name) == (expected, (3, 1)), "it has what it had"


@pytest.mark.parametrize("at", [*map(MORE, [0, 3]), 1])
def test_a_chunk_that_does_not_arrive_as_it_was_sent_is_refused(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    monkeypatch.setattr(state_transfer, "BLOCK_BYTES", BLOCK_BYTES)
    receiver, source = Worker(1, 3, 1), Worker(2, 4, 2)
    expected = source.contents()

    def work(group: WorkerGroup) -> Any:
        if group.rank == 0:
            faulty = Faulty(group, header_collectives(1) + at, after=flip_a_bit)
            return receiver.take_part(cast(Any, faulty))
        return source.take_part(group)

    refused, _ = outcomes(2, work)
    assert isinstance(refused, PeerLost)
    assert "checksum does not match" in str(refused)
    assert receiver.name == NO_STATE
    assert (source.contents(), source.name) == (expected, (4, 2))
    # The coordinator may still count it as one that holds the state.
    in_turn([receiver, source], [True, True])
    assert (receiver.contents(), receiver.name) == (expected, (4, 2))


@pytest.mark.parametrize("at", [0, *map(MORE, [1, 2]), 6])
@pytest.mark.parametrize("dying", range(4))
def test_one_is_lost_in_the_middle(monkeypatch: pytest.MonkeyPatch, dying: int, at: int) -> None:
    """The holder that has sent the header, another one, and those who receive: whoever it is, all
    others are free at once."""
    monkeypatch.setattr(state_transfer, "BLOCK_BYTES", BLOCK_BYTES)
    source, behind, level, newcomer = Worker(2, 4, 2), Worker(2, 3, 1), Worker(2, 4, 2), Worker(1)
    workers, expected = [source, behind, level, newcomer], level.contents()

    def work(group: WorkerGroup) -> Any:
        if group.rank == dying:
            fault = dies_in_the_middle(behind, newcomer)
            group = cast(Any, Faulty(group, header_collectives(2) + at, fault))
        return workers[group.rank].take_part(group, holds=group.rank < 3)

    found = outcomes(4, work)
    assert isinstance(found.pop(dying), Died)
    assert all(isinstance(one, PeerLost) for one in found), found
    assert behind.name == newcomer.name == NO_STATE, "half of a state is none"
    for holder in (source, level):
        assert (holder.contents(), holder.name) == (expected, (4, 2))
    survivors = [worker for worker in workers if worker is not workers[dying]]
    in_turn(survivors, [worker is not newcomer for worker in survivors])
    for worker in survivors:
        assert (worker.contents(), worker.name) == (expected, (4, 2))


def test_without_another_source_half_a_state_is_not_gone_on_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_transfer, "BLOCK_BYTES", BLOCK_BYTES)
    source, behind = Worker(2, 4, 2), Worker(2, 3, 1)

    def work(group: WorkerGroup) -> Any:
        if group.rank == 0:
            fault = dies_in_the_middle(behind)
            return source.take_part(cast(Any, Faulty(group, header_collectives(1) + 2, fault)))
        return behind.take_part(group)

    run = cast(Any, SimpleNamespace(training=behind.training))
    holder, alone = (
        cast(Any, SimpleNamespace(has_state=True)),
        World(0, 1, 3, RankPlacement(torch.device("cpu"))),
    )
    assert _heal(run, alone, holder)
    outcomes(2, work)
    # The coordinator may count it as a holder: it was one, a step behind.
    assert together(1, lambda group: choose_state(behind.training, group, behind.name, KIND)) == [
        None
    ]
    assert not _heal(run, alone, holder), "it comes from a checkpoint"


@pytest.mark.parametrize("at", range(header_collectives(1)))
def test_lost_before_anything_came_one_keeps_what_it_has(at: int) -> None:
    source, behind = Worker(2, 4, 2), Worker(2, 3, 1)
    expected = behind.contents()

    def work(group: WorkerGroup) -> Any:
        if group.rank == 0:
            return source.take_part(cast(Any, Faulty(group, at, die)))
        return behind.take_part(group)

    assert isinstance(outcomes(2, work)[1], PeerLost)
    assert (behind.contents(), behind.name) == (expected, (3, 1))


def test_one_that_is_to_receive_keeps_the_line_of_its_last_step_until_it_has() -> None:
    """If the holders are lost before anything came, its own state counts, which has that step."""
    behind, source = Worker(2, 3, 1), Worker(2, 4, 2)
    settled: list[tuple[int, int]] = []

    def work(group: WorkerGroup) -> bool:
        recorder = SimpleNamespace(
            settle=lambda upto: settled.append((group.rank, upto)), kept_records=lambda: RECORDS
        )
        training = (source, behind)[group.rank].training
        world = World(group.rank, 2, 3, RankPlacement(torch.device("cpu")), group)
        if group.rank == 0:
            world = replace(world, replicas=cast(Any, Faulty(group, 0, die)))
        run = SimpleNamespace(training=training, recorder=recorder)
        return _heal(cast(Any, run), world, cast(Any, SimpleNamespace(has_state=True)))

    assert isinstance(outcomes(2, work)[1], PeerLost)
    assert settled == [(0, 4)]
    assert behind.name == (3, 1)


def test_one_that_is_ahead_alone_and_dies_while_it_is_taken_back_costs_nothing() -> None:
    """Had the others taken its state, they would have lost theirs with it."""
    ahead, first, second = Worker(2, 5, 2), Worker(2, 4, 2), Worker(2, 4, 2)
    expected = first.contents()

    def work(group: WorkerGroup) -> Any:
        worker = (ahead, first, second)[group.rank]
        if group.rank == 0:
            return worker.take_part(cast(Any, Faulty(group, header_collectives(1), die)))
        return worker.take_part(group)

    outcomes(3, work)
    for worker in (first, second):
        assert (worker.contents(), worker.name) == (expected, (4, 2))


@pytest.mark.parametrize(
    ("names", "held"),
    [
        ([(5, 2), (5, 2)], (5, 2)),
        # The source died between the two.
        ([(5, 2), NO_STATE], NO_STATE),
        ([(5, 2), (4, 2)], NO_STATE),
        ([(5, 2), (5, 3)], NO_STATE),
        ([NO_STATE, NO_STATE], NO_STATE),
    ],
)
def test_a_domain_holds_what_all_its_ranks_hold(
    names: list[tuple[int, int]], held: tuple[int, int]
) -> None:
    def work(group: WorkerGroup) -> list[tuple[int, int]]:
        training = Worker(group.rank).training
        training.step, training.committed_in = names[group.rank]
        domain = DomainGroup(group, group, 3)
        return [held_state(training, domain, holds) for holds in (True, False)]

    assert together(2, work) == [[held, NO_STATE]] * 2


def test_a_half_healed_domain_is_healed_as_a_whole() -> None:
    """The source died between its two ranks: both take the state of the domain that is left, none
    restores a checkpoint while the other waits."""
    half = [Worker(2, 4, 2), Worker(1)]
    half[1].training.step, half[1].training.committed_in = NO_STATE
    whole = [Worker(2, 5, 2), Worker(2, 5, 2)]
    stores = [HashStore() for _ in range(4)]
    recorder = SimpleNamespace(
        settle=lambda upto: None,
        kept_records=lambda: RECORDS,
        replace_kept_records=lambda records: None,
    )

    def work(group: WorkerGroup) -> bool:
        domain, rank = divmod(group.rank, 2)
        inside = WorkerGroup(group_of(stores[domain], rank, 2))
        replicas = WorkerGroup(group_of(stores[2 + rank], domain, 2))
        placement = RankPlacement(torch.device("cpu"), rank, 2)
        world = World(group.rank, 4, 3, placement, replicas, DomainGroup(inside, inside, 3))
        run = SimpleNamespace(training=(half, whole)[domain][rank].training, recorder=recorder)
        holder = SimpleNamespace(has_state=True)
        return _heal(cast(Any, run), world, cast(Any, holder))

    assert together(4, work) == [True] * 4
    assert [worker.name for worker in (*half, *whole)] == [(5, 2)] * 4
    for worker in half:
        assert worker.contents() == whole[0].contents()
