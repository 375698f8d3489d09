"""What the two loops with torchft share: a replica group of one worker, and how it recovers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.checkpointing.pg_transport import PGTransport

from bench.faults.order import BATCH
from bench.faults.trainee import load, make_model, mean_loss, note, save, share_of_step

SAVE_STEPS = 100
"""Of the model: other groups have it, as long as not all are lost."""


class Replica:
    """A model and its optimizer, whose gradients are summed over all replica groups."""

    def __init__(self, name: str, gloo_seconds: int, quorum_retries: int) -> None:
        self.model = make_model()
        self.inner = torch.optim.AdamW(self.model.parameters())
        group = ProcessGroupGloo(timeout=timedelta(seconds=gloo_seconds))
        self.manager = Manager(
            pg=group,
            min_replica_size=1,
            load_state_dict=self.load_state,
            state_dict=self.state,
            replica_id=name,
            timeout=timedelta(seconds=30),
            checkpoint_transport=PGTransport(
                group, timeout=timedelta(seconds=10), device=torch.device("cpu")
            ),
            quorum_retries=quorum_retries,
            rank=0,
            world_size=1,
        )
        if found := load("checkpoint"):
            self.load_state(found)
            self.manager.load_state_dict(found["manager"])
        self.replicated: nn.Module = DistributedDataParallel(self.manager, self.model)
        self.optimizer = Optimizer(self.manager, self.inner)

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.inner.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.inner.load_state_dict(state["optimizer"])

    def save_if_due(self) -> None:
        step = self.manager.current_step()
        if self.manager.participating_rank() == 0 and step % SAVE_STEPS == 0:
            save("checkpoint", {**self.state(), "manager": self.manager.state_dict()})

    def train_by_rank(self) -> None:
        """Train for ever. Those that take part in a step divide its batch among themselves."""
        manager = self.manager
        while True:
            self.optimizer.zero_grad()  # asks for a quorum
            parts, part = manager.num_participants(), manager.participating_rank()
            step = manager.current_step() + 1
            epoch, numbers, rows = share_of_step(step, part or 0, parts)
            # torchft divides the sum by the number of groups.
            (mean_loss(self.replicated, rows) * (len(rows) * parts / BATCH)).backward()
            self.optimizer.step()  # or not, if a sum failed
            if manager.current_step() == step and part is not None:
                note(step, manager._quorum_id, part, epoch, numbers)
                self.save_if_due()
