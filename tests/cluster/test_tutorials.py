"""The five tutorials as their readers type them, at small size, on pods; and nothing is left."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from cluster_tool import faults
from cluster_tool.cluster import Cluster
from headway.data.tiny_stories import stories
from headway.state.checkpoints import steps_saved
from support.bert_files import write_bert_file
from support.commands import headway
from support.lab import Lab
from support.plugs import away_from_the_coordinator
from support.prepared import write_lines
from support.tutorial import EXAMPLES, Reader
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.journey, pytest.mark.timeout(600)]

END_SECONDS = 240.0
ROW = 64
"""Tokens of a row in the files for BERT."""


@pytest.fixture
def reader(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """Has a copy of the examples, and no target yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = shutil.ignore_patterns("runs", "prepared", "teacher", "base")
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=made)
    return Reader(lab, tmp_path / "examples")


@pytest.fixture
def spot_machine(own_cluster: Cluster) -> Iterator[None]:
    """One of the three is one, by Karpenter's label."""
    path = f"/api/v1/nodes/{own_cluster.nodes[-1].name}"

    def label(value: str | None) -> None:
        labels = {"karpenter.sh/capacity-type": value}
        own_cluster.api.patch(path, {"metadata": {"labels": labels}})

    label("spot")
    try:
        yield
    finally:
        label(None)


@pytest.mark.usefixtures("spot_machine")
def test_elastic_gpt2(reader: Reader, lab: Lab) -> None:
    add, teacher, student = reader.open("elastic-gpt2")
    reader.type(add)
    reader.type(teacher)
    wait_for("three workers", lambda: workers(lab, "gpt2") == 3, END_SECONDS)
    lost = lab.node_of(away_from_the_coordinator(lab))
    faults.pull_plug(lost)
    reader.wait_for_end("gpt2")
    assert any(event["event"] == "lost" for event in lab.directory("gpt2").history())
    faults.put_back(lost, lab.cluster.api)  # what is on a dead machine stays for as long as it is
    reader.type(student)
    reader.wait_for_end("student")
    reader.remove()


@pytest.mark.long("a minute; the gate has the tutorial that loses a machine")
def test_sharded_gpt2(reader: Reader, lab: Lab) -> None:
    for words in reader.open("sharded-gpt2"):
        reader.type(words)
    reader.wait_for_end("sharded-gpt2")
    directory = lab.directory("sharded-gpt2")
    watched = [line for line in directory.activations.read()[0] if line["step"] == 10]
    assert [line["attention_smallest"] < line["attention_largest"] for line in watched] == [
        True
    ] * 2
    assert {10, 20, 30} <= set(steps_saved(directory)), "early checkpoints stay"
    reader.remove()


@pytest.mark.long("a minute; the gate has the tutorial that loses a machine")
def test_bert_in_two_phases(reader: Reader, lab: Lab) -> None:
    """Of files as BERT's scripts make them."""
    folder = lab.shared / "bert" / "phase-1"
    folder.mkdir(parents=True)
    add, phase_1, phase_2 = reader.open("bert-two-phases")
    tokenizer = trained_tokenizer(reader, "--masked")
    pieces = [tokenizer.encode(one).ids[: ROW // 2 - 2] for one in stories(60_000, seed=1)]
    write_bert_file(folder / "0.hdf5", list(pairwise(pieces)), length=ROW, vocab=512)
    (folder / "0.hdf5").chmod(0o644)
    reader.note_storage()
    reader.type(add)
    reader.type(phase_1)
    reader.wait_for_end("bert-phase-1")
    reader.type(phase_2)
    reader.wait_for_end("bert-phase-2")
    reader.remove()


@pytest.mark.long("a minute; the gate has the tutorial that loses a machine")
def test_llama_on_c4(bucket: Path, reader: Reader, lab: Lab) -> None:
    """Text in a bucket, which is prepared in pods while the run trains."""
    texts = bucket / "c4"
    texts.mkdir(parents=True)
    for number in range(12):
        lines = [{"text": one} for one in stories(2**16, seed=number)]
        write_lines(texts / f"{number:02d}.jsonl", lines)
    add, run = reader.open("llama-c4")
    trained_tokenizer(reader)
    reader.type(add)
    assert "workers start, and wait for its first samples" in reader.type(run)
    reader.wait_for_end("llama-c4")
    reader.remove()


@pytest.mark.long("a minute; the gate has the tutorial that loses a machine")
def test_first_job(bucket: Path, reader: Reader, lab: Lab) -> None:
    for words in reader.open("scripts/images"):
        reader.type(words)
    output = bucket / "runs" / "images" / "output"
    reader.wait_for_end("images", has_ledger=False)
    assert (output / "model.pt").is_file()
    reader.remove()


def trained_tokenizer(reader: Reader, *options: str) -> Tokenizer:
    """In the folder `tokenizer` beside the run file."""
    text = "../distill/data/stories.txt"
    command = ("data", "tokenizer", text, "--vocab", "512", "--into", "tokenizer")
    headway(*command, *options, folder=reader.folder)
    return Tokenizer.from_file(str(reader.folder / "tokenizer" / "tokenizer.json"))


def workers(lab: Lab, name: str) -> int:
    events = lab.directory(name).history()
    changes = [event for event in events if event["event"] in ("started", "changed")]
    return int(changes[-1]["workers"]) if changes else 0
