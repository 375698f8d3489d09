"""Data is prepared in pods, beside its sources: into the claim and into a bucket, with a machine
lost in the middle, and the set is the one that a preparation on this machine makes."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster_tool import faults, network
from headway.data.tiny_stories import stories
from headway.state.store import Store
from support.lab import Lab
from support.prepared import write_lines
from support.proxies import SlowProxy
from support.s3 import credentials, s3_server
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(560)]

WHY_LONG = "prepares a set several times; the parts themselves are in the unit tests"
FILES, PARTS = 12, 6
WINDOW = "16k tokens"
"""Units of 64 kB."""
DELAY_SECONDS = 1.5


@contextmanager
def slow_sources(lab: Lab, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowProxy]:
    """A bucket with text, which answers late. Pods get its keys from the target."""
    keys = (secrets.token_hex(10), secrets.token_hex(20))
    with s3_server(folder, network.HOST, keys) as port:
        text = folder / "bucket" / "text"
        text.mkdir()
        for number in range(FILES):
            lines = [{"text": one} for one in stories(128_000, seed=number)]
            write_lines(text / f"{number:02d}.jsonl", lines)
        with SlowProxy(port, DELAY_SECONDS, network.HOST) as proxy:
            lab.change_target(pod={"env": lab.target()["pod"]["env"] | variables(proxy, keys)})
            for name, value in credentials(port, network.HOST, keys).items():
                monkeypatch.setenv(name, value)
            yield proxy


def variables(proxy: SlowProxy, keys: tuple[str, str]) -> dict[str, str]:
    return credentials(proxy.port, network.HOST, keys)


PREPARE = (
    *("data", "prepare", "s3://bucket/text/*.jsonl", "--train-vocab", "512"),
    *("--stream", "--stream-window", WINDOW),
)


@pytest.mark.long(WHY_LONG)
def test_six_parts_and_a_machine_without_power(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slow_sources(lab, tmp_path / "sources", monkeypatch) as proxy:
        here = lab.folder / "here"
        lab.headway(*PREPARE, "--into", str(here))
        command = (*PREPARE, "--on", "lab", "--into", "c4", "--nodes", str(PARTS))
        there = lab.shared / "sets" / "c4"
        with lab.typed(*command) as typed:
            typed.wait_for("documents", 120)
            wait_for("shards", lambda: len(list(there.glob("shards/*.json"))) >= 8, 120)
            pods = lab.pods("data")
            assert len(pods) == PARTS
            machines = {pod["spec"]["nodeName"] for pod in pods}
            assert len(machines) == 3
            assert typed.interrupt(60) == 130, typed.output
            assert "the same command watches it again" in typed.output
        assert not (there / "manifest.json").exists(), "it is in the middle"
        lost = lab.node_of(pods[0])
        faults.pull_plug(lost)
        num_done = len(list(there.glob("shards/*.json")))
        print(f"{lost.name} lost its power with {num_done} shards done")
        proxy.delay_seconds = 0.0
        watched = lab.headway(*command, seconds=400)
        assert "is being prepared on lab" in watched.stderr
        assert "data: {train: claim:sets/c4}" in watched.stderr
        faults.put_back(lost, lab.cluster.api)
    compared = subprocess.run(
        ["diff", "-r", str(here), str(there)], capture_output=True, text=True, check=False
    )
    assert compared.returncode == 0, compared.stdout
    assert num_done < len(list(there.glob("shards/*.json")))


@pytest.mark.long(WHY_LONG)
def test_into_the_bucket_from_the_bucket(lab: Lab, bucket: Path) -> None:
    """And what is refused is said with the words of the pod, and once."""
    for number in range(3):
        lines = [{"text": one} for one in stories(200_000, seed=number)]
        (lab.folder / "text").mkdir(exist_ok=True)
        write_lines(lab.folder / "text" / f"{number}.jsonl", lines)
    store = Store("s3://bucket/team")
    for path in (lab.folder / "text").iterdir():
        store.write(f"text/{path.name}", path.read_bytes())
    command = ("data", "prepare", "s3://bucket/team/text", "--train-vocab", "512")
    refused = lab.headway(
        *command, "--column", "body", "--on", "lab", "--into", "c4", "--nodes", "2", expect=1
    )
    assert "the preparation failed: no text in" in refused.stderr
    assert "no column" in refused.stderr
    wait_for("its objects to be gone", lambda: lab.objects() == [], 60)
    store.remove("sets")
    made = lab.headway(*command, "--on", "lab", "--into", "c4", "--nodes", "2")
    assert "data: {train: s3://bucket/team/sets/c4}" in made.stderr
    lab.headway(*command, "--into", str(lab.folder / "here"))
    found = {
        name: store.read(f"sets/c4/{name}") for name in Store("s3://bucket/team/sets/c4").names("")
    }
    here = lab.folder / "here"
    assert found == {
        str(path.relative_to(here)): path.read_bytes() for path in here.rglob("*") if path.is_file()
    }
    again = lab.headway(*command, "--on", "lab", "--into", "c4")
    assert "preparing" not in again.stderr
    shutil.rmtree(lab.folder / "here")
