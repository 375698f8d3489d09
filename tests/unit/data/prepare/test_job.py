"""Text becomes a set that decodes to the same text, whoever prepares it and however often they are
stopped."""

from __future__ import annotations

import fcntl
import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.clock import SystemClock
from headway.data.formats.chunks import CHUNK_BYTES
from headway.data.formats.text_and_jsonl import PIECE_BYTES
from headway.data.prepare.encode import PIECE_CHARACTERS
from headway.data.prepare.job import PrepareJob, prepare
from headway.data.prepare.progress import PrepareProgress
from headway.data.reading.verify import verify_set
from headway.data.set_format import Layout, read_manifest
from headway.data.tiny_stories import stories
from headway.data.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer, trained_roles
from headway.errors import BadInput, NotFound, StillRunning
from headway.state.store import Store
from support.prepared import (
    documents_of,
    files_of,
    folder_in_memory,
    job_for,
    run,
    texts_of,
    tokens_of,
    write_lines,
)
from support.token_sets import table_of, write_set

STORIES = list(stories(30_000, 1))


@pytest.fixture
def text(folder: Path) -> Path:
    """A folder with a text."""
    (folder / "text.txt").write_text("\n\n".join(STORIES))
    return folder


# --- what a set holds


@pytest.mark.parametrize("unit_bytes", [2**27, 4_000, 700])
@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_a_stream_holds_every_document_and_the_end_of_each(
    folder: Path, tokenizer: Path, unit_bytes: int, suffix: str
) -> None:
    told = [*STORIES[:40], "Zwei Zeilen\nmit \u2028 ä 🦊 \x00\x1b und\ttab"]
    if suffix == "txt":
        (folder / "text.txt").write_text("\n\n".join(told))
    else:
        write_lines(folder / "text.jsonl", [{"text": story} for story in told])
    made = run(job_for([f"text.{suffix}"], folder / "set", tokenizer, unit_bytes=unit_bytes))
    assert texts_of(folder / "set") == told
    assert made.num_documents == len(told)
    assert made.num_tokens == sum(map(len, documents_of(folder / "set")))
    assert made.num_bytes == sum(len(story.encode()) for story in told)
    assert (made.num_shards > 1) == (unit_bytes < 10_000)
    assert verify_set(Store(folder / "set")) == []
    assert not (folder / "set" / "problems.jsonl").exists()


def test_documents_are_whole_where_chunks_meet(folder: Path, tokenizer: Path) -> None:
    told = [f"{number} {story}" for number, story in enumerate(stories(CHUNK_BYTES + 9_999, 1))]
    (folder / "text.txt").write_text("\n\n".join(told))
    made = run(job_for(["text.txt"], folder / "set", tokenizer))
    assert made.num_shards == 1
    record = json.loads((folder / "set" / "shards" / "00000.json").read_text())
    assert record["end_chunk"] > 1
    assert texts_of(folder / "set") == told


def test_the_same_text_gives_the_same_set_elsewhere(text: Path) -> None:
    one = run(job_for(["text.txt"], text / "set", 400))
    (text / "elsewhere").mkdir()
    (text / "text.txt").rename(text / "elsewhere" / "text.txt")
    other = run(job_for(["text.txt"], text / "elsewhere" / "set", 400))
    assert one.digest == other.digest
    assert one.recipe_digest == other.recipe_digest
    here, there = files_of(text / "set"), files_of(text / "elsewhere" / "set")
    for name in here.keys() | there.keys():
        assert here[name] == there[name] or name == "recipe.json", name


def test_text_cannot_forge_special_tokens(folder: Path, tokenizer: Path) -> None:
    told = ["He wrote <|endoftext|> and went on.", "<|endoftext|><|endoftext|>"]
    write_lines(folder / "text.jsonl", [{"text": one} for one in told])
    run(job_for(["text.jsonl"], folder / "set", tokenizer))
    assert texts_of(folder / "set") == told


def test_a_tokenizer_that_cuts_and_pads_loses_no_text(text: Path, tokenizer: Path) -> None:
    cutting = load_tokenizer(str(tokenizer), text)
    cutting.enable_truncation(5)
    cutting.enable_padding(length=5)
    save_tokenizer(cutting, trained_roles("stream"), text / "mine")
    run(job_for(["text.txt"], text / "set", "mine"))
    assert texts_of(text / "set") == STORIES


