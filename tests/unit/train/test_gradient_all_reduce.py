"""Gradients over several replicas are the sums that one process would have. Everything is made of
small integers here, so that sums are exact in any order and any division."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from headway.errors import PeerLost, RunFailed
from headway.plan.batch_division import share_of
from headway.train import gradient_all_reduce as replicate
from headway.train.collectives import PendingCollective, WorkerGroup
from headway.train.gradient_all_reduce import GradientReducer
from support.together import Died, outcomes, together

SIZE = 4
Sums = dict[str, torch.Tensor]


class Branching(nn.Module):
    """Tied weights, several dtypes, and parts that only some micro-batches use, or none."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, SIZE)
        self.inner = nn.Linear(SIZE, SIZE)
        self.sometimes = nn.Linear(SIZE, SIZE, bias=False)
        self.brain = nn.Parameter(torch.zeros(SIZE, dtype=torch.bfloat16))
        self.precise = nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))
        self.number = nn.Parameter(torch.zeros(()))
        self.turned = nn.Parameter(torch.zeros(SIZE, 3).t())
        self.never = nn.Parameter(torch.zeros(3))
        self.frozen = nn.Parameter(torch.ones(SIZE), requires_grad=False)
        self.head = nn.Linear(SIZE, 5, bias=False)
        self.head.weight = self.embedding.weight
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randint(-1, 2, parameter.shape, generator=generator))

    def forward(self, number: int) -> torch.Tensor:
        hidden = self.embedding(torch.tensor([number % 5, (number + 1) % 5])) * self.frozen
        hidden = self.inner(hidden) + self.number
        if number % 3 == 1:
            hidden = hidden + self.sometimes(hidden)
        loss = self.head(hidden).sum() * (number % 2 + 1)
        loss = loss + (self.brain * (number % 4)).sum() + (self.precise * number).sum()
        return loss + (self.turned * torch.arange(SIZE)).sum()


class Replica:
    def __init__(self, model: nn.Module | None = None) -> None:
        self.model: Any = model or Branching()
        self.gradient_reducer = GradientReducer(list(self.model.parameters()))

    def step(
        self,
        num_micro_batches: int,
        group: WorkerGroup | None,
        before_last: Callable[[], None] = lambda: None,
    ) -> Sums | PeerLost:
        """One step's gradients, as training goes about it."""
        rank, size = (0, 1) if group is None else (group.rank, group.size)
        share = share_of(num_micro_batches, size, 1, rank)
        self.gradient_reducer.begin(group)
        for index in range(share.num_passes):
            # A worker without a micro-batch of its own runs an empty pass.
            loss = self.model(share.first + index) * int(index < share.count)
            if index + 1 == share.num_passes:
                before_last()
                self.gradient_reducer.last_micro_batch()
            loss.backward()
        return self.gradient_reducer.finish(torch.zeros(1)) or self.sums()

    def sums(self) -> Sums:
        trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        # Without one an optimizer would pass the parameter by: no weight decay, no momentum.
        assert [name for name, p in trained.items() if p.grad is None] == []
        return {name: p.grad.clone() for name, p in trained.items() if p.grad is not None}


def expected(num_micro_batches: int, model: nn.Module | None = None) -> Sums:
    """By one process, without any of ours."""
    model = model or Branching()
    for number in range(num_micro_batches):
        model(number).backward()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in trained.items()}


def require_equal(found: Any, sums: Sums) -> None:
    assert isinstance(found, dict), found
    assert found.keys() == sums.keys()
    for name, gradient in sums.items():
        assert found[name].dtype == gradient.dtype, name
        assert torch.equal(found[name], gradient), name


