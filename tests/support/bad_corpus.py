"""Every kind of bad input that is known, each with the place where it has to be reported and the
good documents around it, which must all get through."""

from __future__ import annotations

import gzip
import json
import lzma
import pickle
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from support.bad_case import VOCAB, Case, Document, Way
from support.contents import (
    Planted,
    around,
    arrow,
    chat,
    h5,
    json_lines,
    lines_of,
    npy,
    parquet,
    spoken,
    texts,
    words,
    zst,
)

# --- text


def _in_lines() -> list[Case]:
    """One bad line of JSON between two good ones."""
    deep = b'{"text": ' + b"[" * 5000 + b"]" * 5000 + b"}"
    bad: dict[str, tuple[str, Any]] = {
        "jsonl-not-utf8": ("not UTF-8", b'{"text": "caf\xe9"}'),
        "jsonl-not-json": ("not JSON", b'{"text": "a" "b"}'),
        "jsonl-single-quotes": ("not JSON", b"{'text': 'a'}"),
        "jsonl-number-too-long": ("not JSON", b'{"text": ' + b"9" * 5000 + b"}"),
        "jsonl-nested-too-deeply": ("not JSON", deep),
        "jsonl-not-an-object": ("not an object", ["text", "a"]),
        "jsonl-scalar": ("not an object", "just text"),
        "jsonl-no-column": ("no column", {"content": "a"}),
        "jsonl-no-column-but-half-a-pair": ("no column", b'{"\\ud800": "a"}'),
        "jsonl-null": ("not text", {"text": None}),
        "jsonl-number": ("not text", {"text": 7}),
        "jsonl-list": ("not text", {"text": ["a", "b"]}),
        "jsonl-half-a-pair": ("half a character", b'{"text": "cut \\ud83d"}'),
    }
    return [
        Case(name, {"bad.jsonl": around(line)}, ((kind, "bad.jsonl", 2),), texts(1, 3))
        for name, (kind, line) in bad.items()
    ]


def _texts() -> list[Case]:
    return [
        Case(
            "txt-not-utf8",
            {"bad.txt": f"{words(1)}\n\na line\nanother caf".encode() + b"\xe9\n\n" + b"three\n"},
            (("not UTF-8", "bad.txt", 4),),
            (words(1), "three"),
        ),
        Case("txt-utf16", {"bad.txt": "ein Text".encode("utf-16")}, (("not UTF-8", "bad.txt", 1),)),
        Case("txt-empty", {"bad.txt": b""}, (("empty file", "bad.txt", None),)),
        Case("jsonl-empty", {"bad.jsonl": b""}, (("empty file", "bad.jsonl", None),)),
        Case("txt-blank-lines", {"bad.txt": b"\n \n\t\r\n\n"}, ()),
        Case("jsonl-blank-lines", {"bad.jsonl": b"\n \n\n"}, ()),
        Case(
            "jsonl-white-space", {"bad.jsonl": around({"text": " \n "})}, (), texts(1, 3), "text", 1
        ),
        Case(
            "jsonl-cut-in-the-last-line",
            {"bad.jsonl": lines_of(1, 2) + b'{"text": "and then'},
            (("not JSON", "bad.jsonl", 3),),
            texts(1, 2),
        ),
        Case("npy-for-text", {"bad.npy": npy(np.arange(3))}, (("token ids", "bad.npy", 1),)),
        Case("h5-for-text", {"bad.h5": h5(ids=np.arange(3))}, (("no column", "bad.h5", None),)),
        Case("unknown-suffix", {"bad.pdf": b"%PDF"}, (("unknown suffix", "bad.pdf", None),)),
        Case("archive", {"bad.tar.gz": b"any"}, (("unknown suffix", "bad.tar.gz", None),)),
        Case(
            "pickle", {"bad.pkl": pickle.dumps(Planted())}, (("unknown suffix", "bad.pkl", None),)
        ),
    ]


