"""Looking at prepared sets and mixtures from the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer

from headway.clock import SystemClock
from headway.data.prepare.job import PrepareJob, prepare
from headway.data.prepare.recipe import RecipeSettings
from headway.data.reading.inspect import histogram_bars, loss_spans, visible
from headway.data.reading.mixture import (
    MemberSpec,
    MixtureManifest,
    MixtureSet,
    write_mixture,
)
from headway.data.reading.token_set import TokenSet
from headway.data.set_format import file_digest
from headway.data.tiny_stories import stories
from headway.data.tokenizer import TokenizerSource, load_tokenizer
from headway.errors import Exit
from headway.state.store import Store
from support.fake_s3 import fake_s3
from support.in_process import Headway
from support.prepared import run_part
from support.token_sets import copy_to, write_set

STORIES = list(stories(12_000, 1))
END = "<|endoftext|>"


def make(
    folder: Path,
    into: str,
    sources: Sequence[str] = ("text.txt",),
    tokenizer: str | None = "tokenizer",
    **settings: Any,
) -> None:
    prepare(job_of(folder, into, sources, tokenizer, **settings), lambda _: None, SystemClock())


def job_of(
    folder: Path,
    into: str,
    sources: Sequence[str] = ("text.txt",),
    tokenizer: str | None = "tokenizer",
    **settings: Any,
) -> PrepareJob:
    source = TokenizerSource(load=tokenizer) if tokenizer else TokenizerSource(train_vocab=400)
    return PrepareJob(
        sources=sources,
        tokenizer=source,
        into=str(folder / into),
        beside=folder,
        settings=RecipeSettings(**settings),
        processes=1,
    )


def write_lines(path: Path, records: Sequence[object]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once: text.txt, its tokenizer, and the sets `wiki` (7 kB a shard) and `code`."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "text.txt").write_text("\n\n".join(STORIES))
    make(folder, "wiki", tokenizer=None, unit_bytes=4_000)
    shutil.copytree(folder / "wiki" / "tokenizer", folder / "tokenizer")
    write_lines(folder / "code.jsonl", [{"text": f"def f{i}(): return {i}"} for i in range(300)])
    make(folder, "code", ["code.jsonl"])
    return folder


@pytest.fixture
def here(made: Path, folder: Path) -> Path:
    """The user's folder, with all of that in it."""
    shutil.copytree(made, folder, dirs_exist_ok=True)
    return folder


def flip(path: Path, at: int = 100) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(bytes(content))


def rows_of(out: str) -> dict[str, str]:
    """What `show` says, by its first column."""
    rows = [line for line in out.split("\n\n")[0].splitlines() if not line.startswith(" ")]
    return {line[:12].strip(): line[12:] for line in rows}


def table_of(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if "%" in line]


# --- show


def test_show_of_a_set(headway: Headway, here: Path) -> None:
    said = headway("data", "show", "wiki", "--sequence-length", "100")
    assert (said.exit_code, said.err) == (0, "")
    manifest = TokenSet.open(Store("wiki")).manifest
    text = sum(len(story.encode()) for story in STORIES)
    rows = rows_of(said.out)
    assert rows["set"] == "wiki"
    assert rows["layout"].startswith("stream")
    assert f"in {len(STORIES)} documents" in rows["tokens"]
    assert rows["text"] == f"{text / 1e3:.3g} kB, {text / manifest.num_tokens:.2f} bytes a token"
    assert rows["vocabulary"] == "400 tokens, uint16"
    assert (rows["unknown"], rows["loss"]) == ("none", "all tokens count")
    size = sum(path.stat().st_size for path in (here / "wiki" / "shards").glob("*[!n]"))
    assert rows["files"] == f"{manifest.num_shards} shards, {size / 1e3:.3g} kB"
    assert rows["order"] == "blocks of 1.05M tokens, 64 of them mixed at a time"
    samples, left = divmod(manifest.num_tokens - 1, 100)
    assert rows["samples"] == f"{samples} an epoch, of 100 tokens, {left} tokens left over"
    assert rows["sources"].startswith("text.txt, ")
    assert rows["left out"] == "nothing"