@pytest.fixture(params=[1, 100, replicate.BUCKET_BYTES])
def bucket_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A message for each parameter, for a few of them, and for as many as have the same dtype."""
    monkeypatch.setattr(replicate, "BUCKET_BYTES", request.param)
    return int(request.param)


MIB = 2**20
SMALL, LARGE = 400 * MIB, 30_000 * MIB


@pytest.mark.parametrize(
    ("num_replicas", "gradient_bytes", "expected_bytes", "on_accelerator"),
    [
        (1, LARGE, 8 * MIB, 64 * MIB),
        (2, LARGE, 8 * MIB, 64 * MIB),
        (32, LARGE, 8 * MIB, 64 * MIB),
        (33, LARGE, 16 * MIB, 64 * MIB),
        (64, LARGE, 16 * MIB, 64 * MIB),
        (999, LARGE, 256 * MIB, 256 * MIB),
        (1000, LARGE, 256 * MIB, 256 * MIB),
        (5000, LARGE, 256 * MIB, 256 * MIB),
        (2, SMALL, 8 * MIB, 50 * MIB),
        (1000, SMALL, 50 * MIB, 50 * MIB),
        (1000, 20 * MIB, 8 * MIB, 8 * MIB),
    ],
)
def test_buckets_of_larger_groups_are_larger(
    num_replicas: int, gradient_bytes: int, expected_bytes: int, on_accelerator: int
) -> None:
    """So that messages around the ring are not small; and not so large that nothing is sent before
    the backward pass ends. On accelerators they are large in any group."""
    assert replicate.bucket_bytes(num_replicas, gradient_bytes) == expected_bytes
    assert replicate.bucket_bytes(num_replicas, gradient_bytes, True) == on_accelerator


def test_a_group_of_another_size_divides_the_same_gradients_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also for a replica that was in a larger group before, beside one that was not."""
    for name, value in (("BUCKET_BYTES", 40), ("SMALL_RING", 1), ("LEAST_BUCKETS", 1)):
        monkeypatch.setattr(replicate, name, value)
    replicas = [Replica() for _ in range(3)]

    def work(group: WorkerGroup) -> tuple[Sums | PeerLost, int]:
        watched = Watched(group)
        found = replicas[group.rank].step(5, cast(Any, watched))
        return found, len(watched.begun)

    of_three = together(3, work)
    replicas[1] = Replica()  # it has joined
    of_two, alone = together(2, work), together(1, work)
    for found, _ in (*of_three, *of_two, *alone):
        require_equal(found, expected(5))
    num_sums = [found[0][1] for found in (of_three, of_two, alone)]
    assert num_sums[0] < num_sums[1] < num_sums[2]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("num_micro_batches", [1, 2, 3, 8])
def test_sums_are_those_of_one_process(
    bucket_bytes: int, workers: int, num_micro_batches: int
) -> None:
    """With one micro-batch nobody uses `sometimes`, with two only the second of two workers."""
    replicas = [Replica() for _ in range(workers)]
    for _ in range(2):  # the second step begins with nothing of the first
        for found in together(
            workers, lambda group: replicas[group.rank].step(num_micro_batches, group)
        ):
            require_equal(found, expected(num_micro_batches))


def test_alone_it_is_the_same() -> None:
    replica = Replica()
    require_equal(replica.step(5, None), expected(5))
    require_equal(replica.step(3, None), expected(3))


def test_a_step_begins_with_zeros_and_alone_with_nothing() -> None:
    replicas = [Replica(), Replica()]

    def begin(group: WorkerGroup) -> Sums:
        replica = replicas[group.rank]
        replica.step(4, group)
        replica.gradient_reducer.begin(group)
        assert all(p.grad is not None for p in replica.model.parameters() if p.requires_grad)
        return replica.sums()

    for sums in together(2, begin):
        assert not any(gradient.any() for gradient in sums.values())
    for replica in replicas:
        replica.gradient_reducer.begin(None)
        assert all(parameter.grad is None for parameter in replica.model.parameters())


def test_members_come_and_go_between_steps() -> None:
    replica, other = Replica(), Replica()
    pair = [replica, other]
    require_equal(replica.step(5, None), expected(5))
    for found in together(2, lambda group: pair[group.rank].step(4, group)):
        require_equal(found, expected(4))
    require_equal(replica.step(5, None), expected(5))
    pair.reverse()
    for found in together(2, lambda group: pair[group.rank].step(5, group)):
        require_equal(found, expected(5))


def test_gradients_that_somebody_has_replaced_or_dropped_are_sent_all_the_same() -> None:
    """As the user's own code may do it, and as the optimizer does between two worlds."""
    replicas = [Replica(), Replica()]

    def work(group: WorkerGroup) -> Sums | PeerLost:
        replica = replicas[group.rank]
        weight = replica.model.inner.weight

        def replace() -> None:
            assert weight.grad is not None
            weight.grad = weight.grad.clone()

        replica.step(6, group)
        for parameter in replica.model.parameters():
            parameter.grad = None
        return replica.step(6, group, before_last=replace)

    for found in together(2, work):
        require_equal(found, expected(6))


