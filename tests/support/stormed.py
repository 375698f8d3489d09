"""The run that a storm goes over, and what must be true of it afterwards."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from headway.clock import SystemClock
from headway.data.tiny_stories import stories
from headway.state.run_directory import RunDirectory
from support.live import LiveRun
from support.preparing import prepare_set
from support.storm import Storm
from support.waiting import wait_for
from support.workers import resolved_run, train

# A batch that nothing divides: 15 micro-batches, steps of 0.1 to 0.2 s on two cores. Masked, so
# that the number of targets tells which samples a step has seen. The rate does not depend on the
# end.
RUN_FILE = """\
version: 1
name: storm
model:
  type: bert
  config: {num_hidden_layers: 2, num_attention_heads: 2, hidden_size: 32, intermediate_size: 64,
           max_position_embeddings: 32, vocab_size: 448}
objective: masked
data: {train: set, sequence_length: 16}
batch: {global: 29, micro: 2}
train_for: 10000000 steps
optimizer: {lr: 1e-3}
schedule: {type: constant, warmup: 5 steps}
precision: fp32
seed: 3
threads: 1
track: []
evaluation: {every: 10000000 steps, metrics: {call: "digests:none"}}
checkpoint: {every: 50 steps}
code: {path: code}
"""
# Each worker's own code: it notes what the optimizer made of every step, weights and own state.
DIGESTS = """\
import os
from pathlib import Path

import torch
import xxhash
from torch.optim.optimizer import register_optimizer_step_post_hook

folder = Path(__file__).parents[1] / "digests"
folder.mkdir(exist_ok=True)
file = open(folder / str(os.getpid()), "w", buffering=1)


def note(optimizer, *_):
    digest, steps = xxhash.xxh3_128(), set()
    for group in optimizer.param_groups:
        for weights in group["params"]:
            state = optimizer.state.get(weights, {})
            for tensor in (weights, *(state[name] for name in sorted(state))):
                here = getattr(tensor, "_local_tensor", tensor).detach()
                digest.update(here.reshape(-1).view(torch.uint8).numpy())
            steps.update({int(state["step"])} if state else ())
    (step,) = steps
    print(step, digest.hexdigest(), file=file)


def none(model, batch):
    return {}


register_optimizer_step_post_hook(note)
"""
TOLERANCE = 1e-5
LEFT_SECONDS = 10.0
SLACK = 4
"""Threads and files of a worker that may come and go: a group has 3 and 4."""
SHOWN = 5
"""Steps that are wrong."""


def write_run(folder: Path) -> Path:
    """A run file, and the set it trains on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text("\n\n".join(stories(60_000, seed=1)))
    prepare_set(["text.txt"], folder / "set", folder, vocab=400, window_tokens=16)
    (folder / "run.yaml").write_text(RUN_FILE)
    (folder / "code").mkdir()
    (folder / "code" / "digests.py").write_text(DIGESTS)
    return folder


def undisturbed(folder: Path, steps: int) -> RunDirectory:
    """The same run by one process that nobody touches."""
    overrides = ["name=alone", f"train_for={steps} steps"]
    return train(resolved_run(folder, {"train": folder / "set"}, 1, overrides), seconds=600)


def problems_of(storm: Storm, alone: RunDirectory) -> list[str]:
    """All that is wrong with a run that was stopped after its storm; `alone` was not disturbed."""
    run = storm.run
    problems = [
        *_ledger_problems(run),
        *_step_problems(run, alone),
        *_state_problems(storm),
        *_rests(storm),
    ]
    if run.process.returncode != 6:
        problems.append(f"it ended with code {run.process.returncode}, not 6:\n{run.output}")
    if len(run.events("started")) != 1:
        problems.append("it went back to a checkpoint, though a node had its state")
    for name in ("failed", "save_failed", "skipped"):
        problems += [f"{name}: {event}" for event in run.events(name)[:SHOWN]]
    saved = run.events("saved")
    if not saved or saved[-1]["step"] != run.step:
        problems.append(f"the last save is not of step {run.step}: {saved[-1:]}")
    return problems