def test_a_tokenizer_that_adds_tokens_around_text_adds_none_here(
    text: Path, masked_tokenizer: Path
) -> None:
    made = run(job_for(["text.txt"], text / "set", masked_tokenizer, window_tokens=32))
    (shard,) = tokens_of(text / "set")
    inside = shard.reshape(-1, 32)[:, 1:-1]
    assert np.sum(inside == 2) == 0, "[CLS] only where windows begin"
    assert np.sum(inside == 3) == made.num_documents - 1, "[SEP] only between documents"


def test_a_validation_set_takes_the_tokenizer_of_the_training_set(text: Path) -> None:
    train = run(job_for(["text.txt"], text / "set", 400))
    validation = run(job_for(["text.txt"], text / "validation", "set/tokenizer"))
    assert validation.tokenizer_digest == train.tokenizer_digest
    assert validation.special_ids == train.special_ids
    assert validation.vocab_size == train.vocab_size == 400


# --- very long documents


WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def counted(count: int) -> tuple[str, list[int]]:
    """The digits of 0, 1, 2, ... in words, so that nothing can be lost or moved unseen; and their
    tokens."""
    digits = [int(digit) for number in range(count) for digit in str(number)]
    return " ".join(WORDS[digit] for digit in digits), [digit + 2 for digit in digits]


@pytest.mark.long("seven seconds; a test below has a record of five megabytes")
def test_a_document_of_ten_megabytes_on_one_line(folder: Path, word_tokenizer: Path) -> None:
    line, ids = counted(370_000)
    assert len(line) > 10_000_000 > 2 * PIECE_BYTES
    (folder / "text.txt").write_text(f"zero\n\n{line}\n\none\n\ntwo")
    made = run(job_for(["text.txt"], folder / "set", word_tokenizer))
    assert documents_of(folder / "set") == [[2, 1], [*ids, 1], [3, 1], [4, 1]]
    assert made.num_bytes == 4 + len(line) + 3 + 3
    assert made.statistics.num_long == 1
    assert sum(made.statistics.lengths) == made.num_documents == 4
    assert made.statistics.num_unknown == 0


def test_a_record_longer_than_the_tokenizer_can_take(folder: Path, tokenizer: Path) -> None:
    told = ["before", " ".join(stories(PIECE_CHARACTERS + 9_999, 1)), "after"]
    write_lines(folder / "text.jsonl", [{"text": one} for one in told])
    made = run(job_for(["text.jsonl"], folder / "set", tokenizer))
    assert texts_of(folder / "set") == told
    assert made.statistics.num_long == 1
    assert sum(made.statistics.lengths) == 3


def test_a_long_document_continues_in_the_next_shard(folder: Path, word_tokenizer: Path) -> None:
    line, ids = counted(190_000)
    assert len(line) > PIECE_BYTES
    packed = gzip.compress(f"zero\n\n{line}\n\none".encode(), 1)
    (folder / "text.txt.gz").write_bytes(packed)
    made = run(job_for(["text.txt.gz"], folder / "set", word_tokenizer, unit_bytes=2**20))
    assert made.num_shards > 1
    assert documents_of(folder / "set") == [[2, 1], [*ids, 1], [3, 1]]
    assert sum(made.statistics.lengths) == made.num_documents == 3


def test_a_long_document_whose_beginning_cannot_be_read_still_starts(
    folder: Path, word_tokenizer: Path
) -> None:
    line, ids = counted(230_000)
    bad = b"zero\n\n\xff" + line.encode() + b"\n\none"
    (folder / "text.txt").write_bytes(bad)
    made = run(job_for(["text.txt"], folder / "set", word_tokenizer))
    before, long, after = documents_of(folder / "set")
    assert (before, after) == ([2, 1], [3, 1])
    assert 0 < len(long) < len(ids)
    assert long[:-1] == ids[1 - len(long) :], "its end is there"
    assert made.statistics.problems == {"not UTF-8": 1}
    assert sum(made.statistics.lengths) == 3


# --- what is refused


@pytest.mark.parametrize(("layout", "lacks"), [("stream", "eos_token"), ("windows", "cls_token")])
def test_a_tokenizer_without_the_tokens_needed_is_refused(
    text: Path, layout: Layout, lacks: str
) -> None:
    other: Layout = "windows" if layout == "stream" else "stream"
    save_tokenizer(train_tokenizer(iter(STORIES), 400, other), trained_roles(other), text / "mine")
    with pytest.raises(BadInput, match=f"mine has no {lacks}"):
        run(job_for(["text.txt"], text / "set", "mine", layout=layout, window_tokens=16))
    assert not (text / "set" / "recipe.json").exists(), "nothing was begun"


