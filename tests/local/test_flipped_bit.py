"""One bit of one file of a run directory is flipped. It is detected and told, or does no harm: the
weights are those of the run left alone."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.errors import HeadwayError
from headway.report.page import page
from headway.report.run_data import ledger_verdict, open_once, run_data
from headway.spec.quantities import Length
from headway.state.checkpoints import folder_of
from headway.state.ledger import verify_ledger
from headway.state.run_directory import RunDirectory
from headway.state.status import read_status
from support.killing import differing
from support.workers import resolved_run, train

pytestmark = [pytest.mark.local, pytest.mark.timeout(600)]

FLIPS = int(os.environ.get("FLIPS", "1"))
"""Of each file."""
KINDS = (
    "run.json",
    "spec.json",
    "summary.json",
    "chain/0000/000002.json",
    "chain/0000/000004.json",
    "launcher.jsonl",
    "events.jsonl",
    "metrics.jsonl",
    "ledger.jsonl",
    f"{folder_of(10, 1)}/manifest.json",
    f"{folder_of(10, 1)}/rank-0.json",
    f"{folder_of(10, 1)}/rank-0.safetensors",
    f"{folder_of(5, 1)}/manifest.json",
)


@pytest.fixture(scope="module")
def undisturbed(
    trained: Path, stream: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> RunDirectory:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    shutil.copytree(trained, folder)
    return train(resolved_run(folder, stream, overrides=["train_for=12 steps"]))


def flip(path: Path, seed: str) -> str:
    chance, content = random.Random(seed), bytearray(path.read_bytes())
    at, bit = chance.randrange(len(content)), chance.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {at}: {bytes(content[max(0, at - 20) : at + 20])!r}"


def gone_on(run: Path) -> RunDirectory | str:
    """After status, report and resume; or the words with which one of them refused."""
    try:
        directory, now = RunDirectory.open(run), SystemClock().now()
        read_status(directory, now)
        page([run_data(open_once(directory), now)], [ledger_verdict(directory)])
        resolved = directory.read_spec()
        longer = resolved.run.model_copy(update={"train_for": Length.parse("12 steps")})
        more = {"run": longer, "run_directory": str(run)}
        return train(resolved.model_copy(update=more))
    except HeadwayError as error:
        return error.message
    except AssertionError as error:  # of a worker, with its traceback
        return str(error)


@pytest.mark.parametrize("name", KINDS)
def test_a_flipped_bit(name: str, trained: Path, undisturbed: RunDirectory, tmp_path: Path) -> None:
    for number in range(FLIPS):
        folder = tmp_path / str(number)
        shutil.copytree(trained, folder)
        run = folder / "runs" / "it"
        where = flip(run / name, f"{name} {number}")
        directory = gone_on(run)
        if isinstance(directory, str):
            assert "Traceback" not in directory or "headway.errors." in directory, (
                where,
                directory,
            )
            continue
        events = directory.events.read()[0]
        is_told = (
            any(event["event"] == "passed_over" for event in events)
            or read_status(RunDirectory.open(run), SystemClock().now()).damaged_lines > 0
            or verify_ledger(directory.ledger.read()[0]).breach is not None
        )
        odd = differing(directory, undisturbed)
        assert odd == [] or is_told, (where, odd)
