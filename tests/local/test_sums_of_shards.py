"""Two copies of a model, each sharded over two processes, sum their gradients while the last
backward pass runs. Weights are small integers, so that sums are exact in any order."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from headway.errors import PeerLost
from headway.train import gradient_all_reduce
from headway.train.collectives import PendingCollective, WorkerGroup
from headway.train.fsdp import parameters_by_unit, shard_model
from headway.train.gradient_all_reduce import GradientReducer
from headway.train.models import BuiltModel, Ends
from headway.train.undisturbed import undisturbed
from headway.train.world import World, WorldShape, form_world
from support.launches import Launches
from support.workers import PROCESSES

pytestmark = pytest.mark.local

COPIES, RANKS = 2, 2
NUM_BLOCKS, WIDTH = 3, 4
Sums = dict[str, torch.Tensor]


class Block(nn.Module):
    """Three rows over two ranks are divided unevenly, and of one row the second rank has none."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 3, bias=False)
        self.outer = nn.Linear(3, WIDTH)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.scale * self.outer(self.inner(hidden))


class Scale(nn.Module):
    """In the place of a final norm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * self.weight


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(NUM_BLOCKS)])
        self.norm = Scale()
        self.head = nn.Linear(WIDTH, 5, bias=False)
        self.never = Scale()
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randint(-1, 2, parameter.shape, generator=generator))

    def forward(self, one: Pass) -> torch.Tensor:
        hidden = self.embedding(torch.tensor([one.number % 5, (one.number + 1) % 5]))
        for number, block in enumerate(self.blocks):
            if number != one.unused_block:
                hidden = block(hidden)
        return self.head(self.norm(hidden)).sum() * one.weight


@dataclass(frozen=True)
class Pass:
    number: int
    weight: int = 1
    """0: a pass without a micro-batch of its own."""
    unused_block: int | None = None


@dataclass(frozen=True)
class Case:
    """The passes of each rank in a step."""

    name: str
    passes: list[list[Pass]]
    bucket_bytes: int = 1


def _passes(first: int, count: int, **kwargs: Any) -> list[Pass]:
    return [Pass(first + number, **kwargs) for number in range(count)]


CASES = [
    Case("equal", [_passes(3 * rank, 2) for rank in range(4)]),
    Case("one bucket", [_passes(3 * rank, 2) for rank in range(4)], bucket_bytes=2**20),
    Case("unequal", [_passes(0, 3), _passes(3, 3), _passes(6, 1), _passes(7, 1)]),
    Case("empty passes", [_passes(0, 1), _passes(1, 1), *[_passes(0, 1, weight=0)] * 2]),
    Case(
        "a block unused by a copy",
        [_passes(0, 1), _passes(1, 1), *[_passes(2, 1, unused_block=1)] * 2],
    ),
    Case("a block unused by all", [_passes(rank, 2, unused_block=2) for rank in range(4)]),
    Case("a block used earlier only", [[Pass(1), Pass(2, unused_block=0)] for _ in range(4)]),
    Case("equal again", [_passes(rank, 1) for rank in range(4)], bucket_bytes=60),
]
BREAKS_AT = 3
"""Number of sums that are started before the other copy dies, or the generation is over."""


def expected(case: Case) -> Sums:
    """The sums of one process, without anything of ours."""
    model = Network()
    for one in (one for passes in case.passes for one in passes):
        model(one).backward()
    named = model.named_parameters()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in named}


@dataclass
class Watched:
    """A rank's group, and the sizes of the sums that it has started."""

    group: WorkerGroup
    before_start: Callable[[int], None] = lambda number: None
    sizes: list[int] = field(default_factory=list)
    ends_after: int | None = None
    """Number of sums after which the generation is over."""

    @property
    def size(self) -> int:
        return self.group.size

    @property
    def is_over(self) -> bool:
        return len(self.sizes) == self.ends_after

    def start_all_reduce(self, tensor: torch.Tensor) -> PendingCollective:
        self.before_start(len(self.sizes))
        self.sizes.append(tensor.numel())
        return self.group.start_all_reduce(tensor)


@dataclass
class Copy:
    """This process's rank of a copy."""

    world: World
    model: Any
    reducer: GradientReducer

    def step(self, passes: list[Pass], replicas: Watched | None) -> PeerLost | None:
        """As training goes about it."""
        self.reducer.begin(cast(Any, replicas))
        for one in passes:
            loss = self.model(one)
            if one is passes[-1]:
                self.reducer.last_micro_batch()
            loss.backward()
        return self.reducer.finish(torch.zeros(1))

    def sums(self) -> Sums:
        return {name: p.grad.full_tensor() for name, p in self.model.named_parameters()}


