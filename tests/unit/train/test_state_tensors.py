"""Training state as named rows: every row is written once, by whoever holds it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from headway.train.state_tensors import StateTensor, state_tensors, tensors_to_write, tied_names
from headway.train.world import RankPlacement, World


def worker(rank: int, nodes: int, ranks_per_node: int) -> World:
    return World(
        rank=rank,
        num_workers=nodes * ranks_per_node,
        generation=1,
        placement=RankPlacement(torch.device("cpu"), rank % ranks_per_node, ranks_per_node),
    )


def state_tensor(name: str, rows: int, start: int = 0, of: int | None = None) -> StateTensor:
    return StateTensor(name, (of or rows,), start, torch.zeros(rows), is_sharded=of is not None)


@given(
    sizes=st.lists(st.integers(0, 50), max_size=12),
    nodes=st.integers(1, 3),
    ranks=st.integers(1, 4),
)
def test_what_all_hold_is_written_once_by_the_first_node(
    sizes: list[int], nodes: int, ranks: int
) -> None:
    held = [state_tensor(f"w{index}", size) for index, size in enumerate(sizes)]
    by_rank = [tensors_to_write(held, worker(rank, nodes, ranks)) for rank in range(nodes * ranks)]
    names = sorted(p.name for share in by_rank for p in share)
    assert names == sorted(p.name for p in held)
    assert not any(by_rank[ranks:]), "other nodes write nothing: they may be lost meanwhile"
    loads = [sum(p.local.nbytes for p in share) for share in by_rank[:ranks]]
    largest = max((p.local.nbytes for p in held), default=0)
    assert max(loads) - min(loads) <= largest, "none has much more to write than another"


def test_shards_are_written_by_whoever_holds_them() -> None:
    """Five rows over two ranks, and over three, of which the last holds none."""
    for shares in ([(0, 3), (3, 2)], [(0, 3), (3, 2), (5, 0)]):
        starts = []
        for rank, (start, rows) in enumerate(shares):
            mine = tensors_to_write(
                [state_tensor("w", rows, start, of=5)], worker(rank, 1, len(shares))
            )
            starts += [(p.start, p.rows) for p in mine]
        assert starts == [(0, 3), (3, 2)]


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
        one = tensors_to_write(held, worker(rank, 1, ranks))
        other = tensors_to_write(held[::-1], worker(rank, 1, ranks))
        assert [p.name for p in one] == [p.name for p in other]