def test_the_histogram_has_every_document_and_fits_a_terminal(headway: Headway, here: Path) -> None:
    out = headway("data", "show", "wiki").out
    assert out.isascii()
    assert max(map(len, out.splitlines())) < 80
    drawn = out.split("share, number\n")[1].splitlines()
    shares = [float(line.split()[3].rstrip("%")) for line in drawn]
    assert sum(shares) == pytest.approx(100, abs=0.3)
    opened = TokenSet.open(Store("wiki"))
    starts = [opened.document_starts(number) for number in range(len(opened.table))]
    long = sum(
        int(np.sum(np.diff([*found, shard.num_tokens]) >= 256))
        for found, shard in zip(starts, opened.table, strict=True)
    )
    shown = sum(int(line.split()[4]) for line in drawn if int(line.split()[0]) >= 256)
    assert shown == long > 0


def test_bars() -> None:
    drawn = histogram_bars([0, 0, 5, 0, 1000, 1], 10)
    assert [(bar.low, bar.count) for bar in drawn] == [(4, 5), (8, 0), (16, 1000), (32, 1)]
    assert [bar.drawn for bar in drawn] == [".", "", "##########", "."]
    assert histogram_bars([], 10) == []


def test_show_says_what_was_left_out(headway: Headway, here: Path) -> None:
    texts = [*STORIES[:9], *STORIES[:2], " \n "]
    for number in range(5):
        write_lines(here / f"some-{number}.jsonl", [{"text": f"{number} {t}"} for t in texts])
    with (here / "some-0.jsonl").open("a") as file:
        file.write('{broken\n{"body": "no"}\n{"text": " "}\n')
    make(here, "set", ["some-*.jsonl"], deduplicate=True, hold_out=0.2)
    said = headway("data", "show", "set")
    assert said.exit_code == 0
    assert "left out    1 record of white space only\n" in said.out
    assert "            2 records that could not be read:\n" in said.out
    assert "              1 no column\n              1 not JSON\n" in said.out
    assert "              listed in set/problems.jsonl\n" in said.out
    assert "on the other side of the held-out split" in said.out
    assert "            and 2 more; " in said.out
    found = json.loads(headway("data", "show", "set", "--json").out)
    assert found["kind"] == "set"
    assert found["left_out"]["problems"] == {"no column": 1, "not JSON": 1}
    assert found["left_out"]["duplicates"] > 0
    assert found["num_documents"] == sum(found["lengths"])
    assert [file["name"] for file in found["sources"]] == [f"some-{i}.jsonl" for i in range(5)]
    assert found["settings"] == {"deduplicate": True, "hold_out": 0.2}
    assert Path(found["problems_file"]).is_file()


def test_show_of_windows_knows_their_length(headway: Headway, here: Path) -> None:
    write_lines(here / "lines.jsonl", [{"text": story} for story in STORIES])
    headway("data", "tokenizer", "text.txt", "--vocab", "400", "--masked", "--into", "masked")
    make(here, "set", ["lines.jsonl"], "masked", layout="windows", window_tokens=32)
    said = headway("data", "show", "set")
    assert "windows of 32 tokens" in said.out
    assert "of 32 tokens" in rows_of(said.out)["samples"]
    assert "short of a window" in said.out
    said = headway("data", "show", "set", "--sequence-length", "64")
    assert said.exit_code == 2
    assert "hint: set sequence_length to 32" in said.err
    said = headway("data", "sample", "set", "-n", "2")
    assert said.exit_code == 0
    assert said.out.count("[CLS]") == 2
    assert "before tokens are masked" in said.out
    assert "[MASK]" not in said.out
    assert "[SEP]" in headway("data", "sample", "set", "-n", "1", "--documents").out


def test_show_of_a_set_that_is_too_short(headway: Headway, folder: Path) -> None:
    write_set(folder / "short", [(list(range(1, 30)), None)])
    said = headway("data", "show", "short/")
    assert (said.exit_code, said.err) == (0, "")
    assert rows_of(said.out)["samples"] == "none: too few tokens for one of 1024"
    assert rows_of(said.out)["left out"] == "nothing"


