"""Each of the five tutorials is one folder, at most three commands to train, and one to remove."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

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
    full = [without_machine(words) for words in tutorial.commands("Train")]
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
