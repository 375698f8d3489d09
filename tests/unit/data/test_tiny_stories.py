"""The text that `headway init tiny` brings is readable, consistent and always the same."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

from headway.data.formats.chunks import SourceRecord
from headway.data.formats.readers import file_chunks
from headway.data.tiny_stories import stories, write_text


def documents(file: Path) -> list[str]:
    records = [r for chunk in file_chunks(file.name, file.parent) for r in chunk.records()]
    assert all(isinstance(record, SourceRecord) for record in records)
    return [record.value for record in records]


def test_the_same_seed_tells_the_same_stories() -> None:
    assert list(stories(20_000, 1)) == list(stories(20_000, 1))
    assert not set(stories(20_000, 1)) & set(stories(20_000, 2))


def test_the_first_story_is_frozen() -> None:
    """Loss curves in the docs are of this text."""
    assert next(stories(1, 1)).startswith(
        "Once there was a shy girl named Emma. She lived by the sea."
    )


def test_stories_begin_alike_and_differ_later() -> None:
    told = list(stories(300_000, 3))
    assert all(story.startswith("Once") for story in told)
    assert all(story.endswith(".") for story in told)
    assert len(set(told)) > 0.99 * len(told)
    assert 250 < sum(map(len, told)) / len(told) < 800


def test_a_story_keeps_its_name_and_its_animal_to_the_end() -> None:
    for story in itertools.islice(stories(10**6, 4), 200):
        found = re.search(r"named (\w+)", story)
        assert found is not None
        assert story.count(found[1]) >= 4
        sentences = story.split(". ")
        assert found[1] in sentences[-1]


def test_nothing_is_left_unfilled() -> None:
    for story in itertools.islice(stories(10**6, 5), 300):
        assert not re.search(r"[{}<>]|  |None|\ba [aeiou]", story)


def test_written_files_have_the_size_promised_and_separate_documents(tmp_path: Path) -> None:
    write_text(tmp_path / "text")
    train, validation = tmp_path / "text" / "train.txt", tmp_path / "text" / "validation.txt"
    assert 1.9e6 < train.stat().st_size < 2.1e6
    assert 0.9e5 < validation.stat().st_size < 1.1e5
    texts = documents(train)
    assert texts == list(stories(2_000_000, 1))
    assert not set(texts) & set(documents(validation))


def test_making_text_needs_nothing_installed() -> None:
    code = "import sys, headway.data.tiny_stories; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