@pytest.mark.parametrize("content", ["", " \n\n \n"])
@pytest.mark.parametrize("vocab", [None, 400])
def test_empty_text_is_refused(
    folder: Path, tokenizer: Path, content: str, vocab: int | None
) -> None:
    (folder / "text.txt").write_text(content)
    with pytest.raises(BadInput, match=r"no text in text\.txt"):
        run(job_for(["text.txt"], folder / "set", vocab or tokenizer))
    assert not (folder / "set" / "manifest.json").exists()


def test_text_shorter_than_one_window_is_refused(folder: Path, masked_tokenizer: Path) -> None:
    (folder / "text.txt").write_text("abc")
    with pytest.raises(BadInput, match="are too few for one window of 64"):
        run(job_for(["text.txt"], folder / "set", masked_tokenizer, window_tokens=64))
    with pytest.raises(BadInput, match="windows of 2 tokens have no room for text"):
        run(job_for(["text.txt"], folder / "other", masked_tokenizer, window_tokens=2))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"template": "{a}", "messages": "m"}, "one of messages and template"),
        ({"mask": "m"}, "mask needs ids"),
        ({"ids": "i", "mask": "m", "window_tokens": 8}, "mask cannot be used with windows"),
        ({"ids": "i", "unmask": {"positions": "p", "ids": "t"}}, "unmask needs ids, and windows"),
        ({"template": "no column"}, "names no column"),
        ({"template": "{a"}, "template '{a'"),
        ({"template": "{a:d}"}, "template '{a:d}'"),
    ],
)
def test_settings_that_make_no_sense_together_are_refused(
    text: Path, tokenizer: Path, settings: dict[str, Any], says: str
) -> None:
    job = job_for(["text.txt"], text / "set", tokenizer, **settings)
    with pytest.raises(BadInput, match=says):
        prepare(job, lambda _: None, SystemClock())
    assert not (text / "set" / "recipe.json").exists(), "nothing was begun"


def test_after_a_fix_the_same_folder_can_be_used(
    folder: Path, tokenizer: Path, word_tokenizer: Path
) -> None:
    talk = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    write_lines(folder / "text.jsonl", [{"m": talk, "text": "one"}])
    (folder / "code").mkdir()
    (folder / "code" / "mine_for_prepare.py").write_text("def right(record): return record['text']")
    code = {"code": folder / "code"}
    for wrong, right in (
        ({"tokenizer": word_tokenizer, "messages": "m"}, {"messages": "m"}),
        ({"transform": "mine_for_prepare:wrong"} | code, {"transform": "mine_for_prepare:right"}),
        ({"template": "{text!r}"}, {"template": "{text}"}),
    ):
        into = folder / f"set-{next(iter(right))}"
        settings = {"tokenizer": tokenizer, **(code if "transform" in right else {})}
        with pytest.raises(BadInput):
            run(job_for(["text.jsonl"], into, **settings | wrong))
        assert run(job_for(["text.jsonl"], into, **settings | right)).num_documents == 1


def test_another_chat_template_makes_another_set_of_conversations(
    folder: Path, tokenizer: Path
) -> None:
    talk = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    write_lines(folder / "text.jsonl", [{"m": talk, "text": "one"}])
    mine = shutil.copytree(tokenizer, folder / "mine")
    run(job_for(["text.jsonl"], folder / "talks", mine, messages="m"))
    run(job_for(["text.jsonl"], folder / "texts", mine))
    template = mine / "chat_template.jinja"
    template.write_text(template.read_text().replace(": ", " says "))
    with pytest.raises(BadInput, match="the tokenizer has changed"):
        run(job_for(["text.jsonl"], folder / "talks", mine, messages="m"))
    run(job_for(["text.jsonl"], folder / "texts", mine))


# --- progress