def _work(rank: int, store: str, answers: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        world = form_world(
            rank=rank,
            shape=WorldShape(COPIES, RANKS, copy_nodes=1),
            device=torch.device("cpu"),
            store=Path(store),
            generation=1,
        )
        model = Network()
        ends = Ends(model.embedding, [model.norm, model.head])
        built = BuiltModel(model, list(model.blocks), None, is_transformers=True, ends=ends)
        shard_model(built, world.placement, "fp32")
        copy = Copy(world, model, GradientReducer(parameters_by_unit(model)))
        assert world.replicas is not None
        found: dict[str, Any] = {}
        with undisturbed(model, world.device):
            found["evaluated"] = model(Pass(1)).item()
        found["is sharded"] = all(isinstance(p, DTensor) for p in model.parameters())
        for case in CASES:
            gradient_all_reduce.BUCKET_BYTES = case.bucket_bytes
            watched = Watched(world.replicas)
            with Launches() as launches:
                lost = copy.step(case.passes[rank], watched)
            found[case.name] = (lost, watched.sizes, launches.log, _lists(copy.sums()))
        over = Watched(world.replicas, ends_after=BREAKS_AT)
        lost = copy.step(CASES[0].passes[rank], over)
        again = copy.step(CASES[0].passes[rank], Watched(world.replicas))
        found["over"] = (type(lost).__name__, len(over.sizes), again, _lists(copy.sums()))
        answers.put((rank, found))
        dist.barrier()
        _lose_the_other_copy(copy, world.replicas, answers)
    except BaseException:  # noqa: BLE001 - whatever it is, the test must show it
        answers.put((rank, traceback.format_exc()))


def _lose_the_other_copy(copy: Copy, replicas: WorkerGroup, answers: Any) -> None:
    """The second copy dies in its last backward pass; the first one takes the step once more."""
    gradient_all_reduce.BUCKET_BYTES = 1
    rank = copy.world.rank

    def die(number: int) -> None:
        if rank >= RANKS and number == BREAKS_AT:
            os._exit(0)

    if rank >= RANKS:
        answers.close()
        answers.join_thread()  # or what was put may never leave this process
        try:
            copy.step(_passes(2 * rank, 2), Watched(replicas, die))
        finally:
            os._exit(0)  # also where its other rank was faster
    lost = copy.step(_passes(2 * rank, 2), Watched(replicas))
    alone = copy.step(_passes(2 * rank, 2), None)
    answers.put((rank, (type(lost).__name__, alone, _lists(copy.sums()))))


def _lists(sums: Sums) -> dict[str, Any]:
    return {name: one.tolist() for name, one in sums.items()}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    """What each rank has to say, in its order."""
    queue = PROCESSES.Queue()
    store = str(tmp_path_factory.mktemp("sums") / "store")
    processes = [
        PROCESSES.Process(target=_work, args=(rank, store, queue), daemon=True)
        for rank in range(COPIES * RANKS)
    ]
    for process in processes:
        process.start()
    found: dict[int, list[Any]] = {rank: [] for rank in range(COPIES * RANKS)}
    try:
        for _ in range(COPIES * RANKS + RANKS):  # only the first copy survives
            rank, answer = queue.get(timeout=60)
            assert not isinstance(answer, str), f"rank {rank}: {answer}"
            found[rank].append(answer)
    finally:
        for process in processes:
            process.kill()
            process.join(10)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sums_are_those_of_one_process(answers: dict[int, list[Any]], case: Case) -> None:
    sums = _lists(expected(case))
    for rank in range(COPIES * RANKS):
        lost, sizes, _, found = answers[rank][0][case.name]
        assert lost is None
        assert found == sums
        other_copy = answers[(rank + RANKS) % (COPIES * RANKS)][0][case.name]
        assert sizes == other_copy[1], "both copies reduce the same buckets in the same order"


def test_after_an_evaluation_all_weights_are_sharded(answers: dict[int, list[Any]]) -> None:
    for rank in range(COPIES * RANKS):
        assert answers[rank][0]["is sharded"]
        assert answers[rank][0]["evaluated"] == Network()(Pass(1)).item()


def test_shards_are_summed_while_the_last_pass_still_scatters(
    answers: dict[int, list[Any]],
) -> None:
    for rank in range(COPIES * RANKS):
        _, sizes, log, _ = answers[rank][0]["equal"]
        reduces = [at for at, name in enumerate(log) if "allreduce" in name]
        scatters = [at for at, name in enumerate(log) if "reduce_scatter" in name]
        assert len(reduces) == len(sizes)
        # The head of the last pass, then each block, then the table.
        assert len(scatters) == 2 * (NUM_BLOCKS + 2)
        head, *blocks, table = scatters[len(scatters) // 2 :]
        assert head < reduces[0] < blocks[0]
        assert blocks[-1] < reduces[-4] < table


def test_a_lost_copy_is_said_and_the_step_can_be_taken_again(
    answers: dict[int, list[Any]],
) -> None:
    """Nothing is raised into the backward pass of FSDP2, whose units would be unusable."""
    passes = [one for rank in range(RANKS) for one in _passes(2 * rank, 2)]
    sums = _lists(expected(Case("", [passes])))
    for rank in range(RANKS):
        lost, alone, found = answers[rank][1]
        assert lost == "PeerLost"
        assert alone is None
        assert found == sums


def test_a_generation_that_is_over_is_said_after_the_pass(answers: dict[int, list[Any]]) -> None:
    """The other ranks of the copy are in the pass. Sums that were given up do not touch the next
    attempt."""
    for rank in range(COPIES * RANKS):
        lost, started, again, found = answers[rank][0]["over"]
        assert (lost, started, again) == ("PeerLost", BREAKS_AT, None)
        assert found == _lists(expected(CASES[0]))