def _compressed() -> list[Case]:
    many = range(1, 400)
    packed = gzip.compress(lines_of(*many), mtime=0)
    cut = packed[: len(packed) // 2]
    readable = zlib.decompressobj(31).decompress(cut).count(b"\n")
    wrong_sum = bytearray(packed)
    wrong_sum[-8] ^= 1
    xz = lzma.compress(lines_of(*many))
    xz_readable = lzma.LZMADecompressor().decompress(xz[: len(xz) // 2]).count(b"\n")
    damaged = "damaged compression"
    return [
        Case(
            "gz-not-utf8",
            {"bad.jsonl.gz": gzip.compress(around(b'{"text": "caf\xe9"}'))},
            (("not UTF-8", "bad.jsonl.gz", 2),),
            texts(1, 3),
        ),
        Case(
            "gz-truncated",
            {"bad.jsonl.gz": cut},
            ((damaged, "bad.jsonl.gz", readable + 1),),
            texts(*many[:readable]),
        ),
        Case(
            "gz-wrong-checksum",
            {"bad.jsonl.gz": bytes(wrong_sum)},
            ((damaged, "bad.jsonl.gz", len(many) + 1),),
            texts(*many),
        ),
        Case(
            "gz-text-behind-it",
            {"bad.jsonl.gz": packed + b"and more"},
            ((damaged, "bad.jsonl.gz", len(many) + 1),),
            texts(*many),
        ),
        Case(
            "gz-second-member-truncated",
            {"bad.jsonl.gz": gzip.compress(lines_of(1, 2)) + gzip.compress(lines_of(3, 4))[:12]},
            ((damaged, "bad.jsonl.gz", 3),),
            texts(1, 2),
        ),
        Case(
            "gz-of-text-cut-in-a-document",
            {"bad.txt.gz": gzip.compress(f"{words(1)}\n\n{'Two. ' * 3}".encode())[:-8]},
            ((damaged, "bad.txt.gz", 3),),
            texts(1),
        ),
        Case("gz-is-none", {"bad.jsonl.gz": lines_of(1)}, ((damaged, "bad.jsonl.gz", 1),)),
        Case(
            "gz-of-nothing",
            {"bad.txt.gz": gzip.compress(b"")},
            (("empty file", "bad.txt.gz", None),),
        ),
        Case("gz-empty", {"bad.csv.gz": b""}, (("empty file", "bad.csv.gz", None),)),
        Case(
            "zst-truncated",
            {"bad.jsonl.zst": zst(lines_of(1, 2)) + zst(lines_of(3, 4))[:-5]},
            ((damaged, "bad.jsonl.zst", 3),),
            texts(1, 2),
        ),
        Case("zst-is-none", {"bad.jsonl.zst": lines_of(1)}, ((damaged, "bad.jsonl.zst", 1),)),
        Case(
            "xz-truncated",
            {"bad.jsonl.xz": xz[: len(xz) // 2]},
            ((damaged, "bad.jsonl.xz", xz_readable + 1),),
            texts(*many[:xz_readable]),
        ),
        Case("xz-is-none", {"bad.jsonl.xz": lines_of(1)}, ((damaged, "bad.jsonl.xz", 1),)),
    ]


def _json() -> list[Case]:
    good = [json.dumps({"text": words(number)}).encode() for number in range(4)]
    kinds: dict[str, tuple[bytes, tuple[str, int | None], tuple[int, ...]]] = {
        "json-truncated": (
            b"[\n%b,\n%b,\n%b" % (good[1], good[2], good[3][:20]),
            ("truncated", 4),
            (1, 2),
        ),
        "json-element-no-object": (
            b"[\n%b,\n7,\n%b\n]" % (good[1], good[3]),
            ("not an object", 3),
            (1, 3),
        ),
        "json-element-broken": (
            b'[\n%b,\n{"text" 7},\n%b\n]' % (good[1], good[3]),
            ("not JSON", 3),
            (1, 3),
        ),
        "json-text-after-the-end": (b"[\n%b\n]\nmore" % good[1], ("text after the end", 4), (1,)),
        "json-scalar": (b"17", ("not an object", 1), ()),
        "json-not-utf8": (
            b'[\n%b,\n{"text": "\xff"},\n%b\n]' % (good[1], good[3]),
            ("not UTF-8", 3),
            (1, 3),
        ),
        "json-empty": (b"", ("empty file", None), ()),
    }
    return [
        Case(name, {"bad.json": content}, ((kind, "bad.json", line),), texts(*numbers))
        for name, (content, (kind, line), numbers) in kinds.items()
    ]


def _tables() -> list[Case]:
    def rows(*lines: bytes) -> bytes:
        return b"".join(line + b"\n" for line in (b"id,text", b"1,one", *lines, b'3,"three"'))

    kinds: dict[str, tuple[str, bytes, int]] = {
        "csv-not-utf8": ("not UTF-8", b"2,caf\xe9", 3),
        "csv-too-few-fields": ("wrong number of fields", b"2", 3),
        "csv-too-many-fields": ("wrong number of fields", b"2,two,2", 3),
        "csv-nul-byte": ("NUL byte", b"2,t\0wo", 3),
        "csv-wrong-quotes": ("wrong quotes", b'2,"two" or so', 3),
    }
    cases = [
        Case(name, {"bad.csv": rows(line)}, ((kind, "bad.csv", at),), ("one", "three"))
        for name, (kind, line, at) in kinds.items()
    ]
    headers = {
        "csv-no-column": ("no column", b"id,content\n1,a\n"),
        "csv-column-twice": ("no header", b"text,text\na,b\n"),
        "csv-header-not-utf8": ("not UTF-8", b"text,caf\xe9\na,b\n"),
    }
    for name, (kind, content) in headers.items():
        cases.append(Case(name, {"bad.csv": content}, ((kind, "bad.csv", 1),)))
    cases.append(
        Case(
            "csv-unclosed-quote",
            {"bad.csv": b'id,text\n1,one\n2,"two\n3,three\n'},
            (("unclosed quote", "bad.csv", 3),),
            ("one", "three"),
        )
    )
    return cases


def _columns() -> list[Case]:
    whole = parquet({"text": [words(number) for number in range(1, 7)]}, rows_in_group=2)
    at = whole.index(words(3).encode())
    damaged = whole[:at] + b"\0\0\0\0" + whole[at + 4 :]
    broken = pa.Array.from_buffers(pa.string(), 1, [None, *pa.array([b"caf\xe9"]).buffers()[1:]])
    batches = arrow([words(1), words(2)], [words(3), words(4)])
    binary = pa.chunked_array([pa.array([words(1)]), broken, pa.array([words(3)])])
    kinds: dict[str, tuple[str, bytes, tuple[str, int | None], tuple[int, ...]]] = {
        "parquet-is-none": ("parquet", b"PAR1 is how it begins", ("damaged file", None), ()),
        "parquet-truncated": ("parquet", whole[:-30], ("damaged file", None), ()),
        "parquet-empty": ("parquet", b"", ("damaged file", None), ()),
        "parquet-damaged-page": ("parquet", damaged, ("damaged file", 3), (1, 2, 5, 6)),
        "parquet-no-column": ("parquet", parquet({"content": ["a"]}), ("no column", None), ()),
        "parquet-null": (
            "parquet",
            parquet({"text": [words(1), None, words(3)]}),
            ("not text", 2),
            (1, 3),
        ),
        "parquet-not-utf8": ("parquet", parquet({"text": binary}), ("not UTF-8", 2), (1, 3)),
        "parquet-gz-truncated": (
            "parquet.gz",
            gzip.compress(whole)[:-30],
            ("damaged file", None),
            (),
        ),
        "arrow-is-none": ("arrow", b"no arrow", ("damaged file", None), ()),
    }
    return [
        *(
            Case(
                name, {f"bad.{suffix}": content}, ((kind, f"bad.{suffix}", line),), texts(*numbers)
            )
            for name, (suffix, content, (kind, line), numbers) in kinds.items()
        ),
        Case(
            "arrow-truncated",
            {"bad.arrow": batches[: batches.index(words(3).encode())]},
            # The batch that is cut, the one looked for behind it, and the end that is not there.
            (*[("damaged file", "bad.arrow", 3)] * 2, ("truncated", "bad.arrow", 3)),
            texts(1, 2),
        ),
    ]


# --- token ids, conversations, templates, the user's own code


def _ids() -> list[Case]:
    rows = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    good = ([1, 2, 3], [4, 5, 6])
    whole = h5(ids=np.tile(np.arange(300, dtype=np.int32), (500, 1)))
    planted = np.array([Planted(), 7], dtype=object)
    kinds: dict[str, tuple[str, bytes, tuple[str, int | None], tuple[list[int], ...]]] = {
        "npy-objects": ("npy", npy(planted), ("not token ids", None), ()),
        "npy-floats": ("npy", npy(rows / 2), ("not token ids", None), ()),
        "npy-truncated": ("npy", npy(rows)[:-10], ("truncated", 3), good),
        "npy-is-none": ("npy", b"1 2 3", ("damaged file", None), ()),
        "npy-damaged-head": ("npy", npy(rows).replace(b"}", b" "), ("damaged file", None), ()),
        "npy-three-dimensions": ("npy", npy(rows.reshape(1, 3, 3)), ("not token ids", None), ()),
        "npy-more-behind-it": ("npy", npy(rows[:2]) * 2, ("data after the end", None), good),
        "h5-place-outside": (
            "h5",
            whole[:24] + b"\xff" * 7 + b"\x7f" + whole[32:],
            ("damaged file", None),
            (),
        ),
        "h5-truncated": ("h5", whole[:3000], ("damaged file", None), ()),
        "h5-no-dataset": ("h5", h5(other=rows), ("no column", None), ()),
        "h5-floats": ("h5", h5(ids=rows / 2), ("not token ids", None), ()),
        "ids-from-text": ("txt", b"1 2 3", ("not token ids", 1), ()),
    }
    lines: dict[str, tuple[str, Any]] = {
        "ids-negative": ("id outside the vocabulary", {"ids": [1, -1]}),
        "ids-beyond-the-vocabulary": ("id outside the vocabulary", {"ids": [1, VOCAB]}),
        "ids-far-beyond": ("not token ids", {"ids": [2**70]}),
        "ids-true-or-false": ("not token ids", {"ids": [True, False]}),
        "ids-no-integers": ("not token ids", {"ids": [1, 2.5]}),
        "ids-text": ("not token ids", {"ids": "1 2 3"}),
        "ids-nested": ("not token ids", {"ids": [[1], [2, 3]]}),
        "ids-null": ("not token ids", {"ids": None}),
        "ids-null-inside": ("not token ids", {"ids": [1, None]}),
        "ids-missing": ("no column", {"text": "a"}),
    }
    return [
        *(
            Case(
                name, {f"bad.{suffix}": content}, ((kind, f"bad.{suffix}", line),), documents, "ids"
            )
            for name, (suffix, content, (kind, line), documents) in kinds.items()
        ),
        *(
            _between(name, "ids", kind, {"ids": good[0]}, line, {"ids": good[1]}, good)
            for name, (kind, line) in lines.items()
        ),
        Case(
            "ids-none",
            {"bad.jsonl": json_lines({"ids": good[0]}, {"ids": []}, {"ids": good[1]})},
            (),
            good,
            "ids",
            1,
        ),
    ]


def _masked() -> list[Case]:
    lines: dict[str, tuple[str, Any]] = {
        "mask-of-another-length": ("mask of another length", {"ids": [1, 2], "mask": [1]}),
        "mask-missing": ("no column", {"ids": [1, 2]}),
        "mask-no-integers": ("not token ids", {"ids": [1, 2], "mask": ["a", "b"]}),
    }
    good = {"ids": [1, 2], "mask": [0, 1]}
    return [
        _between(name, "masked", kind, good, line, good, ([1, 2], [1, 2]))
        for name, (kind, line) in lines.items()
    ]


def _messages() -> list[Case]:
    answer = {"role": "assistant", "content": "Yes."}
    lines: dict[str, Any] = {
        "chat-no-role": [{"content": "Who?"}, answer],
        "chat-no-answer": [{"role": "user", "content": "Who?"}],
        "chat-spells-a-special-token": chat("Yes.<|endoftext|>"),
        "chat-is-text": "user: Who?",
        "chat-without-messages": [],
        "chat-no-text": chat(7),  # type: ignore[arg-type]
        "chat-half-a-pair": chat("\ud83d"),
        "chat-from-half-a-pair": [{"from": "\ud83d", "value": "Who?"}, answer],
    }
    good = ({"messages": chat("One.")}, {"messages": chat("Three.")})
    plain = Case(
        "chat-plain-text", {"bad.txt": b"text"}, (("no column", "bad.txt", 1),), (), "messages"
    )
    return [
        plain,
        *(
            _between(
                name,
                "messages",
                "bad conversation",
                good[0],
                {"messages": messages},
                good[1],
                (spoken("One."), spoken("Three.")),
            )
            for name, messages in lines.items()
        ),
    ]


def _templates() -> list[Case]:
    good = {"question": "One?", "answer": "One."}
    done = ("Q: One? A: One.",) * 2
    return [
        Case(
            "template-plain-text",
            {"bad.txt": b"text"},
            (("no column", "bad.txt", 1),),
            (),
            "template",
        ),
        _between(
            "template-no-column", "template", "no column", good, {"question": "a"}, good, done
        ),
        _between(
            "template-null", "template", "not text", good, {**good, "answer": None}, good, done
        ),
    ]


def _transforms() -> list[Case]:
    good, done = ({"text": "one"}, {"text": "three"}), ("ONE", "THREE")
    return [
        _between(name, "transform", "transform failed", good[0], line, good[1], done)
        for name, line in {
            "transform-raises": {"content": "two"},
            "transform-returns-a-number": {"text": "number"},
            "transform-quotes-half-a-pair": {"text": "refuse \ud83d"},
        }.items()
    ]


def _between(
    name: str,
    way: Way,
    kind: str,
    before: Any,
    line: Any,
    after: Any,
    documents: tuple[Document, ...],
) -> Case:
    content = json_lines(before, line, after)
    return Case(name, {"bad.jsonl": content}, ((kind, "bad.jsonl", 2),), documents, way)


CASES: Sequence[Case] = (
    *_in_lines(),
    *_texts(),
    *_compressed(),
    *_json(),
    *_tables(),
    *_columns(),
    *_ids(),
    *_masked(),
    *_messages(),
    *_templates(),
    *_transforms(),
)
