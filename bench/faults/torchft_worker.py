"""A replica group of one worker under torchft, put together as in torchft's own DDP example: its
DistributedSampler in a StatefulDataLoader, whose position is saved after every step.

Its arguments: number of the group and of all groups, gloo's timeout, and how often a quorum is
asked for again. A batch whose step fails is dropped, as in the example.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchft import (
    DistributedDataParallel,
    DistributedSampler,
    Manager,
    Optimizer,
    ProcessGroupGloo,
)
from torchft.checkpointing.pg_transport import PGTransport

from bench.faults.trainee import BATCH, RandomSamples, load, make_model, mean_loss, note, save

SAVE_STEPS = 100
"""Of the model: other groups have it, as long as not all are lost."""
part, num_parts, gloo_seconds, quorum_retries = map(int, sys.argv[1:])

model = make_model()
inner = torch.optim.AdamW(model.parameters())
samples, epoch = RandomSamples(), 0
sampler = DistributedSampler(
    samples, replica_rank=part, num_replica_groups=num_parts, group_rank=0, num_replicas=1
)
loader = StatefulDataLoader(samples, batch_size=BATCH // num_parts, sampler=sampler)


def state() -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": inner.state_dict()}


def load_state(state: dict[str, Any]) -> None:
    model.load_state_dict(state["model"])
    inner.load_state_dict(state["optimizer"])


group = ProcessGroupGloo(timeout=timedelta(seconds=gloo_seconds))
manager = Manager(
    pg=group,
    min_replica_size=1,
    load_state_dict=load_state,
    state_dict=state,
    replica_id=f"faults_{part}",
    timeout=timedelta(seconds=30),
    checkpoint_transport=PGTransport(
        group, timeout=timedelta(seconds=10), device=torch.device("cpu")
    ),
    quorum_retries=quorum_retries,
)
if found := load("checkpoint"):
    load_state(found)
    manager.load_state_dict(found["manager"])
if found := load(f"loader-{part}"):
    epoch = found["epoch"]
    loader.load_state_dict(found["loader"])
replicated = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, inner)
while True:
    sampler.set_epoch(epoch)
    for numbers, rows in loader:
        before = manager.current_step()
        optimizer.zero_grad()  # asks for a quorum
        mean_loss(replicated, rows).backward()
        optimizer.step()  # or not, if a sum failed
        step, rank = manager.current_step(), manager.participating_rank()
        if step > before and rank is not None:  # else its gradients were not part of the sum
            note(step, manager._quorum_id, part, epoch, numbers)
        save(f"loader-{part}", {"epoch": epoch, "loader": loader.state_dict()})
        if rank == 0 and step > before and step % SAVE_STEPS == 0:
            save("checkpoint", {**state(), "manager": manager.state_dict()})
    epoch += 1