def test_show_of_a_set_whose_recipe_is_gone(headway: Headway, here: Path) -> None:
    (here / "wiki" / "recipe.json").unlink()
    said = headway("data", "show", "wiki")
    assert (said.exit_code, said.err) == (0, "warning: wiki/recipe.json is missing\n")
    assert "sources" not in rows_of(said.out)


def test_show_of_an_unfinished_preparation(headway: Headway, here: Path) -> None:
    run_part(job_of(here, "parts", unit_bytes=4_000), 0, 2)
    said = headway("data", "show", "parts")
    assert (said.exit_code, said.err) == (0, "")
    rows = rows_of(said.out)
    found = json.loads(headway("data", "show", "parts", "--json").out)
    assert 0 < found["num_finished"] < found["num_units"]
    assert rows["state"].startswith("not finished")
    assert rows["finished"].startswith(f"{found['num_finished']} of {found['num_units']} pieces")
    assert found["num_finished"] > 1, "the second piece is of another part"
    assert found["num_tokens"] == (here / "parts/shards/00000.tokens").stat().st_size // 2
    assert rows["so far"].endswith("up to the first piece that is not finished")
    assert rows["next"] == "run the same headway data prepare command to resume"


def test_a_preparation_that_failed_says_why(headway: Headway, here: Path) -> None:
    run_part(job_of(here, "growing", in_sequence=True, unit_bytes=4_000), 0, 2)
    (here / "growing" / "failed.txt").write_text("the disk is full\nhint: make room")
    rows = rows_of(headway("data", "show", "growing").out)
    assert rows["state"] == "not finished: its preparation failed"
    assert rows["cause"] == "the disk is full"


@pytest.mark.parametrize("command", ["show", "sample", "verify"])
def test_there_is_nothing(headway: Headway, folder: Path, command: str) -> None:
    said = headway("data", command, "nowhere")
    assert (said.exit_code, said.out) == (Exit.NOT_FOUND, "")
    assert "nowhere is not a prepared set" in said.err
    assert "hint: " in said.err


def test_sets_in_a_store(headway: Headway, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(here / "cache"))
    local = headway("data", "sample", "wiki", "-n", "2", "--sequence-length", "50", "--json")
    with fake_s3():
        copy_to("s3://bucket/wiki", here / "wiki")
        copy_to("s3://bucket/code", here / "code")
        assert rows_of(headway("data", "show", "s3://bucket/wiki").out)["set"] == "s3://bucket/wiki"
        where = ("data", "sample", "s3://bucket/wiki", "-n", "2")
        assert headway(*where, "--sequence-length", "50", "--json").out == local.out
        assert END in headway(*where, "--documents").out
        assert headway("data", "verify", "s3://bucket/wiki").exit_code == 0
        members = [
            MemberSpec(name=name, location=f"../{name}", weight=1) for name in ("wiki", "code")
        ]
        write_mixture(Store("s3://bucket/mix"), members)
        assert len(table_of(headway("data", "show", "s3://bucket/mix").out)) == 2
        assert headway("data", "show", "s3://bucket/nowhere").exit_code == Exit.NOT_FOUND


# --- sample


def test_samples_are_those_that_training_sees(headway: Headway, here: Path) -> None:
    opened = TokenSet.open(Store("wiki"))
    arguments = ("data", "sample", "wiki", "--n", "3", "--sequence-length", "40", "--seed", "7")
    _, numbers = opened.order(7, 40).at(0, 3)
    rows = opened.read(numbers, 40).tokens
    found = json.loads(headway(*arguments, "--json").out)
    assert [one["position"] for one in found] == [0, 1, 2]
    assert [one["sample"] for one in found] == numbers.tolist()
    assert [one["ids"] for one in found] == rows.tolist()
    assert all(one["mask"] is None for one in found)
    tokenizer = load_tokenizer("wiki/tokenizer", here)
    said = headway(*arguments)
    assert said.err == ""
    for one, ids in zip(found, rows.tolist(), strict=True):
        text = tokenizer.decode(ids, skip_special_tokens=False)
        assert one["text"] == text
        title = f"--- position {one['position']}, epoch 0, sample {one['sample']}"
        assert f"{title}\n{text}\n" in said.out
    assert "does not count" not in said.out
    assert headway(*arguments[:-1], "8").out != said.out


