"""Preparing on a target, as a user types it: pods that exist only as threads do the work."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from headway.cli.run_sets import ready_set
from headway.cli.sets_on_target import SetsOnTarget
from headway.cli.target_run import TargetRun
from headway.clock import SystemClock
from headway.data.prepare.in_parts import prepare_in_parts
from headway.data.prepare.job import PrepareJob
from headway.data.prepare.job_text import job_of_text
from headway.data.prepare.recipe import Recipe, RecipeSettings
from headway.data.prepare.set_tokenizer import NO_TOKENIZER
from headway.data.prepare.sources import SourceFile
from headway.data.tiny_stories import stories
from headway.data.tokenizer import TokenizerSource
from headway.errors import Exit, HeadwayError
from headway.spec.load import load_run, load_target
from headway.state.store import Store
from support.fake_kube import FakeKube, fake_kube
from support.in_process import Headway
from support.prepared import files_of, write_lines
from support.web_server import web_server

IMAGE = "registry.example/headway@sha256:" + "0" * 64
TARGET = f"""\
lab:
  kube: {{namespace: ml}}
  image: {IMAGE}
  storage: {{claim: shared-fs}}
  pod: {{resources: {{cpu: 4, memory: 8Gi}}}}
  prepare: {{nodes: 3}}
bucket:
  kube: {{namespace: ml}}
  image: {IMAGE}
  storage: s3://bucket/team
