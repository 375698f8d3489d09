"""Ray Train with its TorchftConfig: one replica group for each worker, which Ray starts again.
Arguments: the number of workers, the lighthouse's heartbeat timeout and gloo's timeout."""

from __future__ import annotations

import sys
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2.torch.torchft_config import TorchftConfig

from bench.faults.trainee import FOLDER


def loop(config: dict[str, Any]) -> None:
    import ray.train
    import torch

    from bench.faults.torchft_parts import Replica

    torch.set_num_threads(1)
    rank = ray.train.get_context().get_world_rank()
    Replica(f"faults_{rank}", config["gloo_seconds"], quorum_retries=10).train_by_rank()


def main() -> None:
    workers, heartbeat_milliseconds, join_milliseconds, gloo_seconds = map(int, sys.argv[1:])
    ray.init(num_cpus=workers + 1, include_dashboard=False, log_to_driver=False)
    lighthouse = {
        "min_replicas": 1,
        "join_timeout_ms": join_milliseconds,
        "quorum_tick_ms": 100,
        "heartbeat_timeout_ms": heartbeat_milliseconds,
    }
    TorchTrainer(
        loop,
        train_loop_config={"gloo_seconds": gloo_seconds},
        torch_config=TorchftConfig(lighthouse_kwargs=lighthouse, backend="gloo"),
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            name="faults",
            storage_path=str(FOLDER / "store"),
            failure_config=FailureConfig(max_failures=-1),
        ),
    ).fit()


if __name__ == "__main__":
    main()
