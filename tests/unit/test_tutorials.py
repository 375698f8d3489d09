"""Each of the five tutorials is one folder, at most three commands to train, and one to remove."""

from __future__ import annotations

import json
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from headway.cli.target.add import _lines_of
from headway.kube.cluster_facts import cluster_facts
from headway.kube.target_choice import Wishes, target_lines
from headway.spec.target_text import target_block
from support.in_process import Headway
from support.tutorial import Tutorial, tutorials, without_settings

HEADINGS = [
    "What you get",
    "By hand",
    "Train",
    "Look",
    "Remove",
    "Small",
]
PLACEHOLDERS = {"IMAGE", "STORAGE"}
"""Words that a reader fills in."""

each = pytest.mark.parametrize("tutorial", tutorials(), ids=lambda one: one.folder.name)


@each
def test_its_page_has_these_headings(tutorial: Tutorial) -> None:
    assert list(tutorial.sections) == HEADINGS


@each
def test_three_commands_train_and_one_removes(tutorial: Tutorial) -> None:
    train, remove = tutorial.commands("Train"), tutorial.commands("Remove")
    assert len(train) <= 3
    assert len(remove) == 1
    for words in (*train, *remove):
        assert words[0] == "headway"
        assert {word for word in words if word.isupper()} <= PLACEHOLDERS


@each
def test_small_are_the_same_commands(tutorial: Tutorial) -> None:
    """With settings; and without the machine that the test cluster has not."""
    full = [without_settings(without_machine(words)) for words in tutorial.commands("Train")]
    assert [without_settings(words) for words in tutorial.commands("Small")] == full


def without_machine(words: list[str]) -> list[str]:
    if "--machine" not in words:
        return words
    place = words.index("--machine")
    return words[:place] + words[place + 2 :]


@each
def test_it_removes_all_that_it_runs(tutorial: Tutorial) -> None:
    names = [
        name_of(tutorial.folder, words) for words in tutorial.commands("Train") if words[1] == "run"
    ]
    (remove,) = tutorial.commands("Remove")
    named = remove[2 : remove.index("--on")]
    assert named == names


def name_of(folder: Path, words: list[str]) -> str:
    file = words[2] if words[2].endswith(".yaml") else "run.yaml"
    return str(yaml.safe_load((folder / file).read_text())["name"])


# --- on the machines of the tutorials

CLUSTERS = Path(__file__).parent / "kube" / "clusters"
T4S = CLUSTERS / "t4s.json"
"""Nodes of the tutorials whose command names no machine."""
IMAGE = f"registry.example/torch@sha256:{'0' * 64}"
STORAGE = {"bert-two-phases": "claim:shared-fs"}
"""Of a tutorial that needs a claim, since its data is there."""
WISHES = ("--image", "--storage", "--machine")


def added(tutorial: Tutorial, words: list[str]) -> tuple[str, str]:
    """Return name and text of the target that `target add` writes on the tutorial's machines."""
    flags = dict(pairwise(words[4:]))
    typed = {flag: value for flag, value in flags.items() if flag in WISHES}
    typed |= {"--image": IMAGE, "--storage": STORAGE.get(tutorial.folder.name, "s3://team/runs")}
    cloud = "gke" if typed.get("--machine", "").startswith("a2-") else "eks"
    known = json.loads((CLUSTERS / f"{cloud}.json").read_text())
    if "--machine" not in typed:
        known["nodes"] = json.loads(T4S.read_text())["nodes"]
    wishes = Wishes(words[3], "cloud", "ml", typed=typed, **{k[2:]: v for k, v in typed.items()})
    lines = target_lines(cluster_facts(known), wishes, {})
    for setting in (value for flag, value in pairwise(words) if flag == "--set"):
        lines += _lines_of(setting)
    return words[3], target_block(words[3], lines, "of the tutorial")


@each
def test_what_it_trains_fits_its_own_machines(
    tutorial: Tutorial, headway: Headway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = shutil.copytree(tutorial.folder, folder / "example")
    monkeypatch.chdir(here)
    add, *runs = tutorial.commands("Train")
    name, block = added(tutorial, add)
    (here / "targets.yaml").write_text(block)
    for words in runs:
        assert words[1] == "run"
        said = headway("check", *words[2:])
        assert said.exit_code == 0, f"{shlex.join(words)}: {said.err}\n{block}"
        assert name in words
