"""From text to a prepared set: read, tokenise, write, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import Tokenizer

from headway.clock import Clock
from headway.data.shards import TOKENIZER, Layout, SetManifest, SpecialIds, file_digest
from headway.data.sources import Document, find_files, read_documents
from headway.data.tokenizer import (
    TOKENIZER_JSON,
    copy_tokenizer,
    find_tokenizer,
    role_id,
    save_tokenizer,
    special_token_ids,
    train_tokenizer,
    trained_roles,
    vocab_size,
)
from headway.data.writer import SetWriter, refuse_finished
from headway.errors import BadInput

_BATCH_DOCUMENTS = 1024
_BATCH_CHARACTERS = 2**20
"""Enough for every core of the tokenizer's thread pool, little enough to hold."""


@dataclass(frozen=True)
class TokenizerSource:
    """Where the tokenizer comes from: exactly one of the two."""

    load: str | None = None
    """A folder with tokenizer.json, or a name on the hub."""
    train_vocab: int | None = None
    """Train one of this size on the text."""

    def __post_init__(self) -> None:
        assert (self.load is None) != (self.train_vocab is None), "exactly one of the two"


@dataclass(frozen=True)
class Progress:
    stage: Literal["tokenizer", "tokens"]
    """Training a tokenizer reads all text once, without tokens; writing the set reads it again."""
    documents: int
    bytes: int
    """Of text, in UTF-8."""
    tokens: int
    """Written to the set, special tokens included."""
    seconds: float
    """Since this stage began."""


@dataclass(frozen=True)
class _Roles:
    """The ids that preparation puts in, and what the manifest says about them."""

    ids: SpecialIds
    start: int | None
    """[CLS], for windows."""
    separator: int | None
    """[SEP], for windows."""


def prepare(
    sources: Sequence[str],
    column: str,
    tokenizer: TokenizerSource,
    into: Path,
    beside: Path,
    layout: Layout,
    window_tokens: int | None,
    progress: Callable[[Progress], None],
    clock: Clock,
) -> SetManifest:
    """Makes `into` a prepared set of the documents in `sources` (relative to `beside`).

    stream: the end-of-text token after every document. windows: the documents' tokens, [SEP]
    between them, in windows of exactly [CLS] + (window_tokens - 2) tokens + [SEP]; what does not
    fill the last window is left out and counted. Text never turns into special tokens, even where
    it spells one.
    """
    if layout == "windows" and (window_tokens is None or window_tokens < 3):
        raise BadInput(
            f"windows of {window_tokens} tokens hold no text", "[CLS] and [SEP] take two: give more"
        )
    refuse_finished(into)
    files = find_files(sources, beside)
    report = _Reporter(progress, clock)
    model, roles = _make_tokenizer(tokenizer, files, column, into, beside, layout, report)

    report.begin("tokens")
    size = vocab_size(model)
    window = window_tokens if layout == "windows" else None
    with SetWriter(into, size, layout=layout, window_tokens=window) as writer:
        packer = _Windows(writer, roles, window) if window is not None else None
        for ids in _encode(model, report.counting(read_documents(files, column)), report):
            if packer is not None:
                packer.add(ids)
            else:
                assert roles.ids.end_of_text is not None
                writer.add(np.append(ids, roles.ids.end_of_text))
            report.tokens = writer.num_tokens
        report.show()
        left_out = packer.num_held if packer is not None else 0
        if writer.num_tokens == 0:
            raise _empty(sources, report.documents, left_out, window)
        return writer.finish(
            special_ids=roles.ids,
            tokenizer_digest=file_digest(into / TOKENIZER / TOKENIZER_JSON),
            num_bytes=report.bytes,
            num_tokens_left_out=left_out,
        )


def _make_tokenizer(
    source: TokenizerSource,
    files: Sequence[Path],
    column: str,
    into: Path,
    beside: Path,
    layout: Layout,
    report: _Reporter,
) -> tuple[Tokenizer, _Roles]:
    """The tokenizer ready to encode, written to the set's folder."""
    folder = into / TOKENIZER
    if source.load is not None:
        found = find_tokenizer(source.load, beside)
        tokenizer, names = found.load(), found.roles()
        roles = _find_roles(tokenizer, names, layout, source.load)
        copy_tokenizer(found, folder)
    else:
        assert source.train_vocab is not None
        report.begin("tokenizer")
        documents = report.counting(read_documents(files, column))
        texts = (document.text for document in documents)
        tokenizer = train_tokenizer(texts, source.train_vocab, layout)
        report.show()
        if report.documents == 0:
            raise _empty([str(file) for file in files], 0, 0, None)
        names = trained_roles(layout)
        roles = _find_roles(tokenizer, names, layout, "the trained tokenizer")
        save_tokenizer(tokenizer, names, folder)
    # Saved tokenizers may cut or pad to the length of the model they were made for.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Text that spells a special token stays text: otherwise a document could end itself.
    tokenizer.encode_special_tokens = True
    return tokenizer, roles


