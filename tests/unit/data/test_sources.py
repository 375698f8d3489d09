"""Documents come out whole and in order, or an error says which line of which file is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.data.sources import Document, find_files, read_documents
from headway.errors import BadInput, NotFound


def documents(path: Path, column: str = "text") -> list[Document]:
    return list(read_documents([path], column))


def text_file(folder: Path, content: str | bytes, name: str = "a.txt") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_blank_lines_separate_documents(tmp_path: Path) -> None:
    path = text_file(tmp_path, "\n\nOne\nstill one\n\n  \n\nTwo\n\nThree")
    found = documents(path)
    assert [document.text for document in found] == ["One\nstill one", "Two", "Three"]
    assert [document.line for document in found] == [3, 8, 10]
    assert found[0].file == path


def test_end_of_text_lines_separate_documents_and_keep_their_blank_lines(tmp_path: Path) -> None:
    path = text_file(tmp_path, "One\n\nstill one\n<|endoftext|>\n\nTwo\n<|endoftext|>\n")
    assert [document.text for document in documents(path)] == ["One\n\nstill one", "Two"]


def test_end_of_text_inside_a_line_is_text(tmp_path: Path) -> None:
    path = text_file(tmp_path, "a <|endoftext|> b\n\nc")
    assert [document.text for document in documents(path)] == ["a <|endoftext|> b", "c"]


def test_windows_line_ends_and_a_byte_order_mark_are_no_text(tmp_path: Path) -> None:
    path = text_file(tmp_path, b"\xef\xbb\xbfOne\r\nline\r\n\r\nTwo\r\n")
    assert [document.text for document in documents(path)] == ["One\nline", "Two"]


def test_unusual_characters_do_not_end_a_line(tmp_path: Path) -> None:
    path = text_file(tmp_path, "a\u2028b\x0bc\x85d")
    assert [document.text for document in documents(path)] == ["a\u2028b\x0bc\x85d"]


def test_jsonl_gives_a_document_a_line(tmp_path: Path) -> None:
    lines = [{"text": "One\n\nstill"}, {"text": "  "}, {"text": "Zwei ä", "id": 3}]
    path = text_file(tmp_path, "\n\n".join(map(json.dumps, lines)), "a.jsonl")
    found = documents(path)
    assert [(document.text, document.line) for document in found] == [
        ("One\n\nstill", 1),
        ("Zwei ä", 5),
    ]


def test_jsonl_reads_the_column_asked_for(tmp_path: Path) -> None:
    path = text_file(tmp_path, '{"text": "no", "body": "yes"}\n', "a.jsonl")
    assert [document.text for document in documents(path, "body")] == ["yes"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"text": "cut', "not valid JSON"),
        (b'["text"]', "not a JSON object"),
        (b'{"body": "x", "title": "y"}', "no column `text`"),
        (b'{"text": 7}', "holds int"),
        (b'{"text": "a\\ud800"}', "surrogate"),
        (b'{"text": "\xff"}', "not UTF-8"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: bytes, says: str) -> None:
    path = text_file(tmp_path, b'{"text": "good"}\n' + line + b"\n", "a.jsonl")
    with pytest.raises(BadInput) as caught:
        documents(path)
    assert f"{path}:2: " in caught.value.message
    assert says in caught.value.message
    assert caught.value.hint


def test_a_missing_column_shows_the_columns_there_are(tmp_path: Path) -> None:
    path = text_file(tmp_path, '{"body": "x", "title": "y"}', "a.jsonl")
    with pytest.raises(BadInput, match="body, title"):
        documents(path)


def test_broken_utf8_in_text_is_named(tmp_path: Path) -> None:
    path = text_file(tmp_path, b"fine\nnot \xe4 fine\n")
    with pytest.raises(BadInput) as caught:
        documents(path)
    assert f"{path}:2: not UTF-8" in caught.value.message


def test_files_globs_and_folders_come_sorted(tmp_path: Path) -> None:
    folder = tmp_path / "run [1]"
    for name in ("b/2.txt", "b/1.txt", "b/deep/0.jsonl", "b/.hidden", "c3.txt", "c1.txt", "z.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    found = find_files(["z.txt", "c*.txt", "b"], folder)
    names = [file.relative_to(folder).as_posix() for file in found]
    assert names == ["z.txt", "c1.txt", "c3.txt", "b/1.txt", "b/2.txt", "b/deep/0.jsonl"]
    assert find_files(["**/1.txt"], folder) == [folder / "b" / "1.txt"]


@pytest.mark.parametrize("source", ["nowhere.txt", "nothing-*.txt"])
def test_a_source_that_does_not_exist_is_named(tmp_path: Path, source: str) -> None:
    with pytest.raises(NotFound, match=r"does not exist|no file matches") as caught:
        find_files([source], tmp_path)
    assert source in caught.value.message


@pytest.mark.parametrize("source", ["data.parquet", "*", "."])
def test_a_file_that_cannot_be_read_is_never_left_out_silently(tmp_path: Path, source: str) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "data.parquet").touch()
    with pytest.raises(BadInput, match=r"data\.parquet") as caught:
        find_files([source], tmp_path)
    assert ".txt and .jsonl" in caught.value.message


def test_the_same_file_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(BadInput, match="more than one source"):
        find_files(["a.txt", "*.txt"], tmp_path)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="empty folder"):
        find_files(["."], tmp_path)