class Recomputing(nn.Module):
    """A layer that is used twice, recomputed in the backward pass each time, and one used once."""

    def __init__(self, use_reentrant: bool, is_shared: bool) -> None:
        super().__init__()
        self.use_reentrant, self.is_shared = use_reentrant, is_shared
        self.first = nn.Linear(SIZE, SIZE)
        self.shared = nn.Linear(SIZE, SIZE)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) % 3 - 1)

    def forward(self, number: int) -> torch.Tensor:
        hidden = torch.full((2, SIZE), number + 1.0, requires_grad=True)
        for layer in (self.first, self.shared, *[self.shared] * self.is_shared):
            hidden = checkpoint(layer, hidden, use_reentrant=self.use_reentrant)
        return hidden.sum()


@pytest.mark.parametrize(
    ("use_reentrant", "is_shared"), [(False, False), (False, True), (True, False)]
)
def test_recomputed_layers_have_the_sums_of_one_process(
    bucket_bytes: int, use_reentrant: bool, is_shared: bool
) -> None:
    def model() -> Recomputing:
        return Recomputing(use_reentrant, is_shared)

    replicas = [Replica(model()) for _ in range(2)]
    for _ in range(2):
        for found in together(2, lambda group: replicas[group.rank].step(6, group)):
            require_equal(found, expected(6, model()))


@pytest.mark.parametrize("num_micro_batches", [2, 6])
def test_a_gradient_that_comes_twice_in_one_pass_ends_the_run(
    bucket_bytes: int, num_micro_batches: int
) -> None:
    """Reentrant checkpointing runs a backward pass for each use of a layer: after the first, its
    gradient looks complete, and would be sent without the rest."""

    def work(group: WorkerGroup) -> Sums | PeerLost:
        return Replica(Recomputing(use_reentrant=True, is_shared=True)).step(
            num_micro_batches, group
        )

    for found in outcomes(2, work):
        assert isinstance(found, RunFailed), found
        assert not isinstance(found, PeerLost), "another start would end in the same way"
        assert "twice in one backward pass" in found.message
        assert found.hint is not None
        assert "use_reentrant=False" in found.hint


class Watched:
    """A worker's group, and how many all-reduces it has started."""

    def __init__(self, group: WorkerGroup, interfere: Callable[[int], None] = lambda number: None):
        self.rank, self.size = group.rank, group.size
        self.is_over = False
        self.begun: list[int] = []
        """Of how many numbers each is."""
        self._group, self._interfere = group, interfere

    def start_all_reduce(self, tensor: torch.Tensor) -> PendingCollective:
        self._interfere(len(self.begun))
        self.begun.append(tensor.numel())
        return self._group.start_all_reduce(tensor)


def test_they_are_sent_while_backward_runs_and_on_all_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replicate, "BUCKET_BYTES", 1)

    def work(group: WorkerGroup) -> tuple[int, int, list[int]]:
        replica, watched = Replica(), Watched(group)
        counts: list[int] = []
        finish = replica.gradient_reducer.finish

        def noting(sums: torch.Tensor) -> PeerLost | None:
            counts.append(len(watched.begun))
            return finish(sums)

        replica.gradient_reducer.finish = noting  # type: ignore[method-assign]
        replica.step(4, cast(Any, watched), before_last=lambda: counts.append(len(watched.begun)))
        return counts[0], counts[1], watched.begun

    (before, during, sent), (_, _, sent_there) = together(2, work)
    assert before == 0, "what earlier micro-batches add is not complete"
    assert during > 0
    assert sent == sent_there
    *sent, of_losses = sent
    assert of_losses == 1, "the sums of losses go with the last bucket"
    assert sum(sent) == sum(p.numel() for p in Branching().parameters() if p.requires_grad)


@pytest.mark.parametrize("dies_at", [0, 1, 3])
def test_a_lost_peer_is_said_and_the_step_can_be_taken_again(
    bucket_bytes: int, dies_at: int
) -> None:
    replicas = [Replica() for _ in range(3)]

    def die(number: int) -> None:
        if number == dies_at:
            raise Died

    def work(group: WorkerGroup) -> Sums | PeerLost:
        watched = Watched(group, die) if group.rank == 2 else group
        return replicas[group.rank].step(5, cast(Any, watched))

    *others, died = outcomes(3, work)
    assert isinstance(died, Died) or (bucket_bytes > 100 and dies_at == 3), "there are fewer sums"
    if isinstance(died, Died):
        for lost in others:
            assert isinstance(lost, PeerLost), "returned, and nothing was raised in backward"
    # The survivors, with the same data under another division; then one of them alone.
    for found in together(2, lambda group: replicas[group.rank].step(5, group)):
        require_equal(found, expected(5))
    require_equal(replicas[0].step(5, None), expected(5))


