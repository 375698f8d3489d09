"""`make bench-heartbeats`: how late heartbeats of real training processes are on a machine with
several times as much to do as it has cores. SECONDS=150. Ends with one line of JSON; with OUT=FILE
the distribution is written there, which `make bench-silence` reads.

Real: WORKERS=8 processes that train a small GPT-2 with an all-reduce over gloo in each step, each
with the thread and the session of a worker; BURNERS=8 others that only count. Their heartbeats are
sent ten times as often as in a run, for ten times as many figures. What receives them has
precedence over all of it, so that its own pauses are not counted.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from headway.member.coordinator.rules import Rules
from headway.member.protocol.wire import HEARTBEAT_SECONDS
from support.small_coordinator import KEY, RUN, SmallCoordinator
from support.stolen_time import Stopwatch
from support.waiting import wait_for

SECONDS = float(os.environ.get("SECONDS", "150"))
WORKERS = int(os.environ.get("WORKERS", "8"))
BURNERS = int(os.environ.get("BURNERS", "8"))
OUT = os.environ.get("OUT")
INTERVAL_SECONDS = 0.1
START_SECONDS = 600.0
"""All import torch at once, beside those that only count."""

WORKER = """
import sys
from pathlib import Path
from headway.member.worker.session import Session, SessionTimeouts
address, key, run, folder, rank, workers, interval = sys.argv[1:]
folder, rank, workers = Path(folder), int(rank), int(workers)
timeouts = SessionTimeouts(heartbeat_seconds=float(interval), deaf_seconds=1e9)
session = Session(address, bytes.fromhex(key), run, f"worker-{rank}", timeouts=timeouts)
import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel
torch.set_num_threads(1)
dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=workers)
config = GPT2Config(n_layer=2, n_head=4, n_embd=128, n_positions=64, vocab_size=1000)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.zeros((2, 64), dtype=torch.long)
step = 0
while not (folder / "over").exists():
    model(input_ids=tokens, labels=tokens).loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    (folder / f"step-{rank}").write_text(str(step))
"""
BURNER = "while True: pass"


def main() -> int:
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        coordinator = stack.enter_context(SmallCoordinator())
        started = []
        for words in [*(_worker(coordinator, folder, rank) for rank in range(WORKERS))] + [
            [BURNER]
        ] * BURNERS:
            process = subprocess.Popen(
                [sys.executable, "-c", *words], preexec_fn=_as_others, stdout=subprocess.DEVNULL
            )
            started.append(process)
            stack.callback(process.wait)
            stack.callback(process.kill)
        steps = [folder / f"step-{rank}" for rank in range(WORKERS)]
        wait_for("steps", lambda: all(_step(path) >= 3 for path in steps), START_SECONDS)
        first, watch, began = min(map(_step, steps)), Stopwatch(), time.monotonic()
        time.sleep(SECONDS)
        assert all(process.poll() is None for process in started)
        seconds, stolen = time.monotonic() - began, time.monotonic() - began - watch.seconds
        num_steps = min(map(_step, steps)) - first
        load = os.getloadavg()[0]
        delays = sorted(_delays(coordinator, began))
    counts = Counter(round(1000 * late) for late in delays)
    found = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}",
        "workers": WORKERS,
        "burners": BURNERS,
        "load_average": round(load, 1),
        "seconds": round(seconds, 1),
        "steps": num_steps,
        "stolen_seconds": round(stolen, 2),
        "interval_seconds": INTERVAL_SECONDS,
        "heartbeats": len(delays),
        "late_milliseconds": {str(late): counts[late] for late in sorted(counts)},
    }
    if OUT:
        Path(OUT).write_text(json.dumps(found) + "\n")
    target = Rules().suspected_seconds - HEARTBEAT_SECONDS
    line = {
        "name": "bench-heartbeats",
        "figure": round(delays[-1], 3),
        "target": target,
        "pass": delays[-1] < target,
        "spread": {
            **{name: found[name] for name in found if name != "late_milliseconds"},
            **{f"p{part}": _quantile(delays, part / 100) for part in (50, 90, 99, 99.9)},
        },
    }
    print(json.dumps(line))
    return 0


def _worker(coordinator: SmallCoordinator, folder: Path, rank: int) -> list[str]:
    place = [coordinator.address, KEY.hex(), RUN, str(folder)]
    return [WORKER, *place, str(rank), str(WORKERS), str(INTERVAL_SECONDS)]


def _as_others() -> None:
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def _step(path: Path) -> int:
    try:
        return int(path.read_text() or 0)
    except FileNotFoundError:
        return 0


def _delays(coordinator: SmallCoordinator, since: float) -> list[float]:
    """Seconds by which each heartbeat came late."""
    heard: dict[str, list[float]] = defaultdict(list)
    for at, worker, _ in list(coordinator.heartbeats):
        if at >= since:
            heard[worker].append(at)
    return [
        max(0.0, after - before - INTERVAL_SECONDS)
        for times in heard.values()
        for before, after in pairwise(times)
    ]


def _quantile(ordered: list[float], part: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 3)


if __name__ == "__main__":
    sys.exit(main())
