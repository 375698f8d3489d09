"""A run that has something for every metric: written as launcher and workers write it."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from headway.clock import Clock, SystemClock, stamp
from headway.launch.run_metrics import RunMetrics
from headway.state.run_directory import Journal, RunDirectory
from headway.state.run_history import HistoryReader
from headway.state.spent_money import BILLED
from support.chains import saved_at


def scraped_run(folder: Path, clock: Clock | None = None, *, name: str = "wiki") -> RunDirectory:
    """Two nodes of two workers; one was lost and replaced, and a checkpoint was saved."""
    clock = clock or SystemClock()
    directory = RunDirectory.create(folder / name, clock)
    launcher, worker = Journal(directory.launcher, clock), Journal(directory.events, clock)
    launcher.note("launched", generation=1, nodes=2, workers=4)
    seconds = {"import": 1.0, "build": 2.0, "load": 0.0}
    worker.note("started", total_steps=100, workers=4, generation=1, device="cpu", seconds=seconds)
    for step in (1, 2):
        train(directory, clock, step)
    worker.note("save_failed", step=2, reason="the disk is full")
    saved_at(directory, 2)
    worker.note("saved", step=2, checkpoint="step-00000002.g000001", seconds=0.1)
    for local_rank in (0, 1):
        launcher.note("lost", node=1, local_rank=local_rank, how="no longer answers (it-1-a)")
    launcher.note("replaced", node=1, pod="it-1-b", seconds=18.0)
    launcher.note("coordinator_lost", how="signal 9")
    rate = {"node": "cpu:2", "capacity": "on_demand", "usd_per_hour": 0.4}
    launcher.note(BILLED, budget_usd=None, rates=[{**rate, "nodes": 1, "seconds": 3600.0}])
    return directory


def train(directory: RunDirectory, clock: Clock, step: int) -> None:
    """The run has committed this step, and evaluated."""
    record = {"step": step, "generation": 1, "writer": "w", "time": stamp(clock.now())}
    record |= {"seconds": 1.0, "data_seconds": 0.25, "loss": 4.0 - step, "tokens_per_second": 512.0}
    directory.metrics.append(record | {"lr": 1e-3, "grad_norm": 0.5})
    directory.evaluations.append(
        {"step": step, "generation": 1, "writer": "w", "set": "held-out", "loss": 4.5 - step}
    )


def scrape(directory: RunDirectory, num_training: int | None = None) -> list[Sample]:
    """What Prometheus reads of it."""
    text = generate_latest(
        RunMetrics(HistoryReader(directory), SystemClock(), num_training)
    ).decode()
    return samples_of(text)


def samples_of(text: str) -> list[Sample]:
    families = text_string_to_metric_families(text)
    return [sample for family in families for sample in family.samples]