def test_samples_of_a_set_that_is_being_prepared(headway: Headway, here: Path) -> None:
    sizes = {"block_tokens": 64, "window_blocks": 2, "unit_bytes": 4_000}
    run_part(job_of(here, "growing", in_sequence=True, **sizes), 0, 3)
    arguments = ("data", "sample", "growing", "--sequence-length", "32")
    found = json.loads(headway(*arguments, "-n", "1000", "--json").out)
    assert 1 < len(found) < 1000, "those that are there, and it does not wait for more"
    assert f"the first {len(found)} samples" in headway(*arguments, "-n", "1000").out
    said = headway(*arguments[:-1], "100000")
    assert said.exit_code == 2
    assert "hint: to see its progress: headway data show growing" in said.err
    assert headway("data", "sample", "growing", "--documents").exit_code == 2


def test_samples_of_a_set_that_has_none(headway: Headway, here: Path) -> None:
    said = headway("data", "sample", "wiki", "--sequence-length", "100000")
    assert (said.exit_code, said.out) == (2, "")
    assert "hint: use more text or a shorter sequence_length" in said.err


def test_what_is_outside_the_loss_is_marked(headway: Headway, here: Path) -> None:
    tokenizer = load_tokenizer("tokenizer", here)
    parts = [tokenizer.encode(text).ids for text in ("Once upon", " a time", " there was")]
    record = {
        "ids": [token for part in parts for token in part],
        "counts": [count for part, count in zip(parts, (1, 0, 1), strict=True) for _ in part],
    }
    parquet.write_table(pa.Table.from_pylist([record] * 4), here / "ids.parquet")
    make(here, "set", ["ids.parquet"], ids="ids", mask="counts")
    length = len(record["ids"])
    said = headway("data", "sample", "set", "--sequence-length", str(length), "-n", "1")
    assert "[-text in these brackets-] does not count for the loss\n" in said.out
    assert "Once upon[- a time-] there was" in said.out
    said = headway("data", "sample", "set", "--documents", "-n", "1")
    assert "\nOnce upon[- a time-] there was\n" in said.out
    (found,) = json.loads(headway("data", "sample", "set", "--documents", "-n1", "--json").out)
    assert found["ids"] == record["ids"]
    assert found["mask"] == record["counts"]
    assert found["text"] == "Once upon a time there was"
    share = 1 - sum(record["counts"]) / length
    loss = rows_of(headway("data", "show", "set").out)["loss"]
    assert loss == f"{share:.2%} of the tokens do not count for it"


def test_the_questions_of_conversations_are_marked(headway: Headway, here: Path) -> None:
    config = json.loads((here / "tokenizer" / "tokenizer_config.json").read_text())
    config["chat_template"] = (
        "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }}\n{% else %}"
        "A: {% generation %}{{ m.content }}{% endgeneration %}\n{% endif %}{% endfor %}"
    )
    (here / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(config))
    asked = {"role": "user", "content": "Wie heißt du?"}
    told = {"role": "assistant", "content": "Anna."}
    write_lines(here / "chat.jsonl", [{"messages": [asked, told]}] * 3)
    make(here, "set", ["chat.jsonl"], messages="messages")
    out = headway("data", "sample", "set", "--documents", "-n", "1").out
    # The tokenizer has a token " Anna": it is part of the answer.
    assert "[-Q: Wie heißt du?\nA:-] Anna." in out


def test_marks_do_not_cut_characters_in_two() -> None:
    pieces = {1: b"a", 2: "ü".encode()[:1], 3: "ü".encode()[1:], 4: b"b"}

    def decode(ids: list[int]) -> str:
        return b"".join(pieces[number] for number in ids).decode(errors="replace")

    assert loss_spans(decode, [1, 2, 3, 4], [True, True, False, False]) == [
        ("a", True),
        ("üb", False),
    ]
    assert loss_spans(decode, [1, 2, 3, 4], [True] * 4) == [("aüb", True)]
    assert loss_spans(decode, [1, 4, 1], [False, True, False]) == [
        ("a", False),
        ("b", True),
        ("a", False),
    ]


