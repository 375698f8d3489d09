"""Bad input neither stops a preparation nor vanishes: it is left out, counted, and listed with file
and line, and everything around it is in the set."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import resource
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pytest

from headway.cli.main import main
from headway.clock import SystemClock
from headway.data.formats.open_files import decompressed, seekable_copy
from headway.data.formats.readers import file_chunks
from headway.data.prepare.job import PrepareJob, prepare
from headway.data.prepare.manifest import read_problems
from headway.data.prepare.recipe import RecipeSettings
from headway.data.reading.verify import verify_set
from headway.data.set_format import SetManifest
from headway.data.tokenizer import TokenizerSource
from headway.errors import BadInput, Exit, HeadwayError
from headway.state.store import Store
from support.bad_case import (
    SETTINGS,
    Case,
    Way,
    build,
    documents_in,
    write_tokenizer,
    write_transform,
)
from support.bad_corpus import CASES
from support.contents import PLANTED, json_lines, lines_of, parquet, texts, words, zst


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    write_tokenizer(folder / "tokenizer")
    write_transform(folder / "code")
    build(folder / "corpus", CASES)
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the tokenizer; a pickle that is unpickled would leave a file here."""
    shutil.copytree(made / "tokenizer", tmp_path / "tokenizer")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepared(
    beside: Path, sources: list[str], into: Path, strict: bool = False, **how: Any
) -> SetManifest:
    processes = how.pop("processes", 1)
    allow_unreadable = how.pop("allow_unreadable", True)
    job = PrepareJob(
        sources,
        TokenizerSource(load="tokenizer"),
        str(into),
        beside,
        RecipeSettings(**how),
        code=beside / "code" if "transform" in how else None,
        strict=strict,
        allow_unreadable=allow_unreadable,
        processes=processes,
    )
    made = prepare(job, lambda _: None, SystemClock())
    assert isinstance(made, SetManifest)
    return made


def places(into: Path) -> list[tuple[str, str, int | None]]:
    found = read_problems(Store(into))
    assert all(problem.message for problem in found)
    return [(problem.kind, problem.file, problem.line) for problem in found]


def kinds_of(places: list[tuple[str, str, int | None]]) -> dict[str, int]:
    return dict(Counter(kind for kind, _, _ in places))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_kind_of_damage_is_located_and_loses_nothing_else(
    made: Path, here: Path, case: Case
) -> None:
    sources, into, settings = [f"corpus/{case.name}"], here / "set", SETTINGS[case.way]
    manifest = prepared(made, sources, into, **settings)
    expected = case.places("corpus")
    assert places(into) == expected
    assert documents_in(into, case.way) == case.all_documents
    assert manifest.num_documents == len(case.all_documents)
    assert manifest.statistics.problems == kinds_of(expected)
    assert manifest.statistics.num_blank == case.num_blank
    assert verify_set(Store(into)) == []
    if expected:
        kind, file, line = expected[0]
        with pytest.raises(BadInput) as refused:
            prepared(made, sources, here / "strict", strict=True, **settings)
        assert refused.value.message.startswith(f"{file}:{line}: {kind}" if line else f"{file}: ")
        assert kind in refused.value.message
        assert refused.value.exit_code == Exit.BAD_INPUT
    assert not (here / PLANTED).exists()


@pytest.mark.parametrize(
    ("way", "processes", "settings"),
    [
        ("text", 2, {}),
        # Plain files in pieces of a few lines: places are still those in the whole file.
        ("text", 1, {"unit_bytes": 300}),
        ("ids", 1, {}),
        ("messages", 1, {}),
    ],
)
def test_all_kinds_together_are_located(
    made: Path, here: Path, way: Way, processes: int, settings: dict[str, Any]
) -> None:
    cases = sorted((case for case in CASES if case.way == way), key=lambda case: case.name)
    sources = [f"corpus/{case.name}" for case in cases]
    how = {**SETTINGS[way], **settings}
    manifest = prepared(made, sources, here / "set", processes=processes, **how)
    expected = [place for case in cases for place in case.places("corpus")]
    assert sorted(places(here / "set"), key=repr) == sorted(expected, key=repr)
    assert documents_in(here / "set", way) == [doc for case in cases for doc in case.all_documents]
    assert manifest.statistics.problems == kinds_of(expected)
    assert verify_set(Store(here / "set")) == []


