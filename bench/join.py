"""`make bench-join`: one of four workers lacks a state of 1 GB and gets it from the other three,
and as it was before: by a broadcast to all. Seconds that the three wait, and bytes that are sent.

Four processes, gloo over the loopback interface, and the state of a real AdamW. Both ways take
turns in the same processes. The figure is the median over rounds of the seconds of the hand-over
over those of the broadcast. Sent bytes are what each process has written (`/proc/self/io`).
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import torch
import xxhash
from torch import nn
from torch.distributed import FileStore  # type: ignore[attr-defined]

from headway.spec.run_file import GuardConfig, OptimizerConfig
from headway.train import heal
from headway.train.collectives import WorkerGroup
from headway.train.gradient_all_reduce import GradientReducer
from headway.train.heal import ChosenState, choose_state, hand_over_state
from headway.train.loss_guard import LossGuard
from headway.train.optim import make_moments, make_optimizer
from headway.train.precision import LossScale
from headway.train.safetensors_file import DTYPES
from headway.train.state_tensors import state_tensors
from headway.train.step import Training
from headway.train.weight_copies import WeightCopies
from support.together import group_of

ROUNDS = int(os.environ.get("ROUNDS", "9"))
LAYERS = int(os.environ.get("LAYERS", "12"))
WORKERS, NEWCOMER = 4, 3
WIDTH = 768
TARGET_SECONDS, TARGET_BYTES = 0.5, 1.05
CHUNK_BYTES = 2**25


def main() -> int:
    context = get_context("spawn")
    pipes = [context.Pipe() for _ in range(WORKERS)]
    with tempfile.TemporaryDirectory() as scratch:
        processes = [
            context.Process(target=_work, args=(rank, Path(scratch) / "store", pipes[rank][1]))
            for rank in range(WORKERS)
        ]
        for process in processes:
            process.start()
        ours = [ours for ours, _ in pipes]
        state_bytes, *_ = [pipe.recv() for pipe in ours]

        def turn(way: str) -> tuple[float, float]:
            """Seconds that a holder waits, and what is sent in sizes of the state."""
            for pipe in ours:
                pipe.send(way)
            answers = [pipe.recv() for pipe in ours]
            waited = statistics.median(seconds for seconds, _ in answers[:NEWCOMER])
            return waited, sum(sent for _, sent in answers) / state_bytes

        rounds = []
        for number in range(ROUNDS + 1):
            order = ("broadcast", "handed") if number % 2 else ("handed", "broadcast")
            found = {way: turn(way) for way in order}
            print(f"round {number}/{ROUNDS}: {found}", file=sys.stderr)
            rounds.append(found)
        for pipe, process in zip(ours, processes, strict=True):
            pipe.send("end")
            process.join(30)
    del rounds[0]  # warms up
    ratios = [one["handed"][0] / one["broadcast"][0] for one in rounds]
    sent = max(one["handed"][1] for one in rounds)
    figure = statistics.median(ratios)
    line = {
        "name": "bench-join",
        "figure": round(figure, 3),
        "target": TARGET_SECONDS,
        "pass": figure <= TARGET_SECONDS and sent <= TARGET_BYTES,
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "sent_over_state": {
            "handed": round(sent, 4),
            "broadcast": round(max(one["broadcast"][1] for one in rounds), 4),
            "target": TARGET_BYTES,
        },
        "seconds": {way: [round(one[way][0], 2) for one in rounds] for way in rounds[0]},
        "gigabytes": round(state_bytes / 1e9, 3),
        "versions": {"torch": torch.__version__},
    }
    print(json.dumps(line))
    return 0


def _work(rank: int, store: Path, pipe: Connection) -> None:
    torch.set_num_threads(1)
    group = WorkerGroup(group_of(cast(Any, FileStore(str(store), WORKERS)), rank, WORKERS))
    training = _training()
    held = [*state_tensors(training.model, training.optimizer)]
    layout = [[one.name, DTYPES[one.local.dtype], list(one.local.shape)] for one in held]
    pipe.send(sum(one.local.nbytes for one in held))
    del held
    ways: dict[str, Callable[[], object]] = {
        "handed": lambda: _handed(training, group),
        "broadcast": lambda: _broadcast(training, group, layout),
    }
    while (asked := pipe.recv()) != "end":
        if rank == NEWCOMER:
            training.optimizer.state.clear()
            if asked == "handed":  # a newcomer makes them before it asks to join
                make_moments(training.optimizer)
        group.all_gather(torch.zeros(1))
        began, written = time.perf_counter(), _written()
        ways[asked]()
        group.all_gather(torch.zeros(1))
        pipe.send((time.perf_counter() - began, _written() - written))


def _training() -> Training:
    """12 layers of 7.1M parameters: 85M, 1.02 GB with the moments."""
    torch.manual_seed(1)
    layers = [nn.Linear(WIDTH, 4 * WIDTH) for _ in range(LAYERS)]
    layers += [nn.Linear(4 * WIDTH, WIDTH) for _ in range(LAYERS)]
    layers += [nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS)]
    model = nn.Sequential(*layers, *(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = make_optimizer(OptimizerConfig(), model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    nothing = cast(Any, None)
    return Training(
        resolved=nothing,
        total_steps=100,
        model=model,
        optimizer=optimizer,
        objective=nothing,
        feed=nothing,
        scale=LossScale("fp32"),
        guard=LossGuard(GuardConfig()),
        gradient_reducer=GradientReducer([]),
        copies=WeightCopies(model, "fp32", is_sharded=False),
        step=1,
    )


def _handed(training: Training, group: WorkerGroup) -> None:
    """As a generation begins."""
    held = (-1, -1) if group.rank == NEWCOMER else (1, 0)
    choice = choose_state(training, group, held, kind=0)
    assert choice == ChosenState(1, 0, (0, 1, 2), (NEWCOMER,), 0, (0,) * 4)
    hand_over_state(training, group, choice, [])


def _broadcast(training: Training, group: WorkerGroup, layout: list[list[Any]]) -> None:
    """What was done before: to all, chunk by chunk, and whoever has it drops it."""
    is_source, is_receiver = group.rank == 0, group.rank == NEWCOMER
    tensors = []
    if is_receiver:
        tensors = [one.local for one in heal._tensors_to_fill(training, layout)]
    elif is_source:
        tensors = [one.local for one in state_tensors(training.model, training.optimizer)]
    flat = [tensor.view(-1).view(torch.uint8) for tensor in tensors]
    num_bytes = torch.tensor([sum(map(len, flat))])
    group.broadcast(num_bytes, 0)
    buffer = torch.empty(CHUNK_BYTES + 8, dtype=torch.uint8)
    for begin in range(0, int(num_bytes), CHUNK_BYTES):
        chunk = buffer[: min(CHUNK_BYTES, int(num_bytes) - begin) + 8]
        if is_source:
            at = 0
            for part in _parts(flat, begin, begin + len(chunk) - 8):
                chunk[at : at + len(part)] = part
                at += len(part)
            chunk[-8:] = _checksum(chunk[:-8])
        group.broadcast(chunk, 0)
        if is_receiver:
            assert torch.equal(chunk[-8:], _checksum(chunk[:-8]))
            at = 0
            for part in _parts(flat, begin, begin + len(chunk) - 8):
                part[:] = chunk[at : at + len(part)]
                at += len(part)


def _parts(tensors: list[torch.Tensor], begin: int, end: int) -> Iterator[torch.Tensor]:
    """Of the bytes [begin, end) of all tensors, one after the other."""
    at = 0
    for tensor in tensors:
        first, last = max(begin - at, 0), min(end - at, len(tensor))
        if first < last:
            yield tensor[first:last]
        at += len(tensor)


def _checksum(content: torch.Tensor) -> torch.Tensor:
    digest = xxhash.xxh3_64_digest(memoryview(content.numpy().data))
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)


def _written() -> int:
    facts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(facts["wchar"])


if __name__ == "__main__":
    sys.exit(main())
