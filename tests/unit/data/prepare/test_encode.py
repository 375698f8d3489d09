"""What a record says becomes tokens, exactly; what cannot is a problem that says where and why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from tokenizers import Tokenizer

from headway.data.formats.chunks import CHUNK_BYTES, Problem, RecordChunk, SourceRecord
from headway.data.prepare.encode import PIECE_CHARACTERS, EncodedChunk, Encoder, pieces_of
from headway.data.prepare.recipe import Recipe, RecipeSettings
from headway.data.prepare.set_tokenizer import load_set_tokenizer
from headway.errors import BadInput
from support.megatron import write_pair
from support.prepared import documents_of, job_for, mask_of, run, write_lines
from support.token_sets import table_of

Encode = Callable[..., EncodedChunk]


def encoder(tokenizer: Path, scratch: Path, code: Path | None = None, **settings: Any) -> Encoder:
    chosen = RecipeSettings(**settings)
    recipe = Recipe(
        settings=chosen,
        tokens=load_set_tokenizer(str(tokenizer), scratch, chosen.layout, scratch / "copy"),
        files=(),
        beside="",
        code=None if code is None else str(code),
    )
    return Encoder(recipe, tokenizer)


@pytest.fixture
def encode(tokenizer: Path, folder: Path) -> Encode:
    """Of records with these values, in lines 1, 2, 3, ..."""

    def encoded(
        *values: Any,
        opens: bool = False,
        continues: bool = False,
        code: Path | None = None,
        **settings: Any,
    ) -> EncodedChunk:
        items = [
            value if isinstance(value, Problem) else SourceRecord(value, line)
            for line, value in enumerate(values, 1)
        ]
        chunk = RecordChunk("a file", tuple(items), len(items), opens, continues)
        return encoder(tokenizer, folder, code, **settings).encode(chunk)

    return encoded


@pytest.fixture(scope="module")
def ids_of(tokenizer: Path) -> Callable[[str], list[int]]:
    loaded = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    loaded.encode_special_tokens = True
    return lambda text: list(loaded.encode(text, add_special_tokens=False).ids)


def split(encoded: EncodedChunk) -> list[list[int]]:
    return [part.tolist() for part in np.split(encoded.tokens, np.cumsum(encoded.lengths))[:-1]]


def problems(encoded: EncodedChunk) -> list[tuple[str, int | None, str]]:
    assert encoded.statistics.num_problems == len(encoded.problems)
    assert {problem.file for problem in encoded.problems} <= {"a file"}
    return [(problem.kind, problem.line, problem.message) for problem in encoded.problems]


# --- columns, templates


def test_the_requested_column(encode: Encode, ids_of: Callable[[str], list[int]]) -> None:
    found = encode({"text": "no", "body": "yes"}, "a plain text", column="body")
    assert split(found) == [[*ids_of("yes"), 0], [*ids_of("a plain text"), 0]]
    assert found.num_bytes.tolist() == [3, 12]
    assert found.mask is None
    assert found.hashes is None


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        ({"body": "x", "title": "y"}, "no column", "no column `text`; there are: body, title"),
        ({"text": 7}, "not text", "column `text` holds int, not text"),
        ({"text": None}, "not text", "column `text` holds nothing (null), not text"),
        ({"text": "a\ud800"}, "half a character", "surrogate"),
        (np.array([1, 2]), "token ids", "it contains token ids: set `ids`"),
    ],
)
def test_a_record_without_text_is_a_problem_with_its_line(
    encode: Encode, value: Any, kind: str, says: str
) -> None:
    found = encode("good", value, "good", Problem("not JSON", "a file", 4, "m"))
    (first, second) = problems(found)
    assert first[:2] == (kind, 2)
    assert says in first[2]
    assert second == ("not JSON", 4, "m")
    assert len(split(found)) == 2


def test_white_space_is_left_out_and_counted(encode: Encode) -> None:
    found = encode({"text": " \n\t"}, "x", "", "\u3000")
    assert (len(split(found)), found.statistics.num_blank) == (1, 3)
    assert problems(found) == []


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("{q} {a}", "Why? So."),
        ("{{Q}}: {q}\n{{A}}: {a}{a}", "{Q}: Why?\n{A}: So.So."),
        ("{meta.title}", "Title"),
        ("{0}: {a[0]}", "zero: brackets"),
    ],
)
def test_a_template_is_filled_with_columns(
    encode: Encode, ids_of: Callable[[str], list[int]], template: str, wanted: str
) -> None:
    row = {"q": "Why?", "a": "So.", "meta.title": "Title", "0": "zero", "a[0]": "brackets"}
    found = encode(row, template=template)
    assert problems(found) == []
    assert split(found) == [[*ids_of(wanted), 0]]


@pytest.mark.parametrize("template", ["{a:>5}", "{a!r}"])
def test_a_template_does_nothing_else_with_columns(encode: Encode, template: str) -> None:
    with pytest.raises(BadInput, match="columns cannot be formatted"):
        encode(template=template)


def test_columns_cannot_reach_into_a_template(
    encode: Encode, ids_of: Callable[[str], list[int]]
) -> None:
    found = encode({"a": "{b}", "b": "secret"}, template="<{a}>")
    assert split(found) == [[*ids_of("<{b}>"), 0]]


def test_a_column_that_a_template_lacks_is_a_problem(encode: Encode) -> None:
    found = encode({"q": "Why?"}, {"q": "Why?", "a": 1}, template="{q} {a}")
    assert [(kind, line) for kind, line, _ in problems(found)] == [
        ("no column", 1),
        ("not text", 2),
    ]


# --- conversations


def talk(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


def test_only_answers_and_the_end_behind_them_count(
    encode: Encode, ids_of: Callable[[str], list[int]]
) -> None:
    found = encode({"m": talk("Why?", "So.", "And?", "No.")}, messages="m")
    (ids,) = split(found)
    text = "user: Why?\nassistant: So.\nuser: And?\nassistant: No.\n"
    assert ids == [*ids_of(text), 0]
    assert found.mask is not None
    assert found.num_bytes.tolist() == [len(text)]
    learned = [token for token, counts in zip(ids, found.mask, strict=True) if counts]
    assert learned == [*ids_of(" So."), *ids_of(" No.")]


def test_a_bad_conversation_is_a_problem(encode: Encode) -> None:
    good = {"m": talk("Why?", "So.")}
    found = encode(good, {"m": []}, {"n": 1}, {"m": talk("<|endoftext|>", "So.")}, messages="m")
    assert [(kind, line) for kind, line, _ in problems(found)] == [
        ("bad conversation", 2),
        ("no column", 3),
        ("bad conversation", 4),
    ]
    assert len(split(found)) == 1


def test_conversations_need_a_template(word_tokenizer: Path, folder: Path) -> None:
    with pytest.raises(BadInput, match="no chat template"):
        encoder(word_tokenizer, folder, messages="m")


def test_a_built_in_template_ends_messages_with_end_of_text(
    tokenizer: Path, folder: Path, ids_of: Callable[[str], list[int]]
) -> None:
    copy = folder / "copy"
    tokens = load_set_tokenizer(str(tokenizer), folder, "stream", copy, "zephyr")
    recipe = Recipe(settings=RecipeSettings(messages="m"), tokens=tokens, files=(), beside="")
    chunk = RecordChunk("a file", (SourceRecord({"m": talk("Why?", "So.")}, 1),), 1, False, False)
    found = Encoder(recipe, copy).encode(chunk)
    (ids,) = split(found)
    asked = [*ids_of("<|user|>\nWhy?"), 0, *ids_of("\n<|assistant|>\n")]
    assert ids == [*asked, *ids_of("So."), 0]
    assert found.mask is not None
    assert found.mask.tolist() == [0] * len(asked) + [1] * (len(ids) - len(asked))


def test_a_built_in_template_needs_an_end_of_text(tokenizer: Path, folder: Path) -> None:
    shutil.copytree(tokenizer, folder / "mine")
    (folder / "mine" / "tokenizer_config.json").write_text("{}")
    with pytest.raises(BadInput, match="names no eos_token"):
        load_set_tokenizer("mine", folder, "stream", folder / "copy", "zephyr")


# --- the user's own function

TRANSFORM = """\
import numpy as np

