"""The systems under test, by the names that SYSTEMS= takes."""

from __future__ import annotations

from bench.faults.agents import Torchft, TorchftDefault, TorchftSampler, Torchrun
from bench.faults.drivers import Monarch, Ray, RayTorchft
from bench.faults.headway_run import Headway, HeadwayRestart
from bench.faults.system import System

SYSTEMS: dict[str, type[System]] = {
    "headway": Headway,
    "headway-restart": HeadwayRestart,
    "torchrun": Torchrun,
    "torchft": Torchft,
    "torchft-sampler": TorchftSampler,
    "torchft-default": TorchftDefault,
    "ray": Ray,
    "ray-torchft": RayTorchft,
    "monarch": Monarch,
}
NAMES = {
    "headway": "Headway, `live`",
    "headway-restart": "Headway, `restart`",
    "torchrun": "torchrun",
    "torchft": "torchft",
    "torchft-sampler": "torchft, its sampler",
    "torchft-default": "torchft, default timeouts",
    "ray": "Ray Train, elastic",
    "ray-torchft": "Ray Train, `TorchftConfig`",
    "monarch": "Monarch",
}
"""As readers know them."""
