"""Data is prepared in pods, beside its sources: into the claim and into a bucket, with a machine
lost in the middle, and the set is the one that a preparation on this machine makes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_tool import faults, network
from headway.data.tiny_stories import stories
from headway.state.store import Store
from support.lab import Lab
from support.pods_lost import PodsLost
from support.prepared import write_lines
from support.slow_text import SlowText, prepared_there, slow_text
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(560)]

WHY_LONG = "prepares a set several times; the parts themselves are in the unit tests"
FILES, PARTS = 36, 6
MANY_PARTS = 12
PREPARE_SECONDS = 60.0
"""Long enough to pull a plug in the middle."""


@pytest.fixture
def text(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowText]:
    """In a bucket that answers late; pods get its keys from the target."""
    with slow_text(tmp_path / "sources", network.HOST, FILES) as text:
        for name, value in text.fast.items():
            monkeypatch.setenv(name, value)
        lab.change_target(pod={"env": lab.target()["pod"]["env"] | text.slow})
        lab.headway(*text.make_tokenizer)
        yield text


@pytest.mark.long(WHY_LONG)
def test_six_parts_and_a_machine_without_power(lab: Lab, text: SlowText) -> None:
    here, there = lab.folder / "here", lab.shared / "sets" / "c4"
    lab.headway(*text.prepare, "--into", str(here))
    text.take(PREPARE_SECONDS, PARTS)
    command = (*text.prepare, "--on", "lab", "--into", "c4", "--nodes", str(PARTS))
    with lab.typed(*command) as typed:
        typed.wait_for("documents", 240)
        wait_for("shards", lambda: len(list(there.glob("shards/*.json"))) >= 8, 240)
        pods = lab.pods("data")
        assert len(pods) == PARTS
        assert len({pod["spec"]["nodeName"] for pod in pods}) == 3
        assert typed.interrupt(60) == 130, typed.output
        assert "the same command watches it again" in typed.output
    assert not (there / "manifest.json").exists(), "it is in the middle"
    lost = lab.node_of(pods[0])
    faults.pull_plug(lost)
    num_done = len(list(there.glob("shards/*.json")))
    print(f"{lost.name} lost its power with {num_done} of {FILES} units done")
    watched = lab.headway(*command, seconds=400)
    assert "is being prepared on lab" in watched.stderr
    assert "data: {train: claim:sets/c4}" in watched.stderr
    faults.put_back(lost, lab.cluster.api)
    compared = subprocess.run(
        ["diff", "-r", str(here), str(there)], capture_output=True, text=True, check=False
    )
    assert compared.returncode == 0, compared.stdout
    assert num_done < len(list(there.glob("shards/*.json"))) == FILES


@pytest.mark.long(WHY_LONG)
def test_thirty_pods_are_lost_in_three_ways_and_the_set_is_the_same(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slow_text(tmp_path / "sources", network.HOST, 4 * MANY_PARTS) as text:
        for name, value in text.fast.items():
            monkeypatch.setenv(name, value)
        resources = {"cpu": "100m", "memory": "768Mi"}
        lab.change_target(
            pod={"env": lab.target()["pod"]["env"] | text.slow},
            prepare={"nodes": MANY_PARTS, "resources": resources},
        )
        lab.headway(*text.make_tokenizer)
        here, there = lab.folder / "here", lab.shared / "sets" / "c4"
        lab.headway(*text.prepare, "--into", str(here))
        text.proxy.delay_seconds = 6.0  # twice a unit: nobody is done before the last loss
        with lab.typed(*text.prepare, "--on", "lab", "--into", "c4") as typed:
            typed.wait_for("documents", 240)
            lost = PodsLost(lab)
            wait_for("thirty losses", lambda: lost.lose_one() >= 30, 400)
            text.proxy.delay_seconds = 0.0
            assert typed.end(240) == 0, typed.output
        print(f"{lost.num} pods lost, of one part at most {max(lost.of_part.values())}")
        compared = subprocess.run(
            ["diff", "-r", str(here), str(there)], capture_output=True, text=True, check=False
        )
        assert compared.returncode == 0, compared.stdout


@pytest.mark.long("trains while text is prepared that comes slowly; bench-stream measures it")
def test_a_run_begins_before_its_text_is_prepared(lab: Lab, text: SlowText) -> None:
    lab.write_run(text.run_file())
    lab.change_target(prepare={"nodes": 3})
    text.take(3 * PREPARE_SECONDS, 3)
    launched = lab.headway("run", "--on", "lab", "--nodes", "2")
    assert "workers start, and wait for its first samples" in launched.stderr
    made = prepared_there(lab)
    assert lab.step() >= 1
    num_done = len(list(made.glob("shards/*.json")))
    assert num_done < FILES, "it was prepared before the run had its first step"
    print(f"first steps with {num_done} of {FILES} units done")
    wait_for("the set", (made / "manifest.json").exists, 300)
    lab.wait_for_step(lab.step() + 3)
    lab.headway("stop")
    lab.require_exact()
    lab.headway("delete", "it", "--yes")
    wait_for("nothing to be left", lambda: lab.objects() == [], 60)


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
