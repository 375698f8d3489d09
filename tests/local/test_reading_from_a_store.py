"""Training straight from an object store that is 20 ms away: no waiting, and the same losses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from headway.data.tiny_stories import stories
from headway.state.run_directory import RunDirectory
from support.commands import headway
from support.proxies import SlowProxy
from support.s3 import credentials, s3_server
from support.token_sets import copy_to, write_set
from support.workers import resolved_run, train

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

DELAY_SECONDS = 0.02
FAR = "s3://bucket/sets/stories"
STEPS = 96
WINDOW_STEPS = 16
"""Steps that read the same blocks. The first of them would wait for the store if nothing were
prefetched; the first of the run may."""
RUN_FILE = """\
version: 1
name: it
model: {type: gpt2, config: {n_layer: 2, n_head: 4, n_embd: 128, n_positions: 64, vocab_size: 256}}
data: {train: "TRAIN", validation: {held-out: "TRAIN"}, sequence_length: 64}
batch: {global: 16, micro: 8}
train_for: 96 steps
optimizer: {lr: 1e-3}
precision: fp32
seed: 3
threads: 1
track: []
evaluation: {every: 48 steps, sequences: 16}
checkpoint: {every: 1000 steps}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixing window is eight blocks with two requests each, since the loss mask is a file of its
    own."""
    return written(tmp_path_factory.mktemp("set"), block_tokens=2048, window_blocks=8)


def written(place: Path, **blocks: int) -> Path:
    """Bytes as tokens."""
    text = "\n\n".join(stories(300_000, seed=1)).encode()
    tokens = np.frombuffer(text, dtype=np.uint8)
    counts = tokens != ord("\n")
    write_set(place, [(tokens, counts)], vocab_size=256, shard_tokens=50_000, **blocks)
    return place


@contextmanager
def far_store(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowProxy]:
    with s3_server(place / "s3") as port, SlowProxy(port, DELAY_SECONDS) as proxy:
        for key, value in credentials(proxy.port).items():
            monkeypatch.setenv(key, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        yield proxy


def cached(place: Path) -> list[Path]:
    return list((place / "cache" / "headway" / "blocks").glob("*/[0-9]*.*"))


def write_run(place: Path, train: str) -> Path:
    place.mkdir()
    (place / "run.yaml").write_text(RUN_FILE.replace("TRAIN", train))
    return place


@pytest.mark.long("half a minute at the speed of a slow store")
def test_a_run_reads_from_a_store_without_waiting_for_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = {"train": folder, "held-out": folder}
    near = train(resolved_run(write_run(tmp_path / "near", str(folder)), sets))
    with far_store(tmp_path, monkeypatch) as proxy:
        copy_to(FAR, folder)
        before = proxy.num_requests
        place = write_run(tmp_path / "far", FAR)
        headway("run", folder=place, seconds=120)
        assert proxy.num_requests - before > 96, "it was read through the proxy"
    far = RunDirectory.open(place / "runs" / "it")
    steps = far.steps()
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert [line["loss"] for line in steps] == [line["loss"] for line in near.steps()]
    losses = [[line["loss"] for line in run.evaluations.read()[0]] for run in (near, far)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2
    need_blocks = steps[WINDOW_STEPS::WINDOW_STEPS]
    waited = [line["step"] for line in need_blocks if line["data_seconds"] > DELAY_SECONDS]
    print(f"steps that waited as long as for the store: {waited} of {len(need_blocks)}")
    assert len(waited) <= 1, "one may meet a machine that stands still"
    assert len(cached(tmp_path)) >= STEPS * 1024 // 2048, "one file for each block that was read"
    assert os.listdir(tmp_path / "cache" / "headway" / "blocks" / "readers") == []


def test_workers_share_what_they_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of more blocks than one worker asks for at once, as those of real sets are."""
    folder = written(tmp_path / "set", block_tokens=256, window_blocks=64)
    short = ["train_for=40 steps"]
    near = train(resolved_run(write_run(tmp_path / "near", "unused"), {"train": folder}, 2, short))
    with far_store(tmp_path, monkeypatch) as proxy:
        copy_to(FAR, folder)
        place = write_run(tmp_path / "far", "unused")
        far = train(resolved_run(place, {"train": FAR}, 2, short))
        asked = proxy.num_ranges
    assert [line["loss"] for line in far.steps()] == [line["loss"] for line in near.steps()]
    blocks = len(cached(tmp_path))
    print(f"{asked} reads for {blocks} blocks")
    assert asked < 1.5 * 2 * blocks, "tokens and mask of each, and little of it twice"
