"""Two machines race for one run, and it stays one run: never two writers past a save, never
"finished" without a checkpoint of its own, and what counts is never deleted."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.state.ledger import verify_ledger
from headway.state.run_directory import RunDirectory
from support.killing import differing
from support.s3 import credentials, s3_server
from support.two_machines import Race

pytestmark = [pytest.mark.local, pytest.mark.chaos, pytest.mark.timeout(1500)]

ORDERS, FIRST_ORDER = int(os.environ.get("ORDERS", "8")), int(os.environ.get("FIRST_ORDER", "0"))


def test_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, int] = {}
    with s3_server(tmp_path / "s3") as port:
        for name, value in credentials(port).items():
            monkeypatch.setenv(name, value)
        for seed in range(FIRST_ORDER, FIRST_ORDER + ORDERS):
            race = Race(f"s3://bucket/{seed}", tmp_path / f"caches-{seed}")
            race.run(seed)
            try:
                race.check()
            except AssertionError as error:
                raise AssertionError(f"order {seed}: {error}\n{race.heard}") from error
            for _, what, _ in race.heard:
                told[what] = told.get(what, 0) + 1
    print(told)
    assert {"started", "saved", "finished"} <= told.keys(), told


TRAINED = int(os.environ.get("TRAINED", "1"))
RUN_FILE = """\
version: 1
name: it
storage: STORAGE
model: {type: gpt2, config: {n_layer: 1, n_head: 2, n_embd: 32, n_positions: 32, vocab_size: 448}}
data: {train: SET, sequence_length: 16}
batch: {global: 4, micro: 2}
train_for: 120 steps
optimizer: {lr: 1e-3}
schedule: {type: constant, warmup: 0 steps}
precision: fp32
seed: 3
threads: 1
track: []
checkpoint: {every: 10 steps}
"""


@pytest.mark.long("real training: minutes, and the gate has the same races with small states")
def test_with_real_training(
    tmp_path: Path, stream: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts and deaths on either machine at any moment; then one of them trains to the end. Its
    ledger is exact, and its weights are those of the run that nobody disturbed."""
    with s3_server(tmp_path / "s3") as port:
        for name, value in credentials(port).items():
            monkeypatch.setenv(name, value)
        alone = started(machine(tmp_path, stream, "alone", 0))
        assert alone.wait(300) == 0
        undisturbed = RunDirectory.open("s3://bucket/alone/it")
        for seed in range(TRAINED):
            chance = random.Random(seed)
            folders = [machine(tmp_path, stream, f"order-{seed}", number) for number in (0, 1)]
            running: dict[int, subprocess.Popen[bytes]] = {}
            for _ in range(chance.randint(3, 5)):
                number = chance.randint(0, 1)
                if number in running and running[number].poll() is None:
                    running[number].kill()
                    running[number].wait()
                else:
                    running[number] = started(folders[number])
                time.sleep(chance.uniform(3, 12))
            codes = {process.wait(300) for process in running.values()}
            assert codes <= {0, 1, 5, -9}, codes
            last = started(folders[0])
            assert last.wait(300) == 0, (folders[0] / "said").read_text()
            race = Race(f"s3://bucket/order-{seed}/it", tmp_path)
            race.check()
            directory = RunDirectory.open(race.location)
            verdict = verify_ledger(directory.ledger.read()[0])
            assert (verdict.breach, verdict.steps) == (None, 120), seed
            assert differing(directory, undisturbed) == [], seed


def machine(tmp_path: Path, stream: dict[str, Path], name: str, number: int) -> Path:
    folder = tmp_path / f"{name}-{number}"
    folder.mkdir()
    text = RUN_FILE.replace("STORAGE", f"s3://bucket/{name}").replace("SET", str(stream["train"]))
    (folder / "run.yaml").write_text(text)
    return folder


def started(folder: Path) -> subprocess.Popen[bytes]:
    """`headway run` on a machine with a cache of its own."""
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "headway.cli.main", "run", "--take-over"],
            cwd=folder,
            env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
