"""Epochs of a training set that is prepared have a number of steps, and so a time and a cost."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from headway.cli.epoch_samples import epoch_samples, samples_of_set, uses_of_members
from headway.cli.launch_plan import planned
from headway.cli.run_sets import sets_of
from headway.data.reading.mixture import (
    MemberSpec,
    MixtureSet,
    member_shares,
    write_mixture,
)
from headway.data.reading.sample_set import open_set
from headway.data.tiny_stories import stories
from headway.spec.load import load_run
from headway.state.store import Store
from support.in_process import Headway
from support.prepared import job_for
from support.prepared import run as prepare
from support.token_sets import write_set

RUN = """\
version: 1
name: it
model: {type: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 64, n_positions: 128}}
data: {train: %s, sequence_length: 64}
batch: {global: 8, micro: 4}
train_for: 3 epochs
"""


def write_run(folder: Path, train: Any) -> None:
    (folder / "run.yaml").write_text(RUN % json.dumps(train))


def counted(location: Path, length: int = 64) -> int:
    """As workers count them."""
    with closing(open_set(Store(location))) as opened:
        return opened.num_samples(length)


def a_set(folder: Path, tokens: int, window_tokens: int | None = None) -> Path:
    write_set(folder, [([5] * tokens, None)], window_tokens=window_tokens)
    return folder


def facts(headway: Headway, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(headway("plan", *arguments, "--json").out)
    return found


def test_epochs_of_a_prepared_set_have_steps_a_time_and_a_cost(
    folder: Path, headway: Headway
) -> None:
    samples = counted(a_set(folder / "set", 64 * 1000 + 30))
    write_run(folder, "set")
    found = facts(headway, "--on", "H100:1", "--set", "model.config.vocab_size=100")
    steps = found["model"]["steps"]
    assert steps["value"] == -(-3 * samples // 8)
    assert steps["reason"] == f"train_for, {samples:,} sequences an epoch"
    (plan,) = found["plans"]
    assert plan["interruptions"]["run_seconds"]["value"] > 0
    assert plan["cost"]["usd"]["value"] > 0


@pytest.mark.parametrize("window_tokens", [None, 64])
@pytest.mark.parametrize("tokens", [64, 65, 64 * 7, 64 * 7 + 1])
def test_a_manifest_has_as_many_samples_as_its_set(
    tmp_path: Path, window_tokens: int | None, tokens: int
) -> None:
    if window_tokens is not None:
        tokens = tokens // window_tokens * window_tokens
    location = a_set(tmp_path / "set", tokens, window_tokens)
    assert samples_of_set(str(location), 64) == (counted(location) or None)


@pytest.mark.parametrize("how", [{"weight": 1.0}, {"epochs": 2.5}])
def test_a_mixture_has_as_many_samples_as_its_set(tmp_path: Path, how: dict[str, float]) -> None:
    members = [
        MemberSpec(name=name, location=str(a_set(tmp_path / name, tokens)), **how)
        for name, tokens in (("one", 6400), ("two", 999))
    ]
    write_mixture(Store(tmp_path / "mixed"), members)
    samples = counted(tmp_path / "mixed")
    assert samples_of_set(str(tmp_path / "mixed"), 64) == samples
    write_run(tmp_path, {"mixture": {one.name: {"path": one.location, **how} for one in members}})
    assert epoch_samples(load_run(tmp_path)) == samples
    with closing(MixtureSet.open(Store(tmp_path / "mixed"))) as opened:
        shares = member_shares(opened, 64)
    uses = uses_of_members(load_run(tmp_path, ["train_for=2 epochs"]))
    assert [uses[one.name].share for one in shares] == pytest.approx(
        [one.share for one in shares], rel=0.05
    )
    assert [uses[one.name].epochs for one in shares] == pytest.approx(
        [2 * float(one.num_epochs or 0) for one in shares], rel=0.1
    )
    (tmp_path / "two" / "manifest.json").unlink()
    assert epoch_samples(load_run(tmp_path)) is None
    assert samples_of_set(str(tmp_path / "mixed"), 64) is None


def test_check_says_how_often_a_mixture_reads_each_set(folder: Path, headway: Headway) -> None:
    a_set(folder / "one", 6401)
    train = {
        "one": {"path": "one", "weight": 3},
        "away": {"path": "s3://bucket/away", "weight": 1},
    }
    write_run(folder, {"mixture": train})
    said = headway("check", "--set", "train_for=50 steps")
    assert said.exit_code == 0, said.err
    # Three quarters of 400 samples, of which the set has 100.
    assert "\nmixture           one 75.0%, read 3 times; away 25.0%\n" in said.out
    found = json.loads(headway("check", "--json").out)
    assert found["mixture"] == {
        "one": {"share": 0.75, "epochs": None},
        "away": {"share": 0.25, "epochs": None},
    }, "3 epochs of a mixture with a set that is elsewhere"


def test_check_says_what_sizes_and_limits_decide(folder: Path, headway: Headway) -> None:
    a_set(folder / "large", 64 * 800 + 1)
    a_set(folder / "small", 64 * 100 + 1)
    train = {"large": {"path": "large"}, "small": {"path": "small", "max_epochs": 2}}
    write_run(folder, {"mixture": train, "temperature": 3})
    # 8 ** (1 / 3) to 1, until a third of the run is more than twice the small set.
    said = headway("check", "--set", "train_for=60 steps")
    assert said.exit_code == 0, said.err
    assert (
        "\nmixture           large 66.7%, read 0.4 times; small 33.3%, read 1.6 times\n" in said.out
    )
    said = headway("check", "--set", "train_for=100 steps")
    assert (
        "\nmixture           large 75.0%, read 0.75 times; small 25.0%, read 2 times\n" in said.out
    )
    said = headway("check", "--set", "train_for=2 epochs")
    assert "small 11.1%, read 2 times" in said.out
    train["large"]["max_epochs"] = 2
    write_run(folder, {"mixture": train, "temperature": 3})
    said = headway("check", "--set", "train_for=500 steps")
    assert said.exit_code == 2
    assert "together they give 1,800 samples (large 1,600, small 200)" in said.err
    assert "--set 'train_for=224 steps'" in said.err


def test_sources_have_epochs_once_a_run_has_prepared_them(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("\n\n".join(stories(5_000, 1)))
    prepare(job_for(["one.txt"], tmp_path / "other", 400))
    write_run(
        tmp_path, {"sources": ["one.txt"], "tokenizer": {"from": str(tmp_path / "other/tokenizer")}}
    )
    loaded = load_run(tmp_path)
    assert epoch_samples(loaded) is None
    with ExitStack() as background:
        sets = sets_of(loaded, background)
    assert epoch_samples(loaded) == counted(Path(sets.train)) > 0
    kept = planned(loaded, 1, None, sets.train)
    assert kept is not None
    assert kept.figures["steps"].value == -(-3 * counted(Path(sets.train)) // 8)
    (tmp_path / "one.txt").write_text("another text")
    assert epoch_samples(loaded) is None, "it is prepared anew"


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"sources": ["text.txt"]}, "it is not prepared on this machine"),
        ("nothing-there", "it is not prepared on this machine"),
        ("s3://bucket/set", "is in s3://bucket/set, which a plan does not fetch"),
        ("claim:sets/wiki", "is in claim:sets/wiki, which a plan does not fetch"),
        ({"sources": ["text.txt"], "stream": True}, "an epoch of a streamed set has no known"),
    ],
)
def test_what_is_missing_is_said_with_how_to_give_it(
    folder: Path, headway: Headway, train: Any, words: str
) -> None:
    if isinstance(train, dict):
        train["tokenizer"] = {"train": {"vocab": 400}}
    write_run(folder, train)
    asked = ("--on", "H100:1", "--set", "model.config.vocab_size=100")
    (plan,) = facts(headway, *asked)["plans"]
    (note,) = [note for note in plan["notes"] if "train_for: 3 epochs" in note]
    assert words in note
    assert note.endswith("--set 'train_for=N tokens'")
    assert "cost" not in plan
    (plan,) = facts(headway, *asked, "--set", "train_for=1M tokens")["plans"]
    assert plan["cost"]["usd"]["value"] > 0