"""
PREPARE = ("data", "prepare", "claim:text/*.jsonl", "--train-vocab", "400", "--on", "lab")


class Pods:
    """Prepare what Jobs ask for, one part after the other."""

    def __init__(self, kube: FakeKube, claim: Path) -> None:
        self.seen: list[dict[str, Any]] = []
        self._kube = kube
        self._claim = claim
        self._end = Event()
        self._thread = Thread(target=self._work)

    def __enter__(self) -> Pods:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._end.wait(0.05):
            for path, job in list(self._kube.objects.items()):
                if "/jobs/headway-data-" in path and job not in self.seen:
                    self.seen.append(job)
                    self._prepare(job)
                if path.endswith("/jobs/headway-it"):
                    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}

    def _prepare(self, job: dict[str, Any]) -> None:
        (container,) = job["spec"]["template"]["spec"]["containers"]
        variables = {one["name"]: one.get("value", "") for one in container["env"]}
        text = variables["HEADWAY_DATA"].replace("/headway/storage", str(self._claim))
        num_parts, nodes = (int(variables[f"HEADWAY_DATA_{of}"]) for of in ("PARTS", "NODES"))
        job_there, clock = job_of_text(text, 1), Hasty()
        for index in range(num_parts):
            try:
                made = prepare_in_parts(
                    job_there, index, num_parts, nodes, lambda _: None, clock, lambda _: None
                )
            except HeadwayError:
                return
        assert made is not None
        done = [{"type": "Complete", "status": "True"}]
        job["status"] = {"conditions": done, "succeeded": num_parts}


class Hasty(SystemClock):
    def sleep(self, seconds: float) -> None:
        time.sleep(0)

    def monotonic(self) -> float:
        return super().monotonic() * 1000


@pytest.fixture
def kube(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    (folder / "targets.yaml").write_text(TARGET)
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    with fake_kube(folder) as kube:
        yield kube


@pytest.fixture
def claim(folder: Path) -> Path:
    (folder / "claim/text").mkdir(parents=True)
    for number in range(3):
        lines = [{"text": one} for one in stories(8_000, number)]
        write_lines(folder / f"claim/text/{number}.jsonl", lines)
    return folder / "claim"


def test_from_the_claim_to_the_claim(
    headway: Headway, kube: FakeKube, claim: Path, folder: Path
) -> None:
    with Pods(kube, claim) as pods:
        said = headway(*PREPARE, "--into", "c4")
        assert said.exit_code == 0, said.err
        assert "preparing c4 on lab in 1 part: /headway/storage/sets/c4" in said.err
        assert "next: data: {train: claim:sets/c4} in the run file" in said.err
        assert headway(*PREPARE, "--into", "c4").exit_code == 0
        assert len(pods.seen) == 1, "a complete set is left as it is"
        other = headway(*PREPARE, "--into", "c4", "--column", "body")
        assert other.exit_code == Exit.BAD_INPUT
        assert "column: body, was text" in other.err
    headway("data", "prepare", "claim/text", "--train-vocab", "400", "--into", "here")
    there, here = files_of(claim / "sets/c4"), files_of(folder / "here")
    assert {name for name in there if name.startswith("shards")}
    for name in there:
        if name.startswith(("shards", "tokenizer")) and not name.endswith(".json"):
            assert there[name] == here[name], name


def test_from_a_web_server(headway: Headway, kube: FakeKube, claim: Path, folder: Path) -> None:
    """Pods read it, in ranges of their own, and nothing of it comes here."""
    with web_server() as web, Pods(kube, claim) as pods:
        text = (claim / "text/0.jsonl").read_bytes()
        web.files["/0.jsonl"] = text
        what = ("data", "prepare", web.address("/0.jsonl"), "--train-vocab", "400")
        said = headway(*what, "--on", "lab", "--into", "c4")
        assert said.exit_code == 0, said.err
        assert len(pods.seen) == 1
        assert headway(*what, "--into", "here").exit_code == 0
        web.files["/0.jsonl"] = text[: len(text) // 2]
        other = headway(*what, "--on", "lab", "--into", "c4")
        assert other.exit_code == Exit.BAD_INPUT, "it has changed"
    there, here = files_of(claim / "sets/c4"), files_of(folder / "here")
    for name in here:
        if name.startswith("shards") and not name.endswith(".json"):
            assert there[name] == here[name], name


def test_another_tokenizer_into_the_same_place(
    headway: Headway, kube: FakeKube, claim: Path
) -> None:
    for name, vocab in (("one", "400"), ("two", "410")):
        headway("data", "prepare", "claim/text", "--train-vocab", vocab, "--into", name)
    prepare = ("data", "prepare", "claim:text", "--on", "lab", "--into", "c4", "--tokenizer")
    with Pods(kube, claim) as pods:
        assert headway(*prepare, "one/tokenizer").exit_code == 0
        assert headway(*prepare, "one/tokenizer").exit_code == 0
        other = headway(*prepare, "two/tokenizer")
        assert other.exit_code == Exit.BAD_INPUT
        assert "the tokenizer has changed" in other.err
        away = headway(*prepare, "team/unreachable")
        assert "whether the set has another tokenizer is not known here" in away.err
        assert len(pods.seen) == 1


def test_a_dataset_that_has_moved_is_watched_at_the_commit_that_it_began_with(
    headway: Headway, kube: FakeKube, claim: Path
) -> None:
    begun = f"hub:team/corpus?split=train&revision={'0a' * 20}"
    Recipe(
        settings=RecipeSettings(train_vocab=400),
        tokens=NO_TOKENIZER,
        files=(SourceFile(name=begun, size=0, fingerprint=""),),
        beside="",
    ).save(Store(claim / "sets/c4"))
    kube.job_status = {"conditions": [{"type": "Failed", "status": "True", "message": "it"}]}
    source = "hub:team/corpus?split=train"
    said = headway("data", "prepare", source, *PREPARE[3:], "--into", "c4")
    assert "the preparation failed" in said.err
    (job,) = [one for path, one in kube.objects.items() if "/jobs/headway-data-" in path]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (what,) = [one["value"] for one in container["env"] if one["name"] == "HEADWAY_DATA"]
    assert json.loads(what)["sources"] == [begun]


class Elsewhere:
    """A target that takes whatever it is given."""

    def takes(self, job: PrepareJob) -> bool:
        return True

    def prepared(self, job: PrepareJob, name: str, is_streamed: bool) -> str:
        return "there"

    def located(self, path: str) -> str:
        return path


def test_what_was_prepared_here_is_not_prepared_again(claim: Path, folder: Path) -> None:
    train = "{sources: [claim/text], tokenizer: {train: {vocab: 400}}}"
    (folder / "run.yaml").write_text(RUN.replace("TRAIN", train))
    loaded = load_run(folder / "run.yaml")
    wanted = loaded.run.data.train
    assert wanted is not None
    assert ready_set("train", wanted, loaded, None, there=Elsewhere()) == "there"
    here = ready_set("train", wanted, loaded, None)
    assert ready_set("train", wanted, loaded, None, there=Elsewhere()) == here
    with (claim / "text/0.jsonl").open("a") as file:
        file.write('{"text": "more"}\n')
    assert ready_set("train", wanted, loaded, None, there=Elsewhere()) == "there"


@pytest.mark.parametrize(
    ("source", "prepare", "is_taken"),
    [
        ("s3://bucket/a.jsonl", "", False),
        ("s3://bucket/a.jsonl", f"  prepare: {{image: {IMAGE}}}\n", True),
        ("claim:a.jsonl", "", True),
    ],
    ids=["here, as ever", "its own image", "refused with words"],
)
def test_workers_in_an_image_without_headway(
    folder: Path, source: str, prepare: str, is_taken: bool
) -> None:
    first = TARGET.partition("  prepare")[0]
    (folder / "targets.yaml").write_text(f"{first}  coordinator: {{image: {IMAGE}}}\n{prepare}")
    found = load_target("lab", folder)
    there = SetsOnTarget(TargetRun("it", "lab", found.target, folder), found, ())
    job = PrepareJob([source], TokenizerSource("gpt2"), "", folder, RecipeSettings())
    assert there.takes(job) is is_taken


def test_what_pods_refuse_is_said_here(headway: Headway, kube: FakeKube, claim: Path) -> None:
    with Pods(kube, claim):
        said = headway(*PREPARE, "--into", "c4", "--column", "body")
    assert said.exit_code == Exit.RUN_FAILED
    assert "error: the preparation failed: no text in" in said.err
    assert "no column" in said.err
    assert "run the same command to resume it" in said.err
    assert kube.named("jobs") == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("text.txt", "--on", "lab"), "text.txt is on this machine, which pods cannot see"),
        (("claim:text", "--on", "lab", "--deduplicate"), "needs all sources in one process"),
        (("claim:text",), "add --on TARGET"),
        (("claim:../text", "--on", "lab"), "a path inside the claim"),
        (("claim:/text", "--on", "lab"), "a path inside the claim"),
        (("claim:text", "--on", "bucket"), "the storage of target bucket is no claim"),
        (("claim:nothing", "--on", "lab"), "nothing found at claim:nothing"),
        (("claim:text", "--on", "lab", "--processes", "2"), "cannot be combined"),
        (("text.txt", "--nodes", "3"), "--nodes needs --on"),
    ],
)
def test_what_is_refused_before_anything_is_made(
    headway: Headway, kube: FakeKube, claim: Path, arguments: tuple[str, ...], words: str
) -> None:
    said = headway("data", "prepare", *arguments, "--train-vocab", "400", "--into", "c4")
    assert said.exit_code in (Exit.BAD_INPUT, Exit.NOT_FOUND)
    assert words in said.err
    assert not any("headway-data" in name for name in kube.named("jobs"))


def test_one_that_is_not_needed_is_deleted(headway: Headway, kube: FakeKube, claim: Path) -> None:
    labels = {"app.kubernetes.io/component": "data", "app.kubernetes.io/instance": "data-ab12"}
    kube.job("data-ab12")
    kube.objects["/apis/batch/v1/namespaces/ml/jobs/headway-data-ab12"]["metadata"]["labels"] |= (
        labels
    )
    said = headway("delete", "data-ab12", "--on", "lab", "--yes")
    assert said.exit_code == 0, said.err
    assert "what it has prepared stays" in said.err
    assert kube.named("jobs") == []


RUN = """\
version: 1
name: it
model: {type: gpt2, config: {n_layer: 1, n_head: 1, n_embd: 8, vocab_size: 400}}
data:
  train: TRAIN
  validation: {other: {sources: ["claim:text/0.jsonl"]}}
  sequence_length: 16
