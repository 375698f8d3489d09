"""Training state as named rows: every row is written once, by whoever holds it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from headway.train.state_tensors import StateTensor, rows_to_write, state_tensors, tied_names
from headway.train.world import RankPlacement, World


def worker(
    rank: int, nodes: int, ranks_per_node: int, *, restarts: bool = False, sharded_by: int = 0
) -> World:
    """`sharded_by`: ranks that hold one copy of the model; 0: each holds it whole."""
    size = sharded_by or ranks_per_node
    mesh: Any = object() if sharded_by else None
    return World(
        rank=rank,
        num_workers=nodes * ranks_per_node,
        generation=1,
        placement=RankPlacement(torch.device("cpu"), rank % size, size, mesh),
        ends_as_a_whole=restarts,
    )


def state_tensor(name: str, rows: int, start: int = 0, of: int | None = None) -> StateTensor:
    return StateTensor(name, (of or rows,), start, torch.zeros(rows), is_sharded=of is not None)


def num_bytes(share: list[StateTensor]) -> int:
    return sum(part.local.nbytes for part in share)


def require_each_row_once(held: list[StateTensor], by_rank: list[list[StateTensor]]) -> None:
    for tensor in held:
        parts = [part for share in by_rank for part in share if part.name == tensor.name]
        rows = [row for part in parts for row in range(part.start, part.start + part.rows)]
        assert sorted(rows) == list(range(tensor.shape[0]))
        assert parts, "a save names all tensors"


@given(
    sizes=st.lists(st.integers(0, 50), max_size=12),
    nodes=st.integers(1, 3),
    ranks=st.integers(1, 4),
    restarts=st.booleans(),
)
def test_what_all_hold_is_written_once(
    sizes: list[int], nodes: int, ranks: int, restarts: bool
) -> None:
    held = [state_tensor(f"w{index:02}", size) for index, size in enumerate(sizes)]
    by_rank = [
        rows_to_write(held, worker(rank, nodes, ranks, restarts=restarts))
        for rank in range(nodes * ranks)
    ]
    require_each_row_once(held, by_rank)
    writing = by_rank if restarts else by_rank[:ranks]
    assert not any(by_rank[len(writing) :]), "other nodes may be lost meanwhile"
    loads = [num_bytes(share) for share in writing]
    assert max(loads) - min(loads) <= 2 * 4, "half a row more or less at each end"


def test_one_tensor_with_half_of_the_bytes_is_divided_among_all_ranks() -> None:
    """Two nodes of two ranks, which all restart together."""
    held = [state_tensor("embedding", 4000), *(state_tensor(f"w{n}", 1000) for n in range(4))]
    loads = [num_bytes(rows_to_write(held, worker(n, 2, 2, restarts=True))) for n in range(4)]
    assert max(loads) <= 1.1 * min(loads)
    assert sum(loads) == num_bytes(held)
    live = [num_bytes(rows_to_write(held, worker(n, 2, 2))) for n in range(4)]
    assert live == [sum(loads) / 2, sum(loads) / 2, 0, 0], "only the leader's domain"


@pytest.mark.parametrize("num_copies", [1, 2, 3])
@pytest.mark.parametrize("shares", [[(0, 3), (3, 2)], [(0, 3), (3, 2), (5, 0)]])
def test_shards_are_divided_among_the_copies_that_have_them(
    num_copies: int, shares: list[tuple[int, int]]
) -> None:
    """Five rows over two ranks, and over three, of which the last holds none."""
    size = len(shares)
    by_rank = []
    for rank in range(num_copies * size):
        start, rows = shares[rank % size]
        shard = [state_tensor("w", rows, start, of=5), state_tensor("step", 1)]
        one = worker(rank, num_copies, size, restarts=True, sharded_by=size)
        by_rank.append(rows_to_write(shard, one))
    require_each_row_once([state_tensor("w", 5), state_tensor("step", 1)], by_rank)
    for rank, share in enumerate(by_rank):
        start, rows = shares[rank % size]
        assert all(start <= p.start < start + rows for p in share if p.name == "w")
        of_shard = [p.rows for one in by_rank[rank % size :: size] for p in one if p.name == "w"]
        assert not of_shard or max(of_shard) <= -(-rows // num_copies), "none has all of it"


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 2)
        self.head = nn.Linear(2, 4, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(2.0))


def test_names_of_the_state() -> None:
    model = Tied()
    assert tied_names(model) == {"head.weight"}
    optimizer = torch.optim.AdamW(model.parameters())
    before = {p.name for p in state_tensors(model, optimizer)}
    assert before == {"model/embedding.weight", "model/scale"}
    model.head(model.embedding(torch.tensor([1]))).sum().backward()
    optimizer.step()
    held = {p.name: p for p in state_tensors(model, optimizer)}
    assert set(held) == {
        "model/embedding.weight",
        "model/scale",
        "optimizer/embedding.weight/step",
        "optimizer/embedding.weight/exp_avg",
        "optimizer/embedding.weight/exp_avg_sq",
    }
    assert not any(p.is_sharded or p.local.requires_grad for p in held.values())
    scalar = held["model/scale"]
    assert (scalar.shape, scalar.rows) == ((), 1)
    whole = held["model/embedding.weight"]
    assert (whole.shape, whole.start, whole.rows) == ((4, 2), 0, 4)
    assert whole.local.data_ptr() == model.embedding.weight.data_ptr(), "a look, not a copy"


def test_names_do_not_depend_on_what_was_frozen() -> None:
    model = Tied()
    model.embedding.weight.requires_grad_(False)
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))])
    assert {p.name for p in state_tensors(model, optimizer)} == {
        "model/embedding.weight",
        "model/scale",
    }


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_division_is_the_same_on_every_rank_and_in_every_order(ranks: int) -> None:
    """They do not ask each other."""
    held = [state_tensor(name, size) for name, size in zip("edcba", (5, 5, 3, 3, 8), strict=True)]
    for rank in range(ranks):
        one = rows_to_write(held, worker(rank, 1, ranks))
        other = rows_to_write(held[::-1], worker(rank, 1, ranks))
        assert [(p.name, p.start) for p in one] == [(p.name, p.start) for p in other]
