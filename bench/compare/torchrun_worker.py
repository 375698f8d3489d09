"""A worker under torchrun's elastic agent: plain DDP that starts from the newest checkpoint."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.compare.model import BATCH, make_model, mean_loss, note, save, saved, share_of_batch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model, step = make_model(), 0
optimizer = torch.optim.AdamW(model.parameters())
if state := saved():
    step = state["step"]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
replicated = DistributedDataParallel(model)
while True:
    step += 1
    rows = share_of_batch(step, rank, world)
    optimizer.zero_grad()
    # DDP takes the mean over workers, and one has 6 rows where others have 5.
    (mean_loss(replicated, rows) * len(rows) * world / BATCH).backward()
    optimizer.step()
    # A process belongs to one world: torchrun starts all of them again at every change.
    note(step, rank, world, generation=os.getpid())
    if rank == 0:
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        save(step, {"step": step, **parts})
