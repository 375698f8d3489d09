"""A document is on one side of the held-out split by its content alone: it never moves, and none is
on both sides or on neither."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data.prepare.encode import content_hash, is_held_out
from headway.data.reading.verify import verify_set
from headway.data.set_format import SetManifest
from headway.data.tiny_stories import stories
from headway.errors import BadInput
from headway.state.store import Store
from support.prepared import (
    files_of,
    folder_in_memory,
    job_for,
    run,
    run_part,
    texts_of,
    tokens_of,
    write_lines,
)

Side = Literal["train", "held_out"]
SIDES: tuple[Side, Side] = ("train", "held_out")
STORIES = list(stories(15_000, 1))
SHARE = 0.3


def make(
    folder: Path, sources: Sequence[str], tokenizer: Path, side: Side, into: str, **more: Any
) -> SetManifest:
    more = {"hold_out": SHARE, **more}
    return run(job_for(sources, folder / into, tokenizer, side=side, **more))


def sides(folder: Path, sources: Sequence[str], tokenizer: Path, **more: Any) -> list[list[str]]:
    """The texts of both."""
    for side in SIDES:
        make(folder, sources, tokenizer, side, f"set-{side}", **more)
        assert verify_set(Store(folder / f"set-{side}")) == []
    return [texts_of(folder / f"set-{side}") for side in SIDES]


def expected(texts: Sequence[str], share: float = SHARE) -> list[list[str]]:
    held_out = [one for one in texts if is_held_out(content_hash(one), share)]
    return [[one for one in texts if one not in held_out], held_out]


# --- which side


def test_the_share_is_about_right() -> None:
    texts = [f"document {number}" for number in range(20_000)]
    for share in (0.001, 0.05, 0.5, 0.99):
        count = sum(is_held_out(content_hash(text), share) for text in texts)
        deviation = (len(texts) * share * (1 - share)) ** 0.5
        assert abs(count - len(texts) * share) < 4 * deviation


@given(text=st.text(), shares=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_a_larger_share_only_adds_to_a_smaller(text: str, shares: tuple[float, float]) -> None:
    """What was never trained on under 1 % is not trained on under 5 % either."""
    small, large = sorted(shares)
    digest = content_hash(text.encode(errors="replace").decode())
    assert is_held_out(digest, large) or not is_held_out(digest, small)
    assert is_held_out(digest, 1.0)
    assert not is_held_out(digest, 0.0)


def test_the_split_of_today_is_that_of_tomorrow() -> None:
    """Frozen: whoever changes this mixes training text into everybody's held-out sets."""
    texts = ["a", "b", "once upon a time", "ä 🦊", *map(str, range(8))]
    found = "".join("01"[is_held_out(content_hash(text), 0.5)] for text in texts)
    assert found == "100111111101"


@settings(max_examples=15)
@given(drawn=st.data())
def test_no_document_moves_when_files_are_added_or_reordered(
    tokenizer: Path, drawn: st.DataObject
) -> None:
    texts = drawn.draw(st.lists(st.sampled_from(STORIES), min_size=20, unique=True))
    numbers = drawn.draw(st.lists(st.integers(0, 3), min_size=len(texts), max_size=len(texts)))
    with folder_in_memory() as folder:
        names = []
        for number in drawn.draw(st.permutations(range(4))):
            mine = [text for text, at in zip(texts, numbers, strict=True) if at == number]
            names.append(f"{number}.jsonl")
            write_lines(folder / names[-1], [{"text": text} for text in mine])
        unit_bytes = drawn.draw(st.sampled_from([700, 4_000, 2**27]))
        found = sides(folder, names, tokenizer, unit_bytes=unit_bytes)
    assert [sorted(side) for side in found] == [sorted(side) for side in expected(texts)]


# --- both sides together


@pytest.mark.parametrize("suffix", ["txt", "jsonl", "jsonl.gz"])
def test_both_sides_together_hold_everything_in_order(
    folder: Path, tokenizer: Path, suffix: str
) -> None:
    content = "\n\n".join(STORIES)
    if suffix != "txt":
        content = "\n".join(json.dumps({"text": story}) for story in STORIES)
    packed = gzip.compress(content.encode()) if suffix.endswith("gz") else content.encode()
    (folder / f"text.{suffix}").write_bytes(packed)
    assert sides(folder, [f"text.{suffix}"], tokenizer, unit_bytes=3_000) == expected(STORIES)