def test_progress_ends_with_what_the_set_holds(text: Path) -> None:
    seen: list[PrepareProgress] = []
    made = run(job_for(["text.txt"], text / "set", 400, unit_bytes=4_000), seen.append)
    assert seen[0].stage == "tokenizer"
    last = seen[-1]
    assert last.stage == "tokens"
    assert (last.documents, last.bytes) == (made.num_documents, made.num_bytes)
    assert last.tokens == made.num_tokens
    assert last.share == 1.0
    shares = [progress.share for progress in seen if progress.stage == "tokens"]
    assert shares == sorted(shares)  # type: ignore[type-var]
    assert 0 < shares[0] < 0.3  # type: ignore[operator]


@pytest.mark.parametrize("settings", [{"deduplicate": True}, {"window_tokens": 16}], ids=str)
def test_progress_counts_only_what_is_written(
    folder: Path, tokenizer: Path, masked_tokenizer: Path, settings: dict[str, Any]
) -> None:
    write_lines(folder / "text.jsonl", [{"text": one} for one in STORIES[:30] + STORIES[:20]])
    seen: list[PrepareProgress] = []
    used = masked_tokenizer if "window_tokens" in settings else tokenizer
    made = run(job_for(["text.jsonl"], folder / "set", used, **settings), seen.append)
    assert seen[-1].documents == made.num_documents
    assert seen[-1].tokens == made.num_tokens


# --- prepared by any number of processes, stopped and taken up again