def test_a_decoder_that_looks_ahead_is_asked_run_by_run() -> None:
    def decode(ids: list[int]) -> str:
        return "-".join(map(str, ids)) + f" ({len(ids)})"

    assert loss_spans(decode, [7, 8, 9], [True, False, False]) == [
        ("7 (1)", True),
        ("8-9 (2)", False),
    ]


def test_text_cannot_take_over_the_terminal(headway: Headway, here: Path) -> None:
    assert visible("a\x1b[2Jb\r\n\tc\x9b") == "a\\x1b[2Jb\\r\n\tc\\x9b"
    assert visible("नमस्ते\u200d👋 fin\u00a0") == "नमस्ते\u200d👋 fin\u00a0"
    write_lines(here / "odd.jsonl", [{"text": "red \x1b[31m"}] * 3)
    make(here, "set", ["odd.jsonl"])
    out = headway("data", "sample", "set", "--documents", "-n", "1").out
    assert "\nred \\x1b[31m<|endoftext|>\n" in out


def test_whole_documents(headway: Headway, here: Path) -> None:
    said = headway("data", "sample", "wiki", "--documents", "--n", "1000")
    assert said.exit_code == 0
    for story in STORIES:
        assert f"\n{story}{END}\n" in said.out, "each of them, also the last"
    assert said.out.count("\n--- document ") == len(STORIES)
    few = headway("data", "sample", "wiki", "--documents", "--n", "2")
    assert few.out.count("\n--- document ") == 2
    assert few.out != headway("data", "sample", "wiki", "--documents", "-n2", "--seed", "1").out


def test_a_long_document_is_cut_and_says_so(headway: Headway, here: Path) -> None:
    write_lines(here / "long.jsonl", [{"text": " ".join(STORIES)}])
    make(here, "set", ["long.jsonl"])
    (found,) = json.loads(headway("data", "sample", "set", "--documents", "--json").out)
    assert (found["is_cut"], len(found["ids"])) == (True, 1000)
    out = headway("data", "sample", "set", "--documents").out
    assert out.endswith(f"\n... and {found['num_tokens'] - 1000} tokens more\n")


def test_documents_that_continue_in_the_next_shard(headway: Headway, here: Path) -> None:
    ids = [[3, 4, 5, 6, 7], [8, 9], [10, 11, 12, 13, 14, 15, 16], [17]]
    manifest = write_set(here / "set", [(one, None) for one in ids], vocab_size=400, shard_tokens=3)
    shutil.copytree(here / "tokenizer", here / "set" / "tokenizer", dirs_exist_ok=True)
    digest = file_digest(here / "set" / "tokenizer" / "tokenizer.json")
    written = manifest.model_copy(update={"tokenizer_digest": digest}).model_dump_json()
    (here / "set" / "manifest.json").write_text(written)
    found = json.loads(headway("data", "sample", "set", "--documents", "--json").out)
    assert sorted(one["ids"] for one in found) == sorted(ids)
    assert {one["document"]: one["ids"] for one in found} == dict(enumerate(ids))


def test_documents_are_of_one_set_and_not_cut(headway: Headway, here: Path) -> None:
    mix("mix", wiki={"weight": 1}, code={"weight": 1})
    said = headway("data", "sample", "mix", "--documents")
    assert said.exit_code == 2
    assert f"hint: headway data sample {here / 'wiki'} --documents" in said.err
    said = headway("data", "sample", "wiki", "--documents", "--sequence-length", "10")
    assert said.exit_code == 2


# --- mixtures


def mix(into: str, **members: dict[str, float]) -> MixtureManifest:
    """As a run writes it, of sets in this folder."""
    folder = Path.cwd()
    specs = [
        MemberSpec(name=name, location=str(folder / name), **how) for name, how in members.items()
    ]
    return write_mixture(Store(folder / into), specs)