def test_each_side_counts_what_is_on_the_other(folder: Path, tokenizer: Path) -> None:
    write_lines(folder / "a.jsonl", [*({"text": one} for one in STORIES), "{", {"text": " "}])
    train, held_out = (
        make(folder, ["a.jsonl"], tokenizer, side, side, unit_bytes=3_000) for side in SIDES
    )
    for one, other in ((train, held_out), (held_out, train)):
        assert one.statistics.num_held_out == other.num_documents
        assert one.num_documents + other.num_documents == len(STORIES)
        assert (one.statistics.num_blank, one.statistics.num_problems) == (1, 1)
    assert train.num_bytes + held_out.num_bytes == sum(len(one.encode()) for one in STORIES)


def test_all_copies_of_a_document_are_on_one_side(folder: Path, tokenizer: Path) -> None:
    (folder / "a.txt").write_text("\n\n".join(STORIES * 2))
    train, held_out = sides(folder, ["a.txt"], tokenizer)
    assert not set(train) & set(held_out)
    assert len(train) + len(held_out) == 2 * len(STORIES)
    for side in SIDES:
        made = make(folder, ["a.txt"], tokenizer, side, f"once-{side}", deduplicate=True)
        assert made.statistics.num_duplicates == made.num_documents
    assert [texts_of(folder / f"once-{side}") for side in SIDES] == expected(STORIES)


def test_of_conversations_it_is_the_whole_that_counts(folder: Path, tokenizer: Path) -> None:
    talks = [
        {"m": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": one}], "n": n}
        for n, one in enumerate(STORIES)
    ]
    told = [f"user: Why?\nassistant: {one}\n" for one in STORIES]
    write_lines(folder / "a.jsonl", talks)
    assert sides(folder, ["a.jsonl"], tokenizer, messages="m") == expected(told)


def test_windows(folder: Path, masked_tokenizer: Path) -> None:
    (folder / "a.txt").write_text("\n\n".join(STORIES))
    for number, texts in enumerate(expected(STORIES)):
        (folder / "only.txt").write_text("\n\n".join(texts))
        make(folder, ["a.txt"], masked_tokenizer, SIDES[number], f"{number}", window_tokens=32)
        only = job_for(["only.txt"], folder / f"only-{number}", masked_tokenizer, window_tokens=32)
        run(only)
        (mine,), (alone,) = tokens_of(folder / f"{number}"), tokens_of(folder / f"only-{number}")
        assert mine.tolist() == alone.tolist()


@pytest.mark.parametrize("side", SIDES)
def test_in_parts(folder: Path, tokenizer: Path, side: Side) -> None:
    (folder / "a.txt").write_text("\n\n".join(STORIES))
    job = job_for(["a.txt"], folder / "set", tokenizer, side=side, hold_out=SHARE, unit_bytes=3_000)
    run(job)
    for number in range(3):
        run_part(replace(job, into=str(folder / "parts")), number, 3)
    assert files_of(folder / "parts") == files_of(folder / "set")


def test_sides_cannot_be_resumed_from_each_other(folder: Path, tokenizer: Path) -> None:
    (folder / "a.txt").write_text("\n\n".join(STORIES))
    make(folder, ["a.txt"], tokenizer, "train", "set")
    with pytest.raises(BadInput, match="side: held_out, was train"):
        make(folder, ["a.txt"], tokenizer, "held_out", "set")
    with pytest.raises(BadInput, match=r"hold_out: 0\.2, was 0\.3"):
        make(folder, ["a.txt"], tokenizer, "train", "set", hold_out=0.2)


@pytest.mark.parametrize(("share", "side"), [(0.0001, "held_out"), (0.9999, "train")])
def test_a_side_without_documents_is_reported(
    folder: Path, tokenizer: Path, share: float, side: Side
) -> None:
    (folder / "a.txt").write_text("\n\n".join(STORIES[:5]))
    with pytest.raises(BadInput, match="5 on the other side of the hold_out split"):
        make(folder, ["a.txt"], tokenizer, side, "set", hold_out=share)
    assert not (folder / "set" / "manifest.json").exists()
