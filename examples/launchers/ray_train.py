"""A run under Ray Train. In a folder that all machines see, with run.yaml: python ray_train.py

Ray calls `worker` once a GPU, and calls all of them again when one has failed."""

from __future__ import annotations

import os
import subprocess
import sys

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def worker(config: dict[str, str]) -> None:
    # Ray has set RANK and the others. It serves the store at MASTER_PORT, as torchrun does.
    environment = {**os.environ, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    command = [sys.executable, "-m", "headway.train", "run.yaml"]
    subprocess.run(command, cwd=config["folder"], env=environment, check=True)


if __name__ == "__main__":
    TorchTrainer(
        worker,
        train_loop_config={"folder": os.getcwd()},
        torch_config=TorchConfig(backend="gloo"),  # between these functions, which only wait
        scaling_config=ScalingConfig(num_workers=16, use_gpu=True),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=100)),
    ).fit()