def test_the_corpus_has_many_kinds() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 100
    assert len({kind for case in CASES for kind, _, _ in case.problems}) >= 24


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("jsonl-not-json", []),
        ("gz-truncated", []),
        ("ids-negative", ["--ids", "ids"]),
    ],
)
def test_the_command_says_where(
    made: Path,
    here: Path,
    name: str,
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def command(*arguments: str) -> tuple[int, str]:
        words = ["headway", "data", "prepare", "bad", "--tokenizer", "tokenizer", *arguments]
        monkeypatch.setattr(sys, "argv", [*words, *options])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().err

    (case,) = (case for case in CASES if case.name == name)
    shutil.copytree(made / "corpus" / name, here / "bad")
    ((kind, file, line),) = case.problems
    is_damage = name == "gz-truncated"
    code, said = command("--into", "set", *(["--allow-unreadable"] if is_damage else []))
    assert code == Exit.DONE
    assert ("1 file is damaged; lost: an unknown amount" in said) == is_damage
    assert f"left out what could not be read: 1 {kind}" in said
    assert f"  bad/{file}:{line}: {kind}: " in said
    assert "hint: all of them are listed in set/problems.jsonl" in said
    code, said = command("--into", "strict", "--strict")
    assert code == Exit.BAD_INPUT
    assert f"bad/{file}:{line}: {kind}: " in said
    assert "hint: without --strict such records are left out" in said
    assert not (here / "strict" / "manifest.json").exists()


def test_strict_refuses_what_an_earlier_attempt_let_through(made: Path, here: Path) -> None:
    """The attempt before had no --strict, and was stopped before its end."""
    sources = ["corpus/jsonl-not-json", "corpus/jsonl-null"]
    prepared(made, sources, here / "set", unit_bytes=100)
    for file in ("manifest.json", "problems.jsonl"):
        (here / "set" / file).unlink()
    with pytest.raises(BadInput, match=r"bad\.jsonl:2: not JSON"):
        prepared(made, sources, here / "set", strict=True, unit_bytes=100)


def test_what_is_quoted_of_the_source_cannot_do_harm(here: Path) -> None:
    column = "\x1b[2J\ud800\n" * 1000
    (here / "a.jsonl").write_bytes(json_lines({column: "a"}, {"text": "good"}))
    prepared(here, ["a.jsonl"], here / "set")
    (problem,) = read_problems(Store(here / "set"))
    assert problem.message.startswith(r"no column `text`; there are: \x1b[2J\ud800\n")
    assert problem.message.isprintable()
    assert len(problem.message) < 5000


def test_broken_links_pipes_and_invalid_names(here: Path) -> None:
    (here / "data").mkdir()
    (here / "data" / "good.jsonl").write_bytes(lines_of(1))
    (here / "elsewhere").mkdir()
    (here / "elsewhere" / "other.jsonl").write_bytes(lines_of(2))
    (here / "data" / "broken.jsonl").symlink_to("nowhere.jsonl")
    (here / "data" / "folder").symlink_to(here / "elsewhere")
    os.mkfifo(here / "data" / "pipe.txt")
    Path(os.fsdecode(os.fsencode(here / "data") + b"/\xff.jsonl")).write_bytes(lines_of(3))
    # As caches have it: only the name of the link says what it is.
    (here / "blob").write_bytes(lines_of(4))
    (here / "data" / "link.jsonl").symlink_to("../blob")
    manifest = prepared(here, ["data"], here / "set")
    assert documents_in(here / "set", "text") == list(texts(1, 4))
    expected = [
        ("not a file", "data/broken.jsonl", None),
        ("not a file", "data/folder", None),
        ("not a file", "data/pipe.txt", None),
        ("name not UTF-8", "data/\\xff.jsonl", None),
    ]
    assert places(here / "set") == expected
    assert manifest.statistics.problems == kinds_of(expected)
    with pytest.raises(BadInput, match=r"data/broken\.jsonl: not a file"):
        prepared(here, ["data"], here / "strict", strict=True)


def test_a_failing_disk_is_not_bad_input(here: Path) -> None:
    (here / "data").mkdir()
    (here / "data" / "good.jsonl").write_bytes(lines_of(1))
    (here / "data" / "bad.txt").symlink_to("/proc/self/mem")  # reading its first byte is an error
    with pytest.raises(
        HeadwayError, match=r"data/bad\.txt cannot be read: .*Input/output"
    ) as ended:
        prepared(here, ["data"], here / "set")
    assert ended.value.exit_code == Exit.RUN_FAILED
    with pytest.raises(HeadwayError, match=r"bad\.txt cannot be read"):
        list(file_chunks("data/bad.txt", here))


def test_a_disk_without_space_for_a_decompressed_copy_is_not_bad_input() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    try:
        with pytest.raises(HeadwayError, match=f"no space .* in {tempfile.gettempdir()}"):
            seekable_copy(io.BytesIO(bytes(2**18)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("compression", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".zst", zst)]
)
def test_a_store_that_fails_below_the_decompressor_is_not_damage(
    compression: str, pack: Callable[[bytes], bytes]
) -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() >= 100:
                raise HeadwayError("the store is gone")
            return super().read(min(size or 0, 100 - self.tell()))

    packed = pack(np.random.default_rng(1).bytes(1000))
    stream = decompressed(cast(BinaryIO, Failing(packed)), compression)
    with pytest.raises(HeadwayError, match="the store is gone"):
        list(iter(lambda: stream.read(10), b""))


def test_strict_counts_lines_from_the_beginning_of_the_file(here: Path) -> None:
    lines = [{"text": words(number)} for number in range(1, 61)]
    (here / "a.jsonl").write_bytes(json_lines(*lines[:46], b"{", *lines[47:]))
    for unit_bytes in (300, 1000, 2**27):
        with pytest.raises(BadInput, match=r"^a\.jsonl:47: not JSON"):
            prepared(here, ["a.jsonl"], here / f"{unit_bytes}", True, unit_bytes=unit_bytes)


def test_templates_name_columns_as_they_are_called(here: Path) -> None:
    record = {"meta.title": "One", "0": "two", "a b": "three", "list[1]": "four"}
    (here / "a.jsonl").write_bytes(json_lines(record))
    template = "{{ {meta.title}, {0}, {a b}, {list[1]}. }}"
    prepared(here, ["a.jsonl"], here / "set", template=template)
    assert documents_in(here / "set", "text") == ["{ One, two, three, four. }"]
    (here / "b.txt").write_text("A plain text.")
    prepared(here, ["b.txt"], here / "plain", template="Read: {text}")
    assert documents_in(here / "plain", "text") == ["Read: A plain text."]
    for wrong in ("{a:>10}", "{a!r}", "{a", "none", "{}"):
        with pytest.raises(BadInput, match="template"):
            prepared(here, ["a.jsonl"], here / "wrong", template=wrong)


def test_nothing_but_bad_input_is_refused_and_listed(here: Path) -> None:
    (here / "a.jsonl").write_bytes(json_lines(b"{", {"content": words(1)}))
    with pytest.raises(BadInput, match=r"1 no column, 1 not JSON. The first: a\.jsonl:1"):
        prepared(here, ["a.jsonl"], here / "set")
    assert [line for _, _, line in places(here / "set")] == [1, 2]


@pytest.mark.parametrize("tokenizer", [{"load": "tokenizer"}, {"train_vocab": 400}])
@pytest.mark.parametrize(
    ("name", "content", "count", "says"),
    [
        (
            "a.jsonl",
            b'{"body": "Once"}\n{"body": "upon"}\n',
            "2 no column",
            "a.jsonl:1: no column `text`; there are: body",
        ),
        ("a.txt", "été à la mer\n".encode("latin-1"), "1 not UTF-8", "a.txt:1: "),
    ],
)
def test_where_nothing_can_be_read_the_first_problem_is_the_cause(
    here: Path, tokenizer: dict[str, Any], name: str, content: bytes, count: str, says: str
) -> None:
    (here / name).write_bytes(content)
    job = PrepareJob([name], TokenizerSource(**tokenizer), str(here / "set"), here, processes=1)
    with pytest.raises(BadInput) as caught:
        prepare(job, lambda _: None, SystemClock())
    assert f"no text in {name}: {count}. The first: " in caught.value.message
    assert f"The first: {says}" in caught.value.message
    assert "empty" not in str(caught.value)


def test_a_set_of_one_document_out_of_sixty_is_refused_unless_allowed(here: Path) -> None:
    rows = [{"text": words(1)}, *[{"body": words(2)}] * 56, *[{"text": " "}] * 2, b"{"]
    (here / "a.jsonl").write_bytes(json_lines(*rows))
    with pytest.raises(BadInput) as caught:
        prepared(here, ["a.jsonl"], here / "set", allow_unreadable=False)
    assert caught.value.message.startswith(
        "a.jsonl: only 1 of 60 records have text: 56 no column, 2 blank, 1 not JSON. The first: "
        "a.jsonl:2: no column `text`; there are: body."
    )
    assert "allow_unreadable: true" in (caught.value.hint or "")
    assert len(places(here / "set")) == 57, "what is left out is listed"
    assert prepared(here, ["a.jsonl"], here / "set").num_documents == 1


def test_a_file_that_is_no_text_is_not_named_as_the_first_record(here: Path) -> None:
    (here / "texts").mkdir()
    (here / "texts" / "a.png").write_bytes(b"\x89PNG")
    (here / "texts" / "b.jsonl").write_bytes(json_lines({"text": words(1)}, *[{"body": "x"}] * 8))
    with pytest.raises(BadInput) as caught:
        prepared(here, ["texts"], here / "set", allow_unreadable=False)
    assert "8 no column. The first: texts/b.jsonl:2: no column `text`" in caught.value.message
    assert "--column" in (caught.value.hint or "")


def test_as_many_unreadable_records_as_documents_are_left_out(here: Path) -> None:
    (here / "a.jsonl").write_bytes(json_lines({"text": words(1)}, {"body": words(2)}))
    found = prepared(here, ["a.jsonl"], here / "set", allow_unreadable=False)
    assert found.num_documents == 1


# --- damage to files


def random_lines(count: int) -> list[bytes]:
    """Text that does not become small when it is compressed."""
    drawn = np.random.default_rng(3)
    return [json_lines({"text": drawn.bytes(60).hex()}) for _ in range(count)]


def damaged_parquet(num_groups: int, rows_in_group: int) -> bytes:
    """The first page of the second row group is damaged."""
    rows = [f"row {number} of the file" for number in range(num_groups * rows_in_group)]
    content = bytearray(parquet({"text": rows}, rows_in_group=rows_in_group))
    at = content.index(rows[rows_in_group].encode())
    content[at : at + 4] = b"\0\0\0\0"
    return bytes(content)


@pytest.mark.parametrize(("compression", "pack"), [(".gz", gzip.compress), (".zst", zst)])
def test_a_file_of_which_a_third_came_is_refused_unless_allowed(
    here: Path, compression: str, pack: Callable[[bytes], bytes]
) -> None:
    packed = pack(b"".join(random_lines(20_000)))
    name = f"a.jsonl{compression}"
    (here / name).write_bytes(packed[: len(packed) // 3])
    with pytest.raises(BadInput) as caught:
        prepared(here, [name], here / "set", allow_unreadable=False)
    message = caught.value.message
    assert f"The first: {name}:" in message
    assert "--allow-unreadable" in (caught.value.hint or "")
    made = prepared(here, [name], here / "set")
    assert 5_000 < made.num_documents < 7_000
    # Only Zstandard says at the beginning how long the whole text is.
    lost = f"about {1 - made.num_documents / 20_000:.0%} of the sources"
    if compression != ".zst":
        lost = "an unknown amount"
    assert message.startswith(f"{name}: 1 file is damaged; lost: {lost}")
    (problem,) = read_problems(Store(here / "set"))
    if compression == ".zst":
        assert problem.num_bytes == pytest.approx(len(packed) * 2 / 3, rel=0.2)


def test_a_file_damaged_in_the_middle_says_how_many_bytes_were_not_read(here: Path) -> None:
    first = gzip.compress(b"".join(random_lines(10_000)))
    packed, half = first + b"damaged" + first, len(first)
    (here / "a.jsonl.gz").write_bytes(packed)
    (here / "b.jsonl").write_bytes(b"".join(random_lines(10_000)))
    with pytest.raises(BadInput) as caught:
        prepared(here, ["a.jsonl.gz", "b.jsonl"], here / "set", allow_unreadable=False)
    size = len(packed) + (here / "b.jsonl").stat().st_size
    (problem,) = read_problems(Store(here / "set"))
    assert problem.num_bytes == pytest.approx(half, rel=0.05)
    assert f"about {half / size:.0%} of the sources" in caught.value.message


def test_rows_that_a_damaged_row_group_loses_are_counted(here: Path) -> None:
    (here / "a.parquet").write_bytes(damaged_parquet(6, 500))
    with pytest.raises(BadInput) as caught:
        prepared(here, ["a.parquet"], here / "set", allow_unreadable=False)
    assert caught.value.message.startswith(
        "a.parquet: 1 file is damaged; lost: about 17% of the sources (500 rows). The first: "
    )
    made = prepared(here, ["a.parquet"], here / "set")
    assert made.num_documents == 2500
    (problem,) = read_problems(Store(here / "set"))
    assert (problem.kind, problem.line, problem.num_rows) == ("damaged file", 501, 500)


def test_what_is_lost_to_damage_is_printed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "a.parquet").write_bytes(damaged_parquet(6, 500))
    words = "headway data prepare a.parquet --into set --tokenizer tokenizer --allow-unreadable"
    for arguments in (words, "headway data show set"):
        monkeypatch.setattr(sys, "argv", arguments.split())
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        said = capsys.readouterr()
        wanted = "1 file is damaged; lost: about 17% of the sources (500 rows)"
        assert wanted in said.err + said.out


def test_rows_of_a_file_without_the_column_count_as_records(here: Path) -> None:
    (here / "a.jsonl").write_bytes(lines_of(*range(1, 11)))
    (here / "b.parquet").write_bytes(parquet({"body": [words(1)] * 30}))
    with pytest.raises(BadInput, match="only 10 of 40 records have text: 30 no column"):
        prepared(here, ["a.jsonl", "b.parquet"], here / "set", allow_unreadable=False)


def test_a_tokenizer_without_a_chat_template_is_named_as_written(here: Path) -> None:
    (here / "tokenizer" / "chat_template.jinja").unlink()
    (here / "a.jsonl").write_text('{"messages": []}\n')
    with pytest.raises(BadInput) as caught:
        prepared(here, ["a.jsonl"], here / "set", messages="messages")
    assert caught.value.message == "tokenizer `tokenizer` has no chat template"