def told(record):
    what = record["what"]
    if what == "fails":
        return record["nothing"]
    return {
        "text": "a text",
        "blank": " ",
        "half": "\\ud800",
        "messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}],
        "no messages": [1, 2],
        "ids": ([5, 6, 7], [0, 1, 1]),
        "ids without mask": ([5, 6], None),
        "array": np.array([8, 9], dtype=np.uint32),
        "bad ids": ([5, 400], None),
        "bad mask": ([5, 6], [1]),
        "none": None,
        "number": 7,
        "three": (1, 2, 3),
    }[what]

def shouted(record):
    return record["text"].upper()
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "mine_for_encode.py").write_text(TRANSFORM)
    return folder


def transformed(encode: Encode, code: Path, *what: str) -> EncodedChunk:
    records = [{"what": one} for one in what]
    return encode(*records, code=code, transform="mine_for_encode:told")


def test_a_transform_may_return_text_messages_ids_or_nothing(
    encode: Encode, code: Path, ids_of: Callable[[str], list[int]]
) -> None:
    kinds = ("text", "none", "messages", "blank", "ids", "ids without mask", "array")
    found = transformed(encode, code, *kinds)
    assert problems(found) == []
    assert (found.statistics.num_dropped, found.statistics.num_blank) == (1, 1)
    talked = [*ids_of("user: Why?\nassistant: So.\n"), 0]
    documents = split(found)
    assert documents == [[*ids_of("a text"), 0], talked, [5, 6, 7], [5, 6], [8, 9]]
    assert found.mask is not None
    masks = np.split(found.mask, np.cumsum(found.lengths))[:-1]
    assert [int(mask.sum()) for mask in masks] == [
        len(documents[0]),
        len(ids_of(" So.")),
        *(2, 2, 2),
    ]
    assert masks[2].tolist() == [0, 1, 1]


