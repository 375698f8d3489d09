"""Ray Train with an elastic group: DDP, a batch that the workers divide by their rank, and a
checkpoint as often as is best for the time between faults. Arguments: the number of workers, and
the seconds between faults."""

from __future__ import annotations

import sys
import time
from typing import Any

import ray
import ray.train
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from bench.faults.trainee import FOLDER

FIRST_SAVE = 10
"""At this step a save and the steps before it are measured."""
RESIZE_SECONDS = 2.0
"""Default: 60."""


def loop(config: dict[str, Any]) -> None:
    import tempfile
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from ray.train import Checkpoint
    from ray.train.torch import prepare_model

    from bench.faults.order import BATCH
    from bench.faults.trainee import (
        best_interval,
        keep_interval,
        make_model,
        mean_loss,
        note,
        share_of_step,
    )

    torch.set_num_threads(1)
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    model, step, every = make_model(), 0, FIRST_SAVE
    optimizer = torch.optim.AdamW(model.parameters())
    if found := ray.train.get_checkpoint():
        with found.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt")
        step, every = state["step"], state["every"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    started = torch.tensor([time.time_ns()])
    dist.broadcast(started, 0)  # the same for all workers of one start
    replicated = prepare_model(model)

    def save() -> None:
        if rank:
            ray.train.report({"step": step})
            return
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"step": step, "every": every, **parts}, Path(folder) / "state.pt")
            ray.train.report({"step": step}, checkpoint=Checkpoint.from_directory(folder))

    times = []
    while True:
        step += 1
        epoch, numbers, rows = share_of_step(step, rank, world)
        optimizer.zero_grad()
        # DDP divides the sum by the number of workers.
        (mean_loss(replicated, rows) * (len(rows) * world / BATCH)).backward()
        optimizer.step()
        note(step, int(started), rank, epoch, numbers)
        times.append(time.perf_counter())
        if step == FIRST_SAVE and len(times) == FIRST_SAVE:
            began = time.perf_counter()
            save()
            step_seconds = (times[-1] - times[0]) / (FIRST_SAVE - 1)
            seconds = time.perf_counter() - began
            steps = torch.tensor([best_interval(seconds, step_seconds, config["fault_seconds"])])
            dist.broadcast(steps, 0)
            every = int(steps)
            if rank == 0:
                keep_interval(every)
        elif step % every == 0:
            save()


def main() -> None:
    workers, fault_seconds = int(sys.argv[1]), float(sys.argv[2])
    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
    TorchTrainer(
        loop,
        train_loop_config={"fault_seconds": fault_seconds},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=(1, workers), elastic_resize_monitor_interval_s=RESIZE_SECONDS
        ),
        run_config=RunConfig(
            name="faults",
            storage_path=str(FOLDER / "store"),
            failure_config=FailureConfig(max_failures=-1),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()


if __name__ == "__main__":
    main()