def test_a_transport_that_fails_at_once_does_not_end_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gloo tells it when it is waited for; others refuse to begin."""
    monkeypatch.setattr(replicate, "BUCKET_BYTES", 1)

    def refuse(number: int) -> None:
        if number == 2:
            raise PeerLost("the communicator was aborted")

    def work(group: WorkerGroup) -> tuple[Any, int]:
        watched = Watched(group, refuse)
        return Replica().step(4, cast(Any, watched)), len(watched.begun)

    for lost, begun in together(2, work):
        assert isinstance(lost, PeerLost)
        assert begun == 2, "nothing more is sent into a group that is over"


class Late:
    """A transport whose sums are given up by the worker, and arrive all the same."""

    rank, size, is_over = 0, 2, False

    def __init__(self) -> None:
        self.given_up: list[torch.Tensor] = []

    def start_all_reduce(self, tensor: torch.Tensor) -> PendingCollective:
        def give_up() -> None:
            raise PeerLost("the generation is over")

        self.given_up.append(tensor)
        return PendingCollective(give_up)

    def arrive(self) -> None:
        for tensor in self.given_up:
            tensor.fill_(1e9)


def test_a_sum_that_was_given_up_and_arrives_late_does_not_touch_the_next_attempt(
    bucket_bytes: int,
) -> None:
    replicas, late = [Replica(), Replica()], Late()
    lost = replicas[0].step(4, cast(Any, late))
    assert isinstance(lost, PeerLost)
    assert late.given_up
    require_unharmed(replicas, late)


def require_unharmed(replicas: list[Replica], late: Late) -> None:
    """The step is taken again. What the first replica gave up arrives before its sums are read."""

    def work(group: WorkerGroup) -> Sums | PeerLost:
        found = replicas[group.rank].step(4, group)
        if group.rank == 0:
            late.arrive()
            return replicas[0].sums()
        return found

    for found in together(2, work):
        require_equal(found, expected(4))


class Breaking:
    """A transport whose first sum fails, and that notes which of the others were abandoned."""

    rank, size, is_over = 0, 2, False

    def __init__(self) -> None:
        self.begun, self.abandoned = 0, 0

    def start_all_reduce(self, tensor: torch.Tensor) -> PendingCollective:
        self.begun += 1
        return PendingCollective(self._fail, self._abandon)

    def _fail(self) -> None:
        raise PeerLost("another worker went away")

    def _abandon(self) -> None:
        self.abandoned += 1


def test_sums_behind_one_that_failed_are_abandoned_and_not_waited_for(bucket_bytes: int) -> None:
    """A group that is freed while a sum is on its way in it waits for it, for minutes."""
    replica, breaking = Replica(), Breaking()
    assert isinstance(replica.step(4, cast(Any, breaking)), PeerLost)
    assert breaking.abandoned == breaking.begun - 1 > 0


class Ending(Late):
    """A transport of a generation that is over after some sums were started."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after, self.abandoned = after, 0

    @property
    def is_over(self) -> bool:  # type: ignore[override]
        return len(self.given_up) >= self.after

    def start_all_reduce(self, tensor: torch.Tensor) -> PendingCollective:
        self.given_up.append(tensor)
        return PendingCollective(lambda: None, self._abandon)

    def _abandon(self) -> None:
        self.abandoned += 1


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_backward_pass_of_a_generation_that_is_over_is_left(
    monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """At the next gradient, not after the pass. What was started is abandoned, and does not touch
    the next attempt when it arrives."""
    monkeypatch.setattr(replicate, "BUCKET_BYTES", 1)
    replicas, ending = [Replica(), Replica()], Ending(after)
    with pytest.raises(PeerLost, match="the generation is over"):
        replicas[0].step(4, cast(Any, ending))
    assert ending.abandoned == len(ending.given_up) == after
    require_unharmed(replicas, ending)