def test_a_transform_that_is_not_the_same_twice_is_refused(encode: Encode, code: Path) -> None:
    """Parts are prepared in any order, and again after a kill."""
    (code / "random_for_encode.py").write_text(
        "import random\n"
        "def told(record):\n    return f\"{record.pop('what')} {random.random()}\"\n"
        "def steady(record):\n    return record.pop('what')\n"
    )
    with pytest.raises(BadInput, match=r"returns 'a 0.* and then 'a 0.* for the same record"):
        encode({"what": "a"}, code=code, transform="random_for_encode:told")
    found = encode({"what": "a"}, code=code, transform="random_for_encode:steady")
    assert problems(found) == [], "it may change the record that it gets"


@pytest.mark.parametrize(
    ("what", "kind", "says"),
    [
        ("fails", "transform failed", "KeyError: 'nothing'"),
        ("number", "transform failed", "it returned int; it can return a text"),
        ("three", "transform failed", "it returned tuple"),
        ("half", "half a character", "surrogate"),
        ("no messages", "bad conversation", "message 1"),
        ("bad ids", "id outside the vocabulary", "400; the tokenizer has 400 tokens"),
        ("bad mask", "mask of another length", "1 for 2 tokens"),
    ],
)
def test_a_transform_that_fails_loses_only_its_record(
    encode: Encode, code: Path, what: str, kind: str, says: str
) -> None:
    found = transformed(encode, code, "text", what, "text")
    ((found_kind, line, message),) = problems(found)
    assert (found_kind, line) == (kind, 2)
    assert says in message
    assert len(split(found)) == 2


def test_a_transform_sees_plain_text_as_a_column(
    encode: Encode, code: Path, ids_of: Callable[[str], list[int]]
) -> None:
    found = encode("loud", code=code, transform="mine_for_encode:shouted")
    assert split(found) == [[*ids_of("LOUD"), 0]]


def test_a_missing_transform_is_refused(encode: Encode, code: Path) -> None:
    with pytest.raises(BadInput, match="no function 'nowhere'"):
        encode(code=code, transform="mine_for_encode:nowhere")
    with pytest.raises(BadInput, match="no module 'no_such_module'"):
        encode(code=code, transform="no_such_module:told")