def _step_problems(run: LiveRun, alone: RunDirectory) -> list[str]:
    """Each step: the targets and tokens of its samples, and the loss."""
    lines, resolved = run.directory.steps(), run.directory.read_spec()
    tokens = resolved.global_batch * resolved.run.data.sequence_length
    problems = []
    for line, targets in zip(lines, expected_targets(run.directory, len(lines)), strict=True):
        if (line["targets"], line["tokens"]) != (targets, line["step"] * tokens):
            problems.append(f"step {line['step']} has not {targets} targets: {line}")
    for mine, its in zip(lines, alone.steps(), strict=False):
        is_near = abs(mine["loss"] - its["loss"]) <= TOLERANCE
        if not is_near or mine["targets"] != its["targets"]:
            problems.append(f"step {mine['step']} is {mine}, and undisturbed it is {its}")
    more = len(problems) - SHOWN
    return problems[:SHOWN] + ([f"and {more} more such steps"] if more > 0 else [])


def expected_targets(directory: RunDirectory, steps: int) -> list[int]:
    """Of each step, by one process that reads the data and does nothing else."""
    import torch

    from headway.data.reading.token_set import ReadOptions
    from headway.plan.batch_division import share_of
    from headway.train.batches import IGNORED
    from headway.train.feed import open_feed

    resolved = directory.read_spec()
    reading = ReadOptions(rank=0, trusted=True, warn=print, clock=SystemClock())
    feed = open_feed(resolved, resolved.train_set, torch.device("cpu"), reading)
    share = share_of(feed.num_micro_batches, 1, 1, 0)
    counts = [
        sum(int((batch.targets != IGNORED).sum()) for batch in feed.step(step, share))
        for step in range(steps)
    ]
    feed.close()
    return counts


def _ledger_problems(run: LiveRun) -> list[str]:
    try:
        run.require_exact()
    except AssertionError as error:
        return [f"the ledger is not exact: {error}"]
    return []


def _state_problems(storm: Storm) -> list[str]:
    """Whether all who finished had the same weights and the same state of the optimizer after
    every step since the storm, the last one included, bit by bit."""
    run = storm.run
    problems = [f"other weights: {event}" for event in run.events("diverged")]
    expected = set(range(storm.calm_step + 1, run.step + 1))
    by_rank: dict[int, dict[int, set[str]]] = {}
    for (node, rank), pid in storm.finishers.items():
        found = _digests(run.folder, pid)
        if missing := expected - found.keys():
            problems.append(f"node {node} has not taken steps {sorted(missing)[:SHOWN]}")
        for step in expected & found.keys():
            by_rank.setdefault(rank, {}).setdefault(step, set()).add(found[step])
    for rank, steps in by_rank.items():
        if odd := sorted(step for step, digests in steps.items() if len(digests) > 1):
            problems.append(f"ranks {rank} of the nodes had other states after {odd[:SHOWN]}")
    return problems


def _digests(folder: Path, pid: int) -> dict[int, str]:
    """By step; of one that was done again, the last."""
    path = folder / "digests" / str(pid)
    lines = path.read_text().splitlines() if path.exists() else []
    return {int(step): digest for step, digest in (line.split() for line in lines)}


def _rests(storm: Storm) -> list[str]:
    """Processes after the end, and threads and files in workers that saw many generations."""
    problems = [
        f"workers have {storm.ended[what]} {what} after the storm, and had {before} before it"
        for what, before in storm.begun.items()
        if storm.ended[what] > before + SLACK
    ]
    try:
        wait_for("its processes to end", lambda: not left_behind(storm), LEFT_SECONDS)
    except AssertionError as error:
        problems.append(f"{error}: {left_behind(storm)}")
    return problems


def left_behind(storm: Storm) -> list[str]:
    """Processes that have to do with the run."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            words = " ".join(process.cmdline())
            if storm.run.directory.location in words or process == storm.coordinator:
                found.append(f"{process.pid} {process.status()} {words}")
    return found
