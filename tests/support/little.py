"""A training state of one worker that is as small as can be, and real all the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from headway.clock import SystemClock
from headway.spec.run_file import GuardConfig, RunFile
from headway.state.chain import Chain
from headway.state.run_directory import Journal, RunDirectory
from headway.train.host_copies import HostCopies
from headway.train.loss_guard import LossGuard
from headway.train.precision import LossScale
from headway.train.restore import restore_newest
from headway.train.save import CheckpointSaver
from headway.train.world import RankPlacement, World
from support.chains import LAUNCH, TIME, launched


def world_of_one(generation: int) -> World:
    return World(0, 1, generation, RankPlacement(torch.device("cpu")))


class Little:
    """A run of one worker on two small layers; `train` is what a Training is to saving."""

    def __init__(self, directory: RunDirectory, generation: int = 1, **facts: Any) -> None:
        run = RunFile(version=1, **{"seed": 3, **facts.get("run", {})})
        data = SimpleNamespace(digest=facts.get("data", "data"), location="prepared")
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
        self.train: Any = SimpleNamespace(
            resolved=SimpleNamespace(run=run, global_batch=8),
            model=model,
            optimizer=torch.optim.AdamW(model.parameters(), lr=0.1),
            feed=SimpleNamespace(set=data),
            scale=LossScale("fp16"),
            guard=LossGuard(GuardConfig()),
            saved_copies=HostCopies(),
            step=0,
            total_steps=100,
            committed_in=0,
        )
        self.directory = directory
        self.clock = facts.get("clock", SystemClock())
        self.world = facts.get("world") or world_of_one(generation)
        # Of the local copy: a journal in a store sends by itself, and would meet its troubles.
        self.journal = Journal(directory.here().events, self.clock)
        self.launch = facts.get("launch", LAUNCH)
        self.chain = Chain(directory, self.launch)
        sample = facts.get("sample", "all")
        self.saver = CheckpointSaver(directory, self.chain, self.journal, self.clock, sample)
        self.saver.begin(self.world)

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self.train.step += 1
            self.train.committed_in = self.world.generation
            inputs = torch.full((2, 4), float(self.train.step))
            loss = self.train.model(inputs).pow(2).sum()
            loss.backward()
            self.train.optimizer.step()
            self.train.optimizer.zero_grad()
            self.train.guard.record(loss.item(), None)
            self.train.scale.update(finite=self.train.step % 3 != 0)

    def save(self) -> None:
        self.saver.start(self.train, None)
        self.saver.wait()

    def restore(self) -> int | None:
        launched(self.directory, self.launch)
        manifest = restore_newest(self.train, self.directory, self.chain, self.world, self.journal)
        return None if manifest is None else manifest.step

    def begin(self) -> None:
        launched(self.directory, self.launch)
        self.chain.begin(self.world.generation, self.train.step, 1, TIME)

    def state(self) -> list[Any]:
        moments = [
            self.train.optimizer.state[parameter][key].clone()
            for parameter in self.train.model.parameters()
            for key in sorted(self.train.optimizer.state[parameter])
        ]
        weights = [p.detach().clone() for p in self.train.model.parameters()]
        scale = (self.train.scale.scale, self.train.scale.good_steps)
        return [self.train.step, weights, moments, scale, self.train.guard.state()]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.directory.events.read()[0] if event["event"] == name]
