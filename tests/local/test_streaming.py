"""Training that starts while its data is being prepared: the same samples, the same losses."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.data.prepare.job import PrepareJob, prepare
from headway.data.prepare.recipe import RecipeSettings
from headway.data.reading.fetcher import NUM_THREADS
from headway.data.reading.growing_set import GrowingSet
from headway.data.reading.look_ahead import BatchShare
from headway.data.reading.mixture import MemberSpec, write_mixture
from headway.data.reading.token_set import ReadOptions
from headway.data.tiny_stories import stories
from headway.data.tokenizer import TokenizerSource
from headway.state.ledger import verify_ledger
from headway.state.store import Store
from support.commands import headway
from support.preparing import prepare_set
from support.s3 import credentials, s3_server
from support.waiting import wait_for
from support.workers import Workers, resolved_run, train

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

BEGINNING = 4
"""Number of shards that are there when training starts."""
STEPS = 120
RUN_FILE = f"""\
version: 1
name: it
model: {{type: gpt2, config: {{n_layer: 1, n_head: 2, n_embd: 32, n_positions: 32}}}}
data: {{train: unused, sequence_length: 16}}
batch: {{global: 8, micro: 4}}
train_for: {STEPS} steps
optimizer: {{lr: 1e-3}}
precision: fp32
threads: 1
track: []
checkpoint: {{every: 10 steps}}
"""


@pytest.fixture
def job(tmp_path: Path) -> PrepareJob:
    (tmp_path / "text.txt").write_text("\n\n".join(stories(60_000, seed=1)))
    prepare_set(["text.txt"], tmp_path / "first", tmp_path, vocab=400)
    return PrepareJob(
        ["text.txt"],
        TokenizerSource(load=str(tmp_path / "first" / "tokenizer")),
        str(tmp_path / "set"),
        tmp_path,
        # Windows of 2,048 tokens, so that there are some: the text has about 13,000.
        RecipeSettings(in_sequence=True, unit_bytes=2**12, block_tokens=2**9, window_blocks=4),
        processes=1,
    )


def losses(directory) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in directory.steps()]


def prepare_beginning(job: PrepareJob, aside: Path) -> None:
    """The first units: the records of the others, and the manifest, come later."""
    prepare(job, lambda progress: None, SystemClock())
    aside.mkdir()
    into = Path(job.into)
    (into / "manifest.json").rename(aside / "manifest.json")
    records = sorted((into / "shards").glob("*.json"))
    assert len(records) > 2 * BEGINNING
    for record in records[BEGINNING:]:
        record.rename(aside / record.name)


def prepare_rest(job: PrepareJob, aside: Path) -> None:
    for record in sorted(aside.glob("0*.json")):
        record.rename(Path(job.into) / "shards" / record.name)
    (aside / "manifest.json").rename(Path(job.into) / "manifest.json")


@pytest.mark.parametrize("nodes", [1, 2])
def test_it_waits_continues_and_sees_the_same(tmp_path: Path, job: PrepareJob, nodes: int) -> None:
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    whole = replace(job, into=str(tmp_path / "whole"))
    prepare(whole, lambda progress: None, SystemClock())
    finished = resolved_run(tmp_path, {"train": tmp_path / "whole"}, nodes, ["name=finished"])
    undisturbed = train(finished)

    prepare_beginning(job, tmp_path / "aside")
    growing = resolved_run(tmp_path, {"train": tmp_path / "set"}, nodes, ["name=growing"])
    workers = Workers(growing)
    directory = workers.directory
    # It does what it can, and then waits; killed there, it goes on waiting.
    wait_for("steps on the beginning", lambda: len(list(directory.steps())) >= 10, 60)
    workers.kill()
    assert len(list(directory.steps())) < STEPS
    workers = Workers(growing)
    prepare_rest(job, tmp_path / "aside")
    workers.wait()

    assert losses(directory) == losses(undisturbed)
    verdict = verify_ledger(directory.ledger.read()[0])
    assert verdict.breach is None
    assert (verdict.steps, verdict.epochs) == (STEPS, None)
    assert len(set(_positions(directory))) == STEPS


def test_a_mixture_of_growing_sets_sees_the_same(tmp_path: Path, job: PrepareJob) -> None:
    """One of which is small: it is read again while the other is still being prepared."""
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    (tmp_path / "small.txt").write_text("\n\n".join(stories(20_000, seed=2)))
    less = {"unit_bytes": 2**11, "block_tokens": 2**7}
    small = replace(job, sources=["small.txt"], settings=job.settings.model_copy(update=less))
    jobs = {"large": job, "small": small}
    jobs = {name: replace(one, into=str(tmp_path / name)) for name, one in jobs.items()}

    def mixture(name: str, beginning: str) -> Path:
        members = [
            MemberSpec(name=member, location=f"../{beginning}{member}", weight=weight)
            for member, weight in (("large", 2), ("small", 1))
        ]
        write_mixture(Store(tmp_path / name), members, is_streamed=True)
        return tmp_path / name

    for name, one in jobs.items():
        whole = replace(one, into=str(tmp_path / f"whole-{name}"))
        prepare(whole, lambda progress: None, SystemClock())
        prepare_beginning(one, tmp_path / f"aside-{name}")
    finished = {"train": mixture("finished", "whole-")}
    undisturbed = train(resolved_run(tmp_path, finished, 1, ["name=finished"]))
    growing = resolved_run(tmp_path, {"train": mixture("growing", "")}, 1, ["name=growing"])
    workers = Workers(growing)
    directory = workers.directory
    wait_for("steps on the beginning", lambda: len(list(directory.steps())) >= 10, 60)
    workers.kill()
    before = len(list(directory.steps()))
    assert before < STEPS
    workers = Workers(growing)
    prepare_rest(jobs["small"], tmp_path / "aside-small")
    wait_for("more of the small set", lambda: len(list(directory.steps())) > before, 60)
    assert len(list(directory.steps())) < STEPS, "the large one is not there"
    prepare_rest(jobs["large"], tmp_path / "aside-large")
    workers.wait()

    assert losses(directory) == losses(undisturbed)
    verdict = verify_ledger(directory.ledger.read()[0])
    assert (verdict.breach, verdict.steps) == (None, STEPS)


def _positions(directory) -> list[int]:
    return [line["first"] for line in directory.ledger.read()[0] if "first" in line]


def run_streaming(folder: Path, *settings: str, expect: int = 0):
    words = [
        word for setting in ("data.train.stream=true", *settings) for word in ("--set", setting)
    ]
    return headway("run", "--extend", *words, folder=folder, expect=expect)


@pytest.mark.long("half a minute; the gate has the same without the command")
def test_the_command(tmp_path: Path) -> None:
    headway("init", "tiny", "it", folder=tmp_path)
    folder = tmp_path / "it"
    done = run_streaming(folder, "train_for=20 steps")
    assert "shuffled within windows of 67.1M tokens" in done.stderr
    again = run_streaming(folder, "train_for=30 steps")
    assert "resuming from step 20" in again.stderr
    assert "exact: 30 steps" in headway("ledger", "verify", folder=folder).stdout


@pytest.mark.long("half a minute; the gate has the same without the command")
def test_a_mixture_of_streamed_sources(tmp_path: Path) -> None:
    headway("init", "tiny", "it", folder=tmp_path)
    for name, seed in (("one", 4), ("more", 5)):
        (tmp_path / "it" / f"{name}.txt").write_text("\n\n".join(stories(200_000, seed)))
    first = "{sources: [one.txt], weight: 3, stream: {window: 8k tokens}}"
    second = "{sources: [more.txt], weight: 1, stream: {window: 4096 tokens}}"
    mixture = f"{{mixture: {{a: {first}, b: {second}}}, tokenizer: {{train: {{vocab: 400}}}}}}"
    settings = ("--set", f"data={{train: {mixture}}}", "--set", "data.sequence_length=64")
    folder = tmp_path / "it"
    done = headway("run", *settings, "--set", "train_for=10 steps", folder=folder)
    assert "samples of a follow the order of the sources" in done.stderr
    assert "samples of b follow the order of the sources" in done.stderr
    headway("run", "--extend", *settings, "--set", "train_for=20 steps", folder=folder)
    assert "exact: 20 steps" in headway("ledger", "verify", folder=folder).stdout


@pytest.mark.long("half a minute; unit tests show of what the held-out set is made")
def test_documents_are_held_out_of_a_stream(tmp_path: Path) -> None:
    headway("init", "tiny", "it", folder=tmp_path)
    folder = tmp_path / "it"
    done = run_streaming(
        folder, "data.train.hold_out=5%", "train_for=20 steps", "evaluation.every=10 steps"
    )
    assert "prepared held_out" in done.stderr
    again = run_streaming(
        folder, "data.train.hold_out=5%", "train_for=30 steps", "evaluation.every=10 steps"
    )
    assert "prepared held_out" not in again.stderr
    assert "held_out" in headway("report", folder=folder).stdout + again.stderr


def test_a_failed_preparation_ends_the_run(tmp_path: Path) -> None:
    headway("init", "tiny", "it", folder=tmp_path)
    (tmp_path / "it" / "blank.txt").write_text(" ")
    settings = ("data.train.sources=[blank.txt]", "train_for=20 steps")
    done = run_streaming(tmp_path / "it", *settings, expect=1)
    assert "no text in blank.txt" in done.stderr


def test_an_epoch_has_no_length_yet(tmp_path: Path) -> None:
    headway("init", "tiny", "it", folder=tmp_path)
    done = run_streaming(tmp_path / "it", "train_for=1 epochs", expect=2)
    assert "the length of an epoch is not known yet" in done.stderr


def test_sixty_shards_in_a_bucket_cost_as_little_as_one(
    tmp_path: Path, job: PrepareJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that streams for a week meets thousands of shards."""
    settings = job.settings.model_copy(
        update={"unit_bytes": 800, "block_tokens": 64, "window_blocks": 2}
    )
    with s3_server(tmp_path / "s3") as port:
        for name, value in credentials(port).items():
            monkeypatch.setenv(name, value)
        folder = tmp_path / "s3" / "bucket" / "set"
        prepare(
            replace(job, into=str(folder), settings=settings),
            lambda progress: None,
            SystemClock(),
        )
        (folder / "manifest.json").unlink()
        aside = tmp_path / "aside"
        aside.mkdir()
        for record in (folder / "shards").glob("*.json"):
            record.rename(aside / record.name)
        growing = GrowingSet.open(Store("s3://bucket/set"), ReadOptions(cache=tmp_path / "cache"))
        assert growing is not None
        order, seen, descriptors = growing.order(1, 16), 0, []
        for record in sorted(aside.iterdir())[:60]:
            record.rename(folder / "shards" / record.name)
            there = growing.num_samples(16)
            if there > seen:
                growing.prefetch(1, 16, seen, BatchShare(1, 0, 1, 1.0))
                growing.read(order.at(seen, there - seen)[1], 16)
                descriptors.append(len(os.listdir("/proc/self/fd")))
            seen = there
        assert len(descriptors) > 40
        threads = [one for one in threading.enumerate() if one.name == "fetcher"]
        assert len(threads) == NUM_THREADS
        assert len(os.listdir(tmp_path / "cache" / "blocks" / "readers")) == 1
        assert descriptors[-1] - descriptors[0] < 40
        growing.close()
        assert not any(thread.is_alive() for thread in threads)