@pytest.fixture(scope="module")
def packed(tokenizer: Path) -> Iterator[PrepareJob]:
    """A unit of two small files, and one of a compressed file that makes several shards."""
    with folder_in_memory() as folder:
        for name in ("a", "b"):
            write_lines(folder / f"{name}.jsonl", [{"text": f"{name} {one}"} for one in STORIES])
        lines = (json.dumps({"text": story}) for story in stories(2_200_000, seed=2))
        (folder / "c.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
        job = job_for(["a.jsonl", "b.jsonl", "c.jsonl.gz"], folder / "set", tokenizer)
        job = replace(job, settings=job.settings.model_copy(update={"unit_bytes": 100_000}))
        run(job)
        yield job


def test_a_compressed_file_makes_several_shards(packed: PrepareJob) -> None:
    names = [shard.name for shard in table_of(Path(packed.into))]
    assert names == ["00000", "00001", "00001-1", "00001-2"]
    told = [f"{name} {one}" for name in ("a", "b") for one in STORIES]
    assert texts_of(Path(packed.into)) == [*told, *stories(2_200_000, seed=2)]


def test_two_processes_make_the_same_bytes(packed: PrepareJob, folder: Path) -> None:
    run(replace(packed, into=str(folder / "set"), processes=2))
    assert files_of(folder / "set") == files_of(Path(packed.into))


@pytest.mark.parametrize("first_lost", range(4))
def test_what_is_finished_is_kept_and_the_rest_is_the_same(
    packed: PrepareJob, folder: Path, first_lost: int
) -> None:
    """Stopped before any record, inside a unit of several shards, and before the last one."""
    whole = files_of(Path(packed.into))
    names = [shard.name for shard in table_of(Path(packed.into))]
    lost = {f"shards/{name}.json" for name in names[first_lost:]}
    for name, content in whole.items():
        path = folder / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name != "manifest.json" and name not in lost:
            # A shard that was being written when the process was killed may hold anything.
            is_open = name.startswith(f"shards/{names[first_lost]}.")
            path.write_bytes(b"anything" if is_open else content)
    kept = {path: path.stat().st_mtime_ns for path in _finished(folder / "set", names[:first_lost])}
    seen: list[PrepareProgress] = []
    run(replace(packed, into=str(folder / "set")), seen.append)
    assert files_of(folder / "set") == whole
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    units = _unit_bytes(packed)
    before = units[0] / sum(units) if first_lost else 0.0
    assert all(progress.share_before == before for progress in seen)
    assert seen[0].share is not None
    assert before <= seen[0].share <= 1.0
    assert seen[-1].share == pytest.approx(1.0)
    assert seen[-1].documents == read_manifest(Store(packed.into)).num_documents
    assert seen[-1].tokens == read_manifest(Store(packed.into)).num_tokens


def _finished(folder: Path, names: list[str]) -> list[Path]:
    return [path for name in names for path in (folder / "shards").glob(f"{name}.*")]


def _unit_bytes(job: PrepareJob) -> list[int]:
    a, b, c = ((job.beside / name).stat().st_size for name in job.sources)
    return [a + b, c]


def test_a_finished_set_stays_untouched(text: Path, tokenizer: Path) -> None:
    job = job_for(["text.txt"], text / "set", tokenizer, deduplicate=True)
    made = run(job)
    before = {path: path.stat().st_mtime_ns for path in (text / "set").rglob("*") if path.is_file()}
    assert run(job) == made
    after = {path: path.stat().st_mtime_ns for path in (text / "set").rglob("*") if path.is_file()}
    assert after == before


def test_a_set_with_a_trained_tokenizer_is_recognised_and_not_trained_again(text: Path) -> None:
    made = run(job_for(["text.txt"], text / "set", 400))
    seen: list[PrepareProgress] = []
    assert run(job_for(["text.txt"], text / "set", 400), seen.append) == made
    assert seen == []


def test_another_preparation_is_refused_by_what_differs(text: Path, tokenizer: Path) -> None:
    run(job_for(["text.txt"], text / "set", tokenizer))
    before = files_of(text / "set")
    with pytest.raises(BadInput, match="different preparation") as caught:
        run(job_for(["text.txt"], text / "set", tokenizer, deduplicate=True, column="body"))
    assert "column: body, was text" in caught.value.message
    assert "deduplicate: True, was False" in caught.value.message
    with pytest.raises(BadInput, match="train_vocab: 300, was None"):
        run(job_for(["text.txt"], text / "set", 300))
    save_tokenizer(
        train_tokenizer(iter(STORIES), 300, "stream"), trained_roles("stream"), text / "mine"
    )
    with pytest.raises(BadInput, match="the tokenizer has changed"):
        run(job_for(["text.txt"], text / "set", "mine"))
    assert files_of(text / "set") == before


def test_a_source_that_has_changed_is_named(folder: Path, tokenizer: Path) -> None:
    for name in ("a", "b"):
        write_lines(folder / f"{name}.jsonl", [{"text": f"{name} {one}"} for one in STORIES])
    job = job_for(["*.jsonl"], folder / "set", tokenizer, unit_bytes=4_000)
    run(job)
    (folder / "set" / "manifest.json").unlink()
    content = (folder / "b.jsonl").read_text()
    (folder / "b.jsonl").write_text(content.replace("Once", "Ounce", 1))
    with pytest.raises(BadInput, match=r"b\.jsonl: has changed") as caught:
        run(job)
    assert "a.jsonl" not in caught.value.message
    (folder / "b.jsonl").rename(folder / "c.jsonl")
    with pytest.raises(BadInput, match=r"c\.jsonl: is new\n  b\.jsonl: is missing"):
        run(job)
    with pytest.raises(NotFound, match=r"b\.jsonl does not exist"):
        run(replace(job, sources=["a.jsonl", "b.jsonl"]))


def test_a_set_without_a_recipe_is_not_overwritten(text: Path, tokenizer: Path) -> None:
    write_set(text / "set", [([1, 2, 3], None)])
    before = files_of(text / "set")
    with pytest.raises(BadInput, match="already holds a prepared set"):
        run(job_for(["text.txt"], text / "set", tokenizer))
    assert files_of(text / "set") == before


def test_a_recipe_of_another_version_is_refused(text: Path, tokenizer: Path) -> None:
    job = job_for(["text.txt"], text / "set", tokenizer)
    run(job)
    path = text / "set" / "recipe.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))
    with pytest.raises(BadInput, match=r"recipe\.json: version"):
        run(job)


# --- alone


def test_two_preparations_into_one_folder_at_once_are_refused(text: Path, tokenizer: Path) -> None:
    job = job_for(["text.txt"], text / "set", tokenizer, unit_bytes=4_000)
    refused = []

    def meanwhile(_: PrepareProgress) -> None:
        with pytest.raises(StillRunning, match="set is being prepared by another process"):
            run(job)
        refused.append(True)

    run(job, meanwhile)
    assert refused
    assert texts_of(text / "set") == STORIES


def test_a_lock_that_was_left_behind_does_not_block(text: Path, tokenizer: Path) -> None:
    (text / "set").mkdir()
    (text / "set" / ".preparing").touch()
    job = job_for(["text.txt"], text / "set", tokenizer)
    with (text / "set" / ".preparing").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StillRunning):
            run(job)
    run(job)
    assert not (text / "set" / ".preparing").exists()


def test_preparing_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, headway.data.prepare.job, headway.data.masking\n"
        "loaded = {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
