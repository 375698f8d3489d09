"""Pull any plug at any moment, start again, and the run goes on as if nothing had been."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from support.killing import differing, kill_and_resume, write_run
from support.s3 import credentials, s3_server
from support.workers import resolved_run, train

pytestmark = [pytest.mark.local, pytest.mark.chaos, pytest.mark.timeout(400)]

KILLS = int(os.environ.get("KILLS", "3"))
STEPS = 80 * KILLS


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, stream: dict[str, Path]):
    folder = write_run(tmp_path_factory.mktemp("undisturbed"), STEPS)
    return cache(lambda nodes: train(resolved_run(folder, stream, nodes, [f"name=n{nodes}"])))


def check(killed, undisturbed) -> None:
    assert killed.ledger.breach is None
    assert killed.ledger.steps == STEPS
    assert killed.ledger.samples == STEPS * 7
    assert killed.ledger.generations >= 2
    assert differing(killed.directory, undisturbed) == []
    ours = [(line["step"], line["loss"]) for line in killed.directory.steps()]
    assert ours == [(line["step"], line["loss"]) for line in undisturbed.steps()]


@pytest.mark.trap(35)
@pytest.mark.parametrize(
    "nodes",
    [1, pytest.param(2, marks=pytest.mark.long("the gate kills one worker, here and on S3"))],
)
def test_in_a_folder(tmp_path: Path, stream: dict[str, Path], undisturbed, nodes: int) -> None:
    folder = write_run(tmp_path, STEPS)
    killed = kill_and_resume(resolved_run(folder, stream, nodes), KILLS, seed=nodes)
    check(killed, undisturbed(nodes))


def test_on_s3(
    tmp_path: Path, stream: dict[str, Path], undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(tmp_path / "s3") as port:
        for name, value in credentials(port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        folder = write_run(tmp_path / "run", STEPS)
        resolved = resolved_run(folder, stream, 1, ["storage=s3://bucket/runs"])
        killed = kill_and_resume(resolved, KILLS, seed=7)
        check(killed, undisturbed(1))
        assert not (folder / "runs").exists()