# --- token ids


@pytest.mark.parametrize(
    ("row", "kind", "says"),
    [
        ({"i": [1, 400]}, "id outside the vocabulary", "400; the tokenizer has 400 tokens"),
        ({"i": [-1, 2]}, "id outside the vocabulary", "-1"),
        ({"i": [2**64]}, "not token ids", "list of integers"),
        ({"i": np.array([2**63], np.uint64)}, "id outside the vocabulary", "9223372036854775808"),
        ({"i": [1.5]}, "not token ids", "list of integers, not list"),
        ({"i": [[1], [2, 3]]}, "not token ids", ""),
        ({"i": [None, 1]}, "not token ids", "list of integers"),
        ({"i": "words"}, "not token ids", "not str"),
        ({"i": 7}, "not token ids", "not int"),
        ({"j": [1]}, "no column", "no column `i`"),
        ("words", "not token ids", "it contains text"),
    ],
    ids=str,
)
def test_values_that_are_not_ids_are_a_problem(
    encode: Encode, row: Any, kind: str, says: str
) -> None:
    found = encode({"i": [1, 399]}, row, ids="i")
    ((found_kind, line, message),) = problems(found)
    assert (found_kind, line) == (kind, 2)
    assert says in message
    assert split(found) == [[1, 399]]


def test_a_document_without_ids_is_counted_as_blank(encode: Encode) -> None:
    found = encode({"i": [1, 2]}, {"i": []}, np.array([], np.int32), np.array([3]), ids="i")
    assert split(found) == [[1, 2], [3]]
    assert found.statistics.num_blank == 2


IDS = [[1, 2, 3], [0], [399, 5, 6, 7], [8, 8]]
MASKS = [[1, 0, 1], [1], [0, 0, 0, 1], [1, 1]]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "json", "npy", "h5"])
def test_ids_are_taken_over_exactly(folder: Path, tokenizer: Path, suffix: str) -> None:
    rows = [{"i": ids, "m": mask} for ids, mask in zip(IDS, MASKS, strict=True)]
    path = folder / f"ids.{suffix}"
    settings = {"ids": "i", "mask": "m"}
    ids, masks = IDS, MASKS
    if suffix == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    elif suffix == "jsonl":
        write_lines(path, rows)
    elif suffix == "json":
        path.write_text(json.dumps(rows))
    else:
        ids = [[1, 2, 3], [0, 399, 5]]
        masks = [[1, 0, 1], [1, 1, 0]]
        if suffix == "npy":
            np.save(path, np.array(ids, dtype=">u4"))
            settings, masks = {"ids": "anything"}, [[1] * 3] * 2
        else:
            with h5py.File(path, "w") as file:
                file["i"], file["m"] = np.array(ids, "u2"), np.array(masks, "bool")
    made = run(job_for([path.name], folder / "set", tokenizer, **settings))
    assert documents_of(folder / "set") == ids
    assert mask_of(folder / "set") == list(chain(*masks))
    assert table_of(folder / "set").has_mask[0] == ("mask" in settings)
    assert made.statistics.num_masked == sum(row.count(0) for row in masks)
    assert sum(made.statistics.lengths) == len(ids)


def test_a_stream_of_ids_is_one_document_through_all_its_chunks(
    folder: Path, tokenizer: Path
) -> None:
    stream = np.arange(CHUNK_BYTES + 1000, dtype="<u2") % 400
    np.save(folder / "ids.npy", stream)
    made = run(job_for(["ids.npy"], folder / "set", tokenizer, ids="i"))
    (document,) = documents_of(folder / "set")
    assert document == stream.tolist()
    assert sum(made.statistics.lengths) == 1


def test_a_set_of_megatron_is_taken_over_exactly(folder: Path, tokenizer: Path) -> None:
    documents = [[[1, 2, 3]], [[0], [399, 5, 6]], [list(range(400)) * 2000], [[8, 8]]]
    write_pair(folder / "corpus_text_document", documents)
    made = run(job_for(["corpus_text_document"], folder / "set", tokenizer))
    assert documents_of(folder / "set") == [list(chain(*document)) for document in documents]
    assert sum(made.statistics.lengths) == 4


