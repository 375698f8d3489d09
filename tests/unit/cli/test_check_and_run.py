"""`run` refuses nothing that `check` could have known: the same words, the same exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.errors import Exit
from support.in_process import Headway

TARGETS = """\
{name}:
  kube: {{namespace: ml}}
  image: registry.example/headway@sha256:{digest}
  storage: {storage}
  pod: {{resources: {{cpu: 4, memory: 64Gi{more}}}}}
"""
ON_CLAIM = 'data={train: {sources: ["claim:text/a"], tokenizer: {train: {vocab: 512}}}}'
HUGE = "batch={global: 1000000, micro: 1000000}"


@pytest.fixture
def tiny(headway: Headway, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Headway:
    assert headway("init", "tiny", "my-run").exit_code == 0
    monkeypatch.chdir(folder / "my-run")
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "no-cache"))
    return headway


def target(storage: str = "s3://bucket/team", more: str = "") -> None:
    text = TARGETS.format(name="lab", digest="0" * 64, storage=storage, more=more)
    Path("targets.yaml").write_text(text)


def refused_alike(headway: Headway, *settings: str, on: str | None = None) -> str:
    """What both say last, and with which exit code."""
    given = [part for one in settings for part in ("--set", one)]
    place = [] if on is None else ["--on", on]
    check = headway("check", *place, *given)
    run = headway("run", *place, *(["--dry-run"] if on else []), *given)
    assert (check.exit_code, check.err) == (run.exit_code, run.err)
    assert check.exit_code != 0, check.out
    return f"{check.exit_code} {check.err}"


def test_a_run_that_does_not_fit_ends_check_with_4(tiny: Headway) -> None:
    assert " does not fit on cpu:1: " in refused_alike(tiny, HUGE)
    said = tiny("check", "--set", HUGE)
    assert said.exit_code == Exit.CHECK_FAILED
    assert "\nplan              does not fit on cpu:1: " in said.out
    assert "--anyway" in said.err


def test_what_does_not_fit_is_a_problem_for_programs_too(tiny: Headway) -> None:
    said = tiny("check", "--json", "--set", HUGE)
    (problem,) = json.loads(said.out)["problems"]
    assert said.exit_code == Exit.CHECK_FAILED
    assert " does not fit on cpu:1: " in problem["problem"]


def test_what_does_not_fit_on_a_target_ends_check_with_4(tiny: Headway) -> None:
    target()
    said = tiny("check", "--on", "lab", "--set", HUGE)
    assert (said.exit_code, " does not fit on cpu:1: " in said.err) == (Exit.CHECK_FAILED, True)


def test_a_run_that_has_begun_did_fit(tiny: Headway) -> None:
    Path("runs/my-run").mkdir(parents=True)
    Path("runs/my-run/run.json").write_text("{}")
    said = tiny("check", "--set", HUGE)
    assert (said.exit_code, said.err.startswith("warning: ")) == (0, True), said.err


def test_a_path_on_a_claim_needs_a_target_with_one(tiny: Headway) -> None:
    assert refused_alike(tiny, ON_CLAIM).endswith(
        "data.train: claim:text/a is a path on the claim of a target\nhint: add --on TARGET\n"
    )
    target()
    assert refused_alike(tiny, ON_CLAIM, on="lab").startswith(
        "2 error: --set data: data.train: claim:text/a: the storage of target lab is no claim\n"
        "hint: name an address"
    )
    target("{claim: team}")
    assert tiny("check", "--on", "lab", "--set", ON_CLAIM).exit_code == 0


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("data.train.deduplicate=true", "deduplicate needs all sources in one process"),
        ('data.train.sources=["claim:a", data]', "data is on this machine"),
        ('data.train.sources=["claim:../a"]', "write claim:PATH, a path inside the claim"),
        ("data.train=claim:/a/b", "write claim:PATH, a path inside the claim"),
    ],
)
def test_what_pods_cannot_prepare_is_refused(tiny: Headway, setting: str, says: str) -> None:
    target("{claim: team}")
    assert says in refused_alike(tiny, ON_CLAIM, setting, on="lab")


def test_data_that_the_image_cannot_prepare(tiny: Headway) -> None:
    target("{claim: team}")
    image = "registry.example/other@sha256:" + "1" * 64
    with Path("targets.yaml").open("a") as file:
        file.write(f"  coordinator: {{image: {image}}}\n")
    assert "lab.prepare.image: " in refused_alike(tiny, ON_CLAIM, on="lab")
    assert tiny("check", "--on", "lab").exit_code == 0, "prepared here, and uploaded"


def test_a_set_with_the_name_of_held_out_documents(tiny: Headway) -> None:
    text = "data.validation={held_out: {sources: [data]}}"
    assert "the name of the one that hold_out makes" in refused_alike(
        tiny, "data.train.hold_out=5%", text
    )


def test_a_shard_over_more_nodes_than_there_are(tiny: Headway) -> None:
    assert "1 node is not a multiple of 2" in refused_alike(tiny, "shard=2 nodes")


@pytest.mark.parametrize("is_script", [True, False])
def test_a_pod_that_requests_a_device_of_another_maker(tiny: Headway, is_script: bool) -> None:
    if is_script:
        Path("run.yaml").write_text("version: 1\nname: it\ncommand: [python, train.py]\n")
        Path("train.py").write_text("print(1)\n")
    target(more=", aws.amazon.com/neuron: 1")
    assert refused_alike(tiny, on="lab").startswith(
        "2 error: targets.yaml:5:43: pod.resources: aws.amazon.com/neuron requests AWS Trainium "
        "and Inferentia, and Headway does not run on them\n"
    )


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_vocabulary_too_small_for_a_tokenizer_that_is_known(
    tiny: Headway, folder: Path, monkeypatch: pytest.MonkeyPatch, is_cached: bool
) -> None:
    """Of a published model, or in the cache of the hub: workers would find out, after the start."""
    name, size = ("some/tokenizer", 700) if is_cached else ("gpt2", 50257)
    if is_cached:
        monkeypatch.setenv("HF_HUB_CACHE", str(folder / "cache"))
        saved = folder / "cache/models--some--tokenizer/snapshots/main/tokenizer.json"
        saved.parent.mkdir(parents=True)
        vocabulary = {f"w{number}": number for number in range(size)}
        saved.write_text(json.dumps({"model": {"vocab": vocabulary}}))
    said = refused_alike(
        tiny, "model.config.vocab_size=512", f"data.train.tokenizer={name}", "data.validation={}"
    )
    assert said.startswith(
        f"2 error: --set model.config.vocab_size: the tokenizer has {size} tokens, and the model "
        "512\n"
    )