batch: {global: 4}
train_for: 10 steps
resources: {accelerators: cpu:1, nodes: 1}
"""
SOURCES = 'sources: ["claim:text/*.jsonl"], tokenizer: {train: {vocab: 400}}'


def spec_of(kube: FakeKube) -> dict[str, Any]:
    (text,) = [
        one["data"]["spec.json"]
        for path, one in kube.objects.items()
        if "/configmaps/headway-it-spec-" in path
    ]
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("stream", ["", ", stream: {window: 4096 tokens}"], ids=["", "stream"])
def test_a_run_whose_text_is_there_is_prepared_there(
    headway: Headway, kube: FakeKube, claim: Path, folder: Path, stream: str
) -> None:
    (folder / "run.yaml").write_text(RUN.replace("TRAIN", f"{{{SOURCES}{stream}}}"))
    with Pods(kube, claim) as pods:
        said = headway("run", "--on", "lab")
        assert said.exit_code == 0, said.err
        assert len(pods.seen) == 2
        train = spec_of(kube)["train_set"].removeprefix("/headway/storage/")
        assert re.fullmatch(r"sets/p-[0-9a-f]{32}", train)
        assert (claim / train / "manifest.json").is_file()
        other = spec_of(kube)["validation_sets"]["other"].removeprefix("/headway/storage/")
        assert other != train
        tokenizers = [claim / one / "tokenizer/tokenizer.json" for one in (train, other)]
        assert tokenizers[0].read_bytes() == tokenizers[1].read_bytes()
        assert "uploaded data" not in said.err
        assert not (folder / "prepared").exists()
        job = "/apis/batch/v1/namespaces/ml/jobs/headway-it"
        uid = kube.objects[job]["metadata"]["uid"]
        for path, one in [*kube.objects.items()]:  # Kubernetes takes along what the Job owns
            owners = one["metadata"].get("ownerReferences", [])
            if path == job or any(owner["uid"] == uid for owner in owners):
                del kube.objects[path]
        again = headway("run", "--on", "lab")
        assert again.exit_code == 0, again.err
        assert len(pods.seen) == 2, "prepared once"
        gone = headway("delete", "it", "--on", "lab", "--uploaded", "--yes")
        assert gone.exit_code == 0, gone.err
        assert {gone.err.count(f"removed {one}\n") for one in (train, other)} == {1}
        assert [path for path in (claim / "sets").rglob("*") if path.is_file()] == []
        assert not [name for name in kube.named("jobs") if "-data-" in name]
        assert [*(claim / "text").iterdir()], "what Headway has not made stays"


def test_streamed_members_of_a_mixture_are_prepared_there(
    headway: Headway, kube: FakeKube, claim: Path, folder: Path
) -> None:
    stream = "stream: {window: 4096 tokens}, weight: 1"
    members = ", ".join(
        f'part{name}: {{sources: ["claim:text/{name}.jsonl"], {stream}}}' for name in "01"
    )
    train = f"{{mixture: {{{members}}}, tokenizer: {{train: {{vocab: 400}}}}}}"
    (folder / "run.yaml").write_text(RUN.replace("TRAIN", train))
    with Pods(kube, claim):
        said = headway("run", "--on", "lab")
        assert said.exit_code == 0, said.err
    at = spec_of(kube)["train_set"].removeprefix("/headway/storage/")
    mixture = json.loads((claim / at / "mixture.json").read_text())
    assert mixture["version"] == 2
    for member in mixture["members"]:
        location = member["location"]
        assert re.fullmatch(r"/headway/storage/sets/p-[0-9a-f]{32}", location)
        assert (claim / location.removeprefix("/headway/storage/") / "recipe.json").is_file()


def test_a_run_with_a_model_of_its_own(
    headway: Headway, kube: FakeKube, claim: Path, folder: Path
) -> None:
    """Its code is not needed to prepare text."""
    (folder / "own").mkdir()
    (folder / "own/model.py").write_text("")
    text = f"{RUN.replace('TRAIN', f'{{{SOURCES}}}')}code: {{path: own}}\n"
    (folder / "run.yaml").write_text(text)
    with Pods(kube, claim) as pods:
        said = headway("run", "--on", "lab")
        assert said.exit_code == 0, said.err
        assert len(pods.seen) == 2


def test_a_set_on_the_claim(headway: Headway, kube: FakeKube, claim: Path, folder: Path) -> None:
    text = RUN.replace("TRAIN", "claim:sets/c4").replace("claim:text/0", "claim:text/1")
    (folder / "run.yaml").write_text(text)
    assert "claim:sets/c4 is a path on the claim of a target" in headway("run").err
    with Pods(kube, claim):
        missing = headway("run", "--on", "lab")
        assert missing.exit_code == Exit.NOT_FOUND
        assert headway(*PREPARE, "--into", "c4").exit_code == 0
        said = headway("run", "--on", "lab")
        assert said.exit_code == 0, said.err
    assert spec_of(kube)["train_set"] == "/headway/storage/sets/c4"


def test_streaming_what_is_here_is_refused(headway: Headway, kube: FakeKube, folder: Path) -> None:
    (folder / "text.txt").write_text("Once upon a time.")
    train = "{sources: [text.txt], tokenizer: {train: {vocab: 400}}, stream: true}"
    (folder / "run.yaml").write_text(RUN.replace("TRAIN", train))
    said = headway("run", "--on", "lab")
    assert "data.train.stream: text.txt is on this machine" in said.err
