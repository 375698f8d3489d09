"""A worker under torchrun's elastic agent: DDP, a DistributedSampler in a StatefulDataLoader, and a
checkpoint as often as is best for the time between faults, which is its argument."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from bench.faults.order import BATCH
from bench.faults.trainee import (
    RandomSamples,
    best_interval,
    keep_interval,
    load,
    make_model,
    mean_loss,
    note,
    save,
)

FIRST_SAVE = 10
"""At this step a save and the steps before it are measured."""
FAULT_SECONDS = float(sys.argv[1])

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
started = torch.tensor([time.time_ns()])
dist.broadcast(started, 0)  # the same for all workers of one start

model, step, epoch, every = make_model(), 0, 0, FIRST_SAVE
optimizer = torch.optim.AdamW(model.parameters())
samples = RandomSamples()
sampler: DistributedSampler = DistributedSampler(samples, num_replicas=world, rank=rank)
loader = StatefulDataLoader(samples, batch_size=BATCH // world, sampler=sampler)
if state := load("checkpoint"):
    step, epoch, every = state["step"], state["epoch"], state["every"]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loaders"][rank])
replicated = DistributedDataParallel(model)


def save_all() -> None:
    """One file with the position of every rank's loader."""
    loaders: list[dict] = [{} for _ in range(world)]
    dist.gather_object(loader.state_dict(), loaders if rank == 0 else None)
    if rank == 0:
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        numbers = {"step": step, "epoch": epoch, "every": every}
        save("checkpoint", {**numbers, **parts, "loaders": loaders})


def measured_interval(step_seconds: float) -> int:
    began = time.perf_counter()
    save_all()
    seconds = time.perf_counter() - began
    steps = torch.tensor([best_interval(seconds, step_seconds, FAULT_SECONDS)])
    dist.broadcast(steps, 0)
    return int(steps)


times = []
while True:
    sampler.set_epoch(epoch)
    for numbers, rows in loader:
        optimizer.zero_grad()
        mean_loss(replicated, rows).backward()
        optimizer.step()
        step += 1
        note(step, int(started), rank, epoch, numbers)
        times.append(time.perf_counter())
        if step == FIRST_SAVE:
            every = measured_interval((times[-1] - times[0]) / (FIRST_SAVE - 1))
            if rank == 0:
                keep_interval(every)
        if step % every == 0:
            save_all()
    epoch += 1