def test_show_of_a_mixture_by_weights(headway: Headway, here: Path) -> None:
    mix("mix", wiki={"weight": 7}, code={"weight": 3})
    said = headway("data", "show", "mix", "--sequence-length", "32")
    assert (said.exit_code, said.err) == (0, "")
    with closing(MixtureSet.open(Store("mix"))) as opened:
        own = opened.num_own_samples(32)
        positions = opened.table.counts(sum(own))
    assert rows_of(said.out)["samples"] == f"{sum(own)} an epoch, of 32 tokens"
    assert said.out.split("\n\n")[1].split()[:3] == ["MEMBER", "WANTED", "SHARE"]
    assert table_of(said.out) == [
        [name, share, share, str(num), str(count), f"{count / num:.3g}", name]
        for name, share, num, count in zip(
            ("wiki", "code"), ("70.00%", "30.00%"), own, positions, strict=True
        )
    ]


def test_show_of_a_mixture_by_epochs(headway: Headway, here: Path) -> None:
    mix("mix", wiki={"epochs": 1}, code={"epochs": 2})
    found = json.loads(headway("data", "show", "mix", "--sequence-length", "16", "--json").out)
    assert [one["epochs"] for one in found["members"]] == [1, 2]
    assert [one["num_epochs"] for one in found["members"]] == pytest.approx([1, 2], rel=0.02)
    assert [one["location"] for one in found["members"]] == [str(here / "wiki"), str(here / "code")]


def test_a_member_too_short_for_a_sample_is_reported(headway: Headway, here: Path) -> None:
    write_lines(here / "short.jsonl", [{"text": "short"}])
    make(here, "short", ["short.jsonl"])
    mix("mix", wiki={"weight": 9}, short={"weight": 1})
    said = headway("data", "show", "mix")
    assert table_of(said.out)[1][5] == "-"
    assert "warning: short has too few tokens for one sample" in said.err


# --- verify


def test_an_intact_set(headway: Headway, here: Path) -> None:
    said = headway("data", "verify", "wiki")
    assert (said.exit_code, said.err) == (0, "")
    assert said.out.startswith("intact: wiki, ")
    found = json.loads(headway("data", "verify", "wiki", "--json").out)
    assert found == {
        "location": "wiki",
        "is_intact": True,
        "sets": [{"location": "wiki", "damages": []}],
    }


def test_damage_is_listed(headway: Headway, here: Path) -> None:
    flip(here / "wiki" / "shards" / "00001.tokens")
    (here / "wiki" / "shards" / "00002.documents").unlink()
    said = headway("data", "verify", "wiki")
    assert said.exit_code == Exit.CHECK_FAILED
    assert sorted(said.out.splitlines()) == [
        "wiki/shards/00001.tokens is damaged: its content does not have the recorded digest",
        "wiki/shards/00002.documents is missing",
    ]
    assert said.err == (
        "error: wiki is damaged\nhint: fetch an intact copy, or prepare the set again: rm -r wiki, "
        "then the headway data prepare or headway run that made it\n"
    )
    found = json.loads(headway("data", "verify", "wiki", "--json").out)
    assert found["is_intact"] is False
    assert {one["shard"] for one in found["sets"][0]["damages"]} == {"00001", "00002"}


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("tokenizer/tokenizer.json", b"{}", "tokenizer.json is damaged"),
        ("manifest.json", b"{", "manifest.json is not valid JSON"),
    ],
)
def test_a_damaged_manifest_or_tokenizer(
    headway: Headway, here: Path, file: str, content: bytes, words: str
) -> None:
    (here / "wiki" / file).write_bytes(content)
    said = headway("data", "verify", "wiki")
    assert said.exit_code == Exit.CHECK_FAILED
    assert words in said.out
    assert "error: wiki is damaged\nhint: " in said.err


def test_a_mixture_is_verified_set_by_set(headway: Headway, here: Path) -> None:
    mix("mix", wiki={"weight": 1}, code={"weight": 1})
    assert headway("data", "verify", "mix").out.count("intact: ") == 2
    flip(here / "code" / "shards" / "00000.tokens")
    said = headway("data", "verify", "mix")
    assert said.exit_code == Exit.CHECK_FAILED
    assert "code/shards/00000.tokens is damaged" in said.out
    assert f"error: {here}/code is damaged" in said.err
    (here / "code" / "shards" / "00000.tokens").write_bytes(b"")
    said = headway("data", "verify", "mix")
    assert said.exit_code == Exit.CHECK_FAILED
    assert "00000.tokens has 0 bytes" in said.err
    assert "hint: verify the mixture's sets one by one" in said.err


