"""Documents out of text files, one at a time.

What a document is:

    .jsonl   one line, one document: the column `text`, or the one asked for
    .txt     where a file has lines that hold only <|endoftext|>, those separate its documents and
             blank lines are part of them; in any other file blank lines separate its documents

One document a file would be wrong for the usual large text file, and a line a document would tear
paragraphs apart. Documents of white space only are passed over. Files are read as UTF-8, line by
line: memory holds one document at a time.
"""

from __future__ import annotations

import codecs
import glob
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.errors import BadInput, NotFound

SUFFIXES = (".txt", ".jsonl")
SEPARATOR = "<|endoftext|>"

_SUPPORTED = f"supported are {' and '.join(SUFFIXES)}"


@dataclass(frozen=True)
class Document:
    text: str
    file: Path
    line: int
    """Where it starts, counted from 1."""


def find_files(sources: Sequence[str], beside: Path) -> list[Path]:
    """The files that `sources` (files, globs, folders) name, relative to the folder `beside`.

    Sources stay in the order given; what one glob or folder holds is sorted by name, so that the
    same files give the same set everywhere. Nothing is left out silently: a file that cannot be
    read as text, even inside a folder, is an error.
    """
    files: list[Path] = []
    seen: set[Path] = set()
    for source in sources:
        for file in _files_of(source, beside):
            if file.suffix not in SUFFIXES:
                raise BadInput(
                    f"{file} has a suffix that cannot be read; {_SUPPORTED}",
                    "convert it, or name the files to read with a glob such as texts/*.jsonl",
                )
            if file.resolve() in seen:
                raise BadInput(
                    f"{file} is named by more than one source", "its text would be in the set twice"
                )
            seen.add(file.resolve())
            files.append(file)
    return files


def read_documents(files: Sequence[Path], column: str = "text") -> Iterator[Document]:
    for file in files:
        if file.suffix == ".jsonl":
            yield from _jsonl_documents(file, column)
        else:
            yield from _text_documents(file)


def _files_of(source: str, beside: Path) -> list[Path]:
    path = beside / Path(source).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [
            file
            for file in path.rglob("*")
            if file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        ]
        if not found:
            raise BadInput(f"{path} is an empty folder", f"put text into it; {_SUPPORTED}")
        return sorted(found)
    if glob.has_magic(source):
        # root_dir, so that brackets in the name of `beside` itself are not taken for a pattern.
        pattern = str(Path(source).expanduser())
        found = [beside / name for name in glob.glob(pattern, root_dir=beside, recursive=True)]
        found = [file for file in found if file.is_file()]
        if not found:
            raise NotFound(f"no file matches {path}", "check the pattern; ** crosses folders")
        return sorted(found)
    raise NotFound(f"{path} does not exist", "check the path; it is relative to the run file")


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Lines without their ends, numbered from 1."""
    with file.open("rb") as stream:
        for number, raw in enumerate(stream, start=1):
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise BadInput(
                    f"{file}:{number}: not UTF-8 (byte {error.start + 1} of the line)",
                    f"convert the file, for example: iconv -f latin1 -t utf-8 {file.name}",
                ) from None
            yield number, line.removesuffix("\n").removesuffix("\r")


def _has_separator(file: Path) -> bool:
    """Whether any line is the separator; stops at the first, and only looks at bytes."""
    wanted = SEPARATOR.encode()
    with file.open("rb") as stream:
        return any(raw.strip() == wanted for raw in stream)


def _text_documents(file: Path) -> Iterator[Document]:
    separator = SEPARATOR if _has_separator(file) else ""
    held: list[str] = []
    start = 0
    for number, line in _lines(file):
        if line.strip() == separator:
            yield from _document(held, file, start)
            held = []
        elif held or line.strip():  # blank lines before a document's first are no part of it
            if not held:
                start = number
            held.append(line)
    yield from _document(held, file, start)


def _document(lines: list[str], file: Path, start: int) -> Iterator[Document]:
    text = "\n".join(lines).rstrip()
    if text:
        yield Document(text, file, start)


def _jsonl_documents(file: Path, column: str) -> Iterator[Document]:
    for number, line in _lines(file):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise BadInput(
                f"{where}: not valid JSON: {error}", "every line must be one JSON object"
            ) from None
        if not isinstance(record, dict):
            raise BadInput(f"{where}: not a JSON object", "every line must be one JSON object")
        if column not in record:
            columns = ", ".join(sorted(record)) or "none"
            raise BadInput(f"{where}: no column `{column}`", f"the line's columns: {columns}")
        text = record[column]
        if not isinstance(text, str):
            raise BadInput(
                f"{where}: column `{column}` holds {type(text).__name__}, not text",
                "name the column that holds the text",
            )
        try:
            text.encode()
        except UnicodeEncodeError:
            # Half a surrogate pair: JSON can write it, UTF-8 cannot, and tokenizers would panic.
            raise BadInput(
                f"{where}: column `{column}` holds half a surrogate pair (\\ud800 to \\udfff)",
                "the text was cut inside a character; remove or repair the line",
            ) from None
        if text.strip():
            yield Document(text, file, number)
