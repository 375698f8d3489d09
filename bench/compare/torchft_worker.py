"""A replica group of one worker under torchft, put together as in torchft's own DDP example.

Its arguments are gloo's timeout and how often a quorum is asked for again. A group has its own
share of the batch, left out while it is away.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.checkpointing.pg_transport import PGTransport

from bench.compare.model import NODE, make_model, mean_loss, note, save, saved, share_of_batch

model = make_model()
inner = torch.optim.AdamW(model.parameters())


def state() -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": inner.state_dict()}


def load(state: dict[str, Any]) -> None:
    model.load_state_dict(state["model"])
    inner.load_state_dict(state["optimizer"])


gloo_seconds, quorum_retries = map(int, sys.argv[1:])
group = ProcessGroupGloo(timeout=timedelta(seconds=gloo_seconds))
transport = PGTransport(group, timeout=timedelta(seconds=10), device=torch.device("cpu"))
manager = Manager(
    pg=group,
    min_replica_size=1,
    load_state_dict=load,
    state_dict=state,
    replica_id=f"compare_{NODE}",
    timeout=timedelta(seconds=30),
    checkpoint_transport=transport,
    quorum_retries=quorum_retries,
)
if found := saved():
    load(found)
    manager.load_state_dict(found["manager"])
replicated = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, inner)
while True:
    before = manager.current_step()
    optimizer.zero_grad()  # asks for a quorum
    mean_loss(replicated, share_of_batch(before + 1, NODE, 3)).backward()
    optimizer.step()  # or not, if a sum failed
    step, rank = manager.current_step(), manager.participating_rank()
    if step > before:
        note(step, rank, manager.num_participants(), generation=manager._quorum_id)
        if rank == 0:
            save(step, {**state(), "manager": manager.state_dict()})