def _find_roles(tokenizer: Tokenizer, names: dict[str, str], layout: Layout, source: str) -> _Roles:
    found = {
        role: role_id(tokenizer, names, role)
        for role in ("eos_token", "mask_token", "cls_token", "sep_token")
    }
    needed = ("eos_token",) if layout == "stream" else ("cls_token", "sep_token", "mask_token")
    for role in needed:
        if found[role] is None:
            raise BadInput(
                f"{source} has no {role}, which the layout `{layout}` needs",
                f"use another tokenizer, or name its {role} in tokenizer_config.json",
            )
    special = {number for number in found.values() if number is not None}
    ids = SpecialIds(
        end_of_text=found["eos_token"],
        mask=found["mask_token"],
        special=tuple(sorted(special | set(special_token_ids(tokenizer)))),
    )
    return _Roles(ids, found["cls_token"], found["sep_token"])


def _encode(
    tokenizer: Tokenizer, documents: Iterator[Document], report: _Reporter
) -> Iterator[np.ndarray]:
    """Each document's ids, encoded a batch at a time on all of the tokenizer's threads."""
    for batch in _batches(documents):
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            yield np.array(encoding.ids, dtype=np.int64)
        report.show()


def _batches(documents: Iterator[Document]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for document in documents:
        batch.append(document.text)
        characters += len(document.text)
        if len(batch) == _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class _Windows:
    """Cuts the documents' tokens, one behind the other, into windows."""

    def __init__(self, writer: SetWriter, roles: _Roles, window_tokens: int) -> None:
        assert roles.start is not None
        assert roles.separator is not None
        self._writer = writer
        self._start, self._separator = roles.start, roles.separator
        self._room = window_tokens - 2
        self._held = np.empty(0, dtype=np.int64)
        self._begins = np.empty(0, dtype=np.int64)
        self._is_first = True

    @property
    def num_held(self) -> int:
        return len(self._held)

    def add(self, ids: np.ndarray) -> None:
        if len(ids) == 0:
            return
        between = [] if self._is_first else [self._separator]
        self._is_first = False
        self._begins = np.append(self._begins, len(self._held) + len(between))
        self._held = np.concatenate([self._held, np.array(between, dtype=np.int64), ids])
        num_windows = len(self._held) // self._room
        used = num_windows * self._room
        for begin in range(0, used, self._room):
            inside = (self._begins >= begin) & (self._begins < begin + self._room)
            window = np.empty(self._room + 2, dtype=np.int64)
            window[0], window[-1] = self._start, self._separator
            window[1:-1] = self._held[begin : begin + self._room]
            self._writer.add(window, starts=self._begins[inside] - begin + 1)
        self._held = self._held[used:]
        self._begins = self._begins[self._begins >= used] - used


class _Reporter:
    """Counts what goes by and tells `progress`, at every batch."""

    def __init__(self, progress: Callable[[Progress], None], clock: Clock) -> None:
        self._progress = progress
        self._clock = clock
        self.begin("tokens")

    def begin(self, stage: Literal["tokenizer", "tokens"]) -> None:
        self._stage = stage
        self._since = self._clock.monotonic()
        self.documents = self.bytes = self.tokens = 0

    def counting(self, documents: Iterator[Document]) -> Iterator[Document]:
        for document in documents:
            self.documents += 1
            self.bytes += len(document.text.encode())
            yield document
            if self._stage == "tokenizer" and self.documents % _BATCH_DOCUMENTS == 0:
                self.show()

    def show(self) -> None:
        seconds = self._clock.monotonic() - self._since
        self._progress(Progress(self._stage, self.documents, self.bytes, self.tokens, seconds))


def _empty(
    sources: Sequence[str], num_documents: int, num_held: int, window: int | None
) -> BadInput:
    names = ", ".join(sources)
    if num_documents == 0:
        return BadInput(f"no text in {names}", "the files are empty, or hold white space only")
    return BadInput(
        f"{names}: {num_held} tokens of text do not fill one window of {window}",
        "use more text or a shorter sequence_length",
    )
