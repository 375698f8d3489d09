"""Archives: members in order, and damage to the archive itself."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data.formats.archives import tar_chunks
from headway.data.formats.chunks import Chunk, OpenedSource, Problem, problem_chunk
from headway.data.formats.text_and_jsonl import json_line_chunks, text_chunks
from headway.errors import HeadwayError
from unit.data.formats.reading import Failing, items, opened, outline


def read_member(member: OpenedSource) -> Iterator[Chunk]:
    if member.file.endswith(".jsonl"):
        yield from json_line_chunks(member)
    elif member.file.endswith(".txt"):
        yield from text_chunks(member)
    else:
        yield problem_chunk("unknown suffix", member.file, None, "")


def tar(members: dict[str, bytes | bytes], **how: Any) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", **how) as archive:
        for name, data in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return file.getvalue()


def jsonl(*numbers: int) -> bytes:
    return b"".join(b'{"a": %d}\n' % number for number in numbers)


@given(
    texts=st.lists(st.text(max_size=600), max_size=6),
    form=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    can_seek=st.booleans(),
)
def test_members_are_read_back_in_order(texts: list[str], form: int, can_seek: bool) -> None:
    rows = [{"text": text} for text in texts]
    members = {
        f"folder/{'ä' * 40}{number}.jsonl": json.dumps(row).encode()
        for number, row in enumerate(rows)
    }
    raw = tar(members, format=form)
    seen = []

    def remember(member: OpenedSource) -> Iterator[Chunk]:
        seen.append((member.file, member.can_seek, member.columns))
        return read_member(member)

    file = opened(raw, can_seek=can_seek, columns=("text",))
    assert outline(tar_chunks(file, remember)) == rows
    assert seen == [(f"a file/{name}", False, ("text",)) for name in members]


def test_anything_but_a_plain_file_is_reported() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, kind in {
            "folder": tarfile.DIRTYPE,
            ".hidden": tarfile.DIRTYPE,
            "link": tarfile.SYMTYPE,
            "same.jsonl": tarfile.LNKTYPE,
            "device": tarfile.CHRTYPE,
            "pipe": tarfile.FIFOTYPE,
            "nothing.jsonl": tarfile.REGTYPE,
        }.items():
            header = tarfile.TarInfo(name)
            header.type = kind
            archive.addfile(header)
        for name in ("./a.jsonl", "b/._c.jsonl", ".d/e.jsonl", "f.bin"):
            header = tarfile.TarInfo(name)
            header.size = len(jsonl(1))
            archive.addfile(header, io.BytesIO(jsonl(1)))
    found = items(tar_chunks(opened(file.getvalue()), read_member))
    assert [
        (item.kind, item.file) if isinstance(item, Problem) else item.value for item in found
    ] == [
        ("not a file", "a file/link"),
        ("not a file", "a file/same.jsonl"),
        ("not a file", "a file/device"),
        ("not a file", "a file/pipe"),
        ("empty file", "a file/nothing.jsonl"),
        {"a": 1},
        ("hidden file", "a file/b/._c.jsonl"),
        ("hidden file", "a file/.d/e.jsonl"),
        ("unknown suffix", "a file/f.bin"),
    ]


def test_a_member_that_is_not_read_to_its_end_does_not_disturb_the_next() -> None:
    def first_only(member: OpenedSource) -> Iterator[Chunk]:
        member.stream.read(10)
        yield problem_chunk("read", member.file, None, "")

    raw = tar({"a": b"x" * 100_000, "b": b"y" * 10})
    found = items(tar_chunks(opened(raw), first_only))
    assert [item.file for item in found] == ["a file/a", "a file/b"]  # type: ignore[union-attr]


def test_after_a_damaged_header_reading_continues_at_the_next() -> None:
    raw = bytearray(tar({"a.jsonl": jsonl(1), "b.jsonl": jsonl(2) * 100, "c.jsonl": jsonl(3)}))
    raw[1024 + 5] ^= 0xFF
    found = items(tar_chunks(opened(bytes(raw)), read_member))
    assert [getattr(item, "value", None) for item in found] == [{"a": 1}, None, {"a": 3}]
    message = "no header after a.jsonl: 1536 bytes are skipped"
    assert found[1] == Problem("damaged archive", "a file", None, message, is_damage=True)


def test_an_archive_without_members_is_nothing() -> None:
    assert items(tar_chunks(opened(tar({})), read_member)) == []


def test_archives_joined_end_to_end_are_read_whole() -> None:
    raw = tar({"a.jsonl": jsonl(1)}) + tar({"b.jsonl": jsonl(2)})
    assert outline(tar_chunks(opened(raw), read_member)) == [{"a": 1}, {"a": 2}]
    *_, last = items(tar_chunks(opened(raw[: 10240 + 1024]), read_member))
    assert last.message == "no end-of-archive marker after b.jsonl: members may be missing"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "empty file"),
        (b"text", "truncated header; nothing can be read"),
        (b"text" * 1000, "not a tar archive"),
        (tar({"a.jsonl": jsonl(1)})[:100], "truncated header"),
    ],
)
def test_a_file_that_is_not_an_archive_is_one_problem(raw: bytes, words: str) -> None:
    (problem,) = items(tar_chunks(opened(raw), read_member))
    assert problem.kind == "damaged archive"  # type: ignore[union-attr]
    assert words in problem.message  # type: ignore[union-attr]


def test_a_truncated_archive_keeps_what_is_there_and_says_so() -> None:
    raw = tar({f"{number}.jsonl": jsonl(number) * 500 for number in range(4)})
    content = 4 * 5120
    for length in range(700, content + 1, 512):
        found = items(tar_chunks(opened(raw[:length]), read_member))
        kinds = [item.kind for item in found if isinstance(item, Problem)]
        assert kinds[-1] == "damaged archive"
        assert set(kinds[:-1]) <= {"damaged compression"}
        whole = length // 5120 * 500
        assert len(found) - len(kinds) >= whole
    found = items(tar_chunks(opened(raw[:content]), read_member))
    assert found[-1].message == "no end-of-archive marker after 3.jsonl: members may be missing"  # type: ignore[union-attr]


def test_a_member_cut_off_is_located_inside_it() -> None:
    raw = tar({"a.jsonl": jsonl(1), "b.jsonl": jsonl(*range(10_000))})
    found = items(tar_chunks(opened(raw[:50_000]), read_member))
    *rows, inside, outside = found
    assert (inside.kind, inside.file) == ("damaged compression", "a file/b.jsonl")  # type: ignore[union-attr]
    assert inside.line == len(rows)
    assert (outside.kind, outside.file) == ("damaged archive", "a file")  # type: ignore[union-attr]


def test_damaged_compression_around_an_archive() -> None:
    packed = gzip.compress(tar({f"{n}.jsonl": jsonl(*range(n * 997)) for n in range(1, 20)}))
    stream = gzip.GzipFile(fileobj=io.BytesIO(packed[: len(packed) // 2]))
    found = items(tar_chunks(opened(stream, can_seek=False), read_member))  # type: ignore[arg-type]
    assert len(found) > 10_000
    assert found[-1].kind == "damaged archive"  # type: ignore[union-attr]


def test_a_failing_disk_is_not_taken_for_damage() -> None:
    raw = tar({f"{number}.jsonl": jsonl(number) * 5000 for number in range(4)})
    for after in (0, 600, 60_000, len(raw) - 1):
        for can_seek in (True, False):
            with pytest.raises(HeadwayError, match="the disk is gone"):
                list(tar_chunks(opened(Failing(raw, after), can_seek=can_seek), read_member))


@pytest.mark.long("a measurement of memory")
def test_memory_does_not_grow_with_the_number_of_members() -> None:
    raw = tar({f"{number}.jsonl": jsonl(number) for number in range(3000)})
    peaks = []
    for length in (len(raw) // 4, len(raw)):
        stream = io.BytesIO(raw[:length])
        tracemalloc.start()
        for chunk in tar_chunks(opened(stream), lambda member: json_line_chunks(member)):
            list(chunk.records())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] + 2**16