def test_ids_of_another_tokenizer_are_located(folder: Path, tokenizer: Path) -> None:
    write_pair(folder / "corpus", [[[1, 2]], [[3], [400]], [[5]]])
    run(job_for(["corpus.bin"], folder / "set", tokenizer))
    assert documents_of(folder / "set") == [[1, 2], [5]]
    (line,) = (folder / "set" / "problems.jsonl").read_text().splitlines()
    problem = json.loads(line)
    assert (problem["kind"], problem["file"], problem["line"]) == (
        "id outside the vocabulary",
        "corpus.bin",
        2,
    )
    with pytest.raises(BadInput, match="name the tokenizer that made them"):
        run(job_for(["corpus.bin"], folder / "other", 300))


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_bad_chunk_of_a_stream_loses_only_that_chunk(
    folder: Path, tokenizer: Path, bad: int
) -> None:
    size = CHUNK_BYTES // 2
    stream = np.arange(2 * size + 1000, dtype="<u2") % 400
    stream[bad * size] = 400
    np.save(folder / "ids.npy", stream)
    made = run(job_for(["ids.npy"], folder / "set", tokenizer, ids="i"))
    (document,) = documents_of(folder / "set")
    assert document == np.delete(stream, slice(bad * size, (bad + 1) * size)).tolist()
    assert made.statistics.problems == {"id outside the vocabulary": 1}
    assert sum(made.statistics.lengths) == 1


# --- parts of documents that are too long for one chunk


def test_only_the_last_part_has_the_end(encode: Encode, ids_of: Callable[[str], list[int]]) -> None:
    first = encode("one", continues=True)
    assert split(first) == [ids_of("one")]
    assert split(encode(" two", opens=True, continues=True)) == [ids_of(" two")]
    last = encode(" three", "another", opens=True)
    assert split(last) == [[*ids_of(" three"), 0], [*ids_of("another"), 0]]


def test_white_space_inside_a_long_document_is_kept(
    encode: Encode, ids_of: Callable[[str], list[int]]
) -> None:
    found = encode("   \n ", opens=True, continues=True)
    assert split(found) == [ids_of("   \n ")]
    assert found.statistics.num_blank == 0


def test_parts_have_no_hash(encode: Encode) -> None:
    found = encode("end", "whole", opens=True, deduplicate=True)
    assert found.hashes is not None
    assert [bool(digest) for digest in found.hashes] == [False, True]


def test_beside_a_long_document_that_is_not_on_this_side_documents_stay_whole(
    encode: Encode, ids_of: Callable[[str], list[int]]
) -> None:
    """Parts of documents cannot be told apart by their hash: they all are on one side."""
    texts = [f"document {number}" for number in range(30)]
    held_out = {"hold_out": 0.5, "side": "held_out"}
    mine = split(encode(*texts, **held_out))
    found = encode("the end of a long one", *texts, opens=True, **held_out)
    assert split(found) == mine
    assert not found.opens, "its first document starts here"
    assert found.statistics.num_held_out == len(texts) - len(mine)
    found = encode(*texts, "a long one begins", continues=True, **held_out)
    assert split(found) == mine
    assert not found.continues, "its last document ends here"
    assert found.statistics.num_held_out == len(texts) - len(mine) + 1


# --- long texts


@given(
    words=st.lists(st.sampled_from(["x", " ", "\n", "long" * 5]), max_size=60),
    size=st.integers(1, 20),
)
def test_pieces_are_the_text_and_never_longer(words: Sequence[str], size: int) -> None:
    text = "".join(words)
    found = list(pieces_of(text, size))
    assert "".join(found) == text
    assert all(0 < len(piece) <= size for piece in found) or text == ""
    for before, after in pairwise(found):
        assert after[0] in " \n" or not set(before[1:]) & set(" \n"), "cut before white space"


def test_texts_are_cut_at_four_megabytes() -> None:
    text = "x" * (2 * PIECE_CHARACTERS)
    assert [len(piece) for piece in pieces_of(text + "y")] == [PIECE_CHARACTERS] * 2 + [1]