# --- tokenizer


def test_the_hint_reads_the_text_in_the_same_way(headway: Headway, here: Path) -> None:
    story = {"story": "Once upon a time there was a fox. " * 9}
    (here / "a.jsonl").write_text(json.dumps(story) + "\n")
    said = headway(
        "data", "tokenizer", "a.jsonl", "--column", "story", "--vocab", "300", "--into", "own"
    )
    hinted = said.err.partition("hint: headway ")[2].split()
    assert headway(*hinted).exit_code == 0


def test_a_tokenizer_that_sets_share(headway: Headway, here: Path) -> None:
    said = headway("data", "tokenizer", "text.txt", "--vocab", "400", "--into", "my/own")
    assert (said.exit_code, said.out) == (0, "")
    assert "trained a tokenizer of 400 tokens, in my/own\n" in said.err
    assert "hint: headway data prepare text.txt --tokenizer my/own --into prepared/set" in said.err
    hinted = said.err.partition("hint: headway ")[2].split()
    assert headway(*hinted).exit_code == 0
    for file in ("tokenizer.json", "tokenizer_config.json"):
        same = (here / "wiki" / "tokenizer" / file).read_bytes()
        assert (here / "my" / "own" / file).read_bytes() == same, "as prepare trains it"
    said = headway("data", "tokenizer", "text.txt", "--vocab", "400", "--into", "my/own")
    assert said.exit_code == 2
    assert "my/own already holds a tokenizer" in said.err


def test_what_a_tokenizer_is_trained_on(headway: Headway, here: Path) -> None:
    records = [{"question": f"why {story}", "answer": "zzzzzzzzzzzz"} for story in STORIES]
    write_lines(here / "asked.jsonl", records)
    arguments = ("data", "tokenizer", "asked.jsonl", "--vocab", "350")
    said = headway(*arguments, "--template", "{question} {answer}", "--into", "both")
    assert said.exit_code == 0
    assert "zz" in Tokenizer.from_file("both/tokenizer.json").get_vocab()
    headway(*arguments, "--column", "question", "--masked", "--into", "one")
    vocabulary = Tokenizer.from_file("one/tokenizer.json").get_vocab()
    assert "zz" not in vocabulary
    assert "[MASK]" in vocabulary
    assert END not in vocabulary


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["text.txt", "--vocab", "400", "--into", "s3://b/t"], "hint: --into my-tokenizer"),
        (["nowhere.txt", "--vocab", "400", "--into", "t"], "nowhere.txt does not exist"),
        (["text.txt", "--vocab", "100", "--into", "t"], "greater than or equal to 300"),
        (["empty.jsonl", "--vocab", "400", "--into", "t"], "no text in empty.jsonl"),
        (
            [
                "text.txt",
                "--vocab",
                "400",
                "--into",
                "t",
                "--template",
                "{a}",
                "--transform",
                "a:b",
            ],
            "--template and --transform cannot be combined",
        ),
        (["text.txt", "--vocab", "400", "--into", "t", "--template", "a"], "names no column"),
    ],
)
def test_invalid_tokenizers(headway: Headway, here: Path, arguments: list[str], words: str) -> None:
    write_lines(here / "empty.jsonl", [{"text": " "}])
    said = headway("data", "tokenizer", *arguments)
    assert said.exit_code in (Exit.BAD_INPUT, Exit.NOT_FOUND)
    assert words in said.err
    assert not (here / "t").exists()


def test_too_little_text_for_the_vocabulary_is_reported(headway: Headway, here: Path) -> None:
    write_lines(here / "little.jsonl", [{"text": "a b c"}])
    said = headway("data", "tokenizer", "little.jsonl", "--vocab", "400", "--into", "t")
    assert said.exit_code == 0
    assert "warning: it has fewer than 400 tokens" in said.err
