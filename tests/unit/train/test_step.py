"""One step between two domains of two ranks: its collectives, their order, and who commits. Ranks
are threads here, the groups between them are real."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed import HashStore

from headway.errors import PeerLost
from headway.spec.run_file import GuardConfig, OptimizerConfig, ScheduleConfig
from headway.train.collectives import WorkerGroup
from headway.train.domain_group import DomainGroup
from headway.train.gradient_all_reduce import GradientReducer
from headway.train.host_copies import HostCopies
from headway.train.loss_guard import LossGuard
from headway.train.objectives import Loss
from headway.train.optim import make_optimizer
from headway.train.precision import LossScale
from headway.train.step import Flags, StepResult, Training, take_step
from headway.train.weight_copies import WeightCopies
from headway.train.world import RankPlacement, World
from support.together import group_of, outcomes, shut, together


class Noted(WorkerGroup):
    """A group that notes each collective that is waited for, and may be interfered with."""

    def __init__(self, name: str, store: HashStore, rank: int, noted: list[str]) -> None:
        super().__init__(group_of(store, rank, 2))
        self._name, self._noted = name, noted
        self.interfere: Callable[[int], None] = lambda number: None

    def _wait(self, work: Any, *tensors: torch.Tensor) -> None:
        self.interfere(self._noted.count(self._name))
        self._noted.append(self._name)
        super()._wait(work, *tensors)


def training() -> Training:
    model = nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in model.parameters():  # the generator is shared by all threads
            parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) / 8)
    run = SimpleNamespace(
        optimizer=OptimizerConfig(),
        schedule=ScheduleConfig(),
        precision="fp32",
        data=SimpleNamespace(sequence_length=3),
    )
    batches = [SimpleNamespace(seed=one, x=torch.full((1, 3), one + 1.0)) for one in range(4)]

    def objective(model: nn.Module, batch: Any) -> Loss:
        return Loss(model(batch.x).square().sum(), torch.tensor(2), {})

    def step(number: int, share: Any) -> list[Any]:
        return batches[share.first : share.first + share.num_passes]

    return Training(
        resolved=cast(Any, SimpleNamespace(run=run, micro=1)),
        total_steps=10,
        model=model,
        optimizer=make_optimizer(OptimizerConfig(), model),
        objective=cast(Any, objective),
        feed=cast(Any, SimpleNamespace(num_micro_batches=4, step=step)),
        scale=LossScale("fp32"),
        guard=LossGuard(GuardConfig()),
        gradient_reducer=GradientReducer(list(model.parameters())),
        copies=WeightCopies(model, "fp32", is_sharded=False),
    )


class Rank:
    """One of four: two domains of two ranks, or four domains of one."""

    def __init__(self, group: WorkerGroup, stores: list[HashStore], has_domain: bool) -> None:
        self.training, self.noted = training(), list[str]()
        self.domain: Noted | None = None
        domain, local = divmod(group.rank, 2)
        placement = RankPlacement(torch.device("cpu"))
        if not has_domain:
            self.replicas: Any = group
            self.world = World(group.rank, 4, 3, placement, group)
            return
        self.domain = Noted("domain", stores[domain], local, self.noted)
        self.replicas = Noted("replicas", stores[2 + local], domain, self.noted)
        placement = RankPlacement(torch.device("cpu"), local, 2)
        inside = DomainGroup(self.domain, self.domain, 3)
        self.world = World(group.rank, 4, 3, placement, self.replicas, inside)

    def step(self) -> StepResult:
        return take_step(self.training, self.world, Flags(save=self.world.is_leader))


def test_the_control_all_reduce_is_the_last_collective_of_a_step() -> None:
    """And there are no more than before: of the losses and of the counts between domains, of
    losses, counts and norm inside, and one more there to agree, made six, besides the buckets."""
    stores = [HashStore() for _ in range(4)]

    def work(group: WorkerGroup) -> tuple[list[str], StepResult]:
        rank = Rank(group, stores, has_domain=True)
        return rank.noted, rank.step()

    buckets = 1
    for noted, result in together(4, work):
        assert noted == ["replicas"] * (buckets + 1) + ["domain", "replicas", "domain"]
        assert (result.count, result.agreed.save) == (8, True)


def test_domains_and_workers_alone_find_the_same() -> None:
    stores = [HashStore() for _ in range(4)]
    alone = together(4, lambda group: Rank(group, stores, has_domain=False).step())
    ranks = together(4, lambda group: Rank(group, stores, has_domain=True).step())
    assert {(one.loss, one.count) for one in alone} == {(ranks[0].loss, 8)}
    assert {one.loss for one in ranks} == {alone[0].loss}
    assert len({one.grad_norm for one in ranks}) == 1


@pytest.mark.parametrize("at", range(3))
def test_no_worker_commits_unless_every_all_reduce_succeeded(at: int) -> None:
    """The collectives between domains, one after the other, fail on one rank alone: gradients,
    losses, control."""
    stores = [HashStore() for _ in range(4)]
    ranks: dict[int, Rank] = {}

    def fail(number: int) -> None:
        if number == at:
            raise PeerLost("the communicator was aborted")

    def work(group: WorkerGroup) -> StepResult:
        rank = ranks[group.rank] = Rank(group, stores, has_domain=True)
        if group.rank == 3:
            rank.replicas.interfere = fail
        try:
            return rank.step()
        except PeerLost:
            domain, local = divmod(group.rank, 2)
            shut(stores[2 + local], domain, 2)  # as the watching thread does it
            raise

    found = outcomes(4, work)
    # At the control all-reduce itself the others may have the result; then their step is ahead,
    # and is taken back. A domain has it as a whole.
    assert all(isinstance(one, PeerLost) for one in found[2:])
    steps = [ranks[number].training.step for number in range(4)]
    assert steps[0] == steps[1]
    assert steps[2:] == [0, 0]
    if at < 2:
        assert steps == [0, 0, 0, 0]


def test_the_state_changes_only_once_its_copies_for_a_save_are_made() -> None:
    one, seen = training(), []

    class Noting(HostCopies):
        def wait(self) -> None:
            seen.append([weight.detach().clone() for weight in one.model.parameters()])

    one.saved_copies = Noting()
    before = [weight.detach().clone() for weight in one.model.parameters()]
    take_step(one, World(0, 1, 3, RankPlacement(torch.device("cpu"))), Flags())
    assert len(seen) == 1
    for was, at_wait, now in zip(before, seen[0], one.model.parameters(), strict=True):
        assert torch.equal(was, at_wait)
        assert not torch.equal(was, now)
