"""`make bench-restore`: a restore from an S3 server beside raw reads of the same bytes.

A state of 2 GB (weights and two moments of 170M parameters) is saved to versitygw on this machine.
Then, in turn: the newest checkpoint is restored, and its file is read without looking at it, by as
many threads in ranges of the same size, with Python's HTTP client, each into one buffer again and
again. The figure is the median of raw seconds over restore seconds, round by round. Beside it: raw
reads that keep what they read, in fresh memory as a restore does.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import botocore.session
import numpy as np
import s3fs
import torch
from botocore.config import Config

from bench.trial import prepare_set, resolved_trial
from headway.state.checkpoints import find_checkpoint
from headway.state.run_directory import RunDirectory
from headway.state.store import NUM_REQUESTS
from headway.state.stored_file import READ_BYTES
from headway.train.restore import restore_newest
from headway.train.trial import Trial
from support.s3 import VERSION, credentials, s3_server

ROUNDS = int(os.environ.get("ROUNDS", "9"))
TARGET = 0.7

# 23 layers of 7.1M and an embedding of 4096 x 768: 166M parameters, 2.0 GB with the moments.
RUN_FILE = """\
version: 1
name: bench
model:
  type: gpt2
  config: {n_layer: 23, n_head: 12, n_embd: 768, n_positions: 64, vocab_size: 4096}
data: {train: set, sequence_length: 32}
batch: {global: 2, micro: 2}
train_for: 1000000 steps
storage: s3://bucket/runs
track: []
evaluation: {every: 1000000 steps}
checkpoint: {every: 1000000 steps}
"""


def main() -> int:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as scratch:
        folder = Path(scratch)
        with s3_server(folder / "s3") as port:
            os.environ |= {**credentials(port), "XDG_CACHE_HOME": str(folder / "cache")}
            (folder / "run.yaml").write_text(RUN_FILE)
            prepare_set(folder, 200_000, 4096)
            trial = Trial(resolved_trial(folder))
            trial.advance()
            assert trial.run.saver.save_now(trial.run.training, None)
            rounds, size = _rounds(trial)
            trial.close()
    ratios = [one["raw"] / one["restore"] for one in rounds]
    keeping = [one["raw_kept"] / one["restore"] for one in rounds]
    figure = statistics.median(ratios)
    line = {
        "name": "restore",
        "figure": round(figure, 3),
        "target": TARGET,
        "pass": figure >= TARGET,
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "figure_beside_kept": round(statistics.median(keeping), 3),
        "seconds": {kind: [round(one[kind], 2) for one in rounds] for kind in rounds[0]},
        "gigabytes": round(size / 1e9, 3),
        "requests": NUM_REQUESTS,
        "versions": {
            "torch": torch.__version__,
            "s3fs": s3fs.__version__,
            "botocore": botocore.__version__,
            "versitygw": VERSION,
        },
    }
    print(json.dumps(line))
    return 0


def _rounds(trial: Trial) -> tuple[list[dict[str, float]], int]:
    """Seconds of each kind of reading in each round, and the size of the file."""
    directory, training = trial.run.directory, trial.run.training
    found, manifest = find_checkpoint(directory)
    ((name, stored),) = manifest.files.items()
    file, rounds = f"{found.folder}/{name}", []
    for number in range(ROUNDS + 1):
        seconds = {
            "raw": _timed(lambda: _read_raw(directory, file, stored.size, keeps=False)),
            "restore": _timed(
                lambda: restore_newest(
                    training, directory, trial.run.chain, trial.world, trial.run.journal
                )
            ),
            "raw_kept": _timed(lambda: _read_raw(directory, file, stored.size, keeps=True)),
        }
        print(f"round {number}/{ROUNDS}: {seconds}", file=sys.stderr)
        rounds.append(seconds)
    return rounds[1:], stored.size  # the first one warms up


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _read_raw(directory: RunDirectory, name: str, size: int, keeps: bool) -> None:
    config = Config(signature_version="s3v4")
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    client = botocore.session.get_session().create_client(
        "s3", endpoint_url=endpoint, config=config
    )
    key = directory.store.location(name).removeprefix("s3://bucket/")
    url = urlsplit(client.generate_presigned_url("get_object", {"Bucket": "bucket", "Key": key}))

    kept = np.empty(size if keeps else 0, dtype=np.uint8).data

    def read_share(number: int) -> int:
        connection = http.client.HTTPConnection(url.netloc, timeout=60)
        buffer = memoryview(bytearray(READ_BYTES))
        total = 0
        for start in range(number * READ_BYTES, size, NUM_REQUESTS * READ_BYTES):
            last = min(start + READ_BYTES, size) - 1
            headers = {"Range": f"bytes={start}-{last}"}
            connection.request("GET", f"{url.path}?{url.query}", headers=headers)
            answer = connection.getresponse()
            assert answer.status == 206, answer.status
            place = kept[start : last + 1] if keeps else buffer[: last + 1 - start]
            while count := answer.readinto(place):
                total += count
                place = place[count:]
        connection.close()
        return total

    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        assert sum(pool.map(read_share, range(NUM_REQUESTS))) == size


if __name__ == "__main__":
    sys.exit(main())
