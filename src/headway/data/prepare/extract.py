"""Extracts the content of a record: text, a conversation, or token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np

from headway.data.formats.chunks import Problem, SourceRecord
from headway.data.prepare.chat import BadConversation, ChatTemplate, RenderedChat
from headway.data.prepare.recipe import RecipeSettings, template_columns
from headway.errors import BadInput
from headway.state.user_code import find_function, make_importable


@dataclass(frozen=True)
class TokenIds:
    """Token ids as given, and which of them count for the loss (all, without a mask)."""

    ids: np.ndarray
    mask: np.ndarray | None


class Omitted(Enum):
    """Why a record is left out on purpose; these are counted."""

    BLANK = "white space only"
    DROPPED = "left out by the transform"


Content = str | RenderedChat | TokenIds
Extracted = Content | Problem | Omitted


class Extractor:
    """Extracts the content of records. Created once per process."""

    def __init__(
        self,
        settings: RecipeSettings,
        vocab_size: int,
        tokenizer_folder: Path,
        code: Path | None,
        called: str = "the set's tokenizer",
    ) -> None:
        """`called`: how errors refer to the tokenizer, whose folder may be temporary."""
        self._called = called
        self._settings = settings
        self._vocab_size = vocab_size
        self._tokenizer_folder = tokenizer_folder
        self._chat = ChatTemplate.load(tokenizer_folder, called) if settings.messages else None
        self._transform: Callable[[Any], Any] | None = None
        if settings.transform is not None:
            make_importable(code)
            self._transform = find_function(settings.transform)
        if settings.template is not None:
            self._template = _template(settings.template)

    def extract(self, record: SourceRecord, file: str) -> Extracted:
        try:
            found = self._content(record.value)
        except _Bad as bad:
            return Problem(bad.kind, file, record.line, bad.message)
        if isinstance(found, str):
            if not found.strip():
                return Omitted.BLANK
            if _has_half_pair(found):
                return Problem("half a character", file, record.line, HALF_PAIR)
        return found

    def _content(self, value: Any) -> Content | Omitted:
        settings = self._settings
        if self._transform is not None:
            return self._transformed(self._transform, value)
        if settings.ids is not None:
            return self._ids_of(value)
        if isinstance(value, np.ndarray):
            raise _Bad("token ids", "it contains token ids: set `ids`")
        if settings.messages is not None:
            return self._conversation(_column(_named(value), settings.messages))
        if settings.template is not None:
            return "".join(
                text if name is None else text + _text(_named(value), name)
                for text, name in self._template
            )
        return value if isinstance(value, str) else _text(value, settings.column)

    def _conversation(self, messages: Any) -> RenderedChat:
        if self._chat is None:  # a transform returned messages
            self._chat = ChatTemplate.load(self._tokenizer_folder, self._called)
        try:
            return self._chat.render(messages)
        except BadConversation as error:
            raise _Bad("bad conversation", str(error)) from None

    def _ids_of(self, value: Any) -> TokenIds:
        settings = self._settings
        if isinstance(value, str):
            raise _Bad("not token ids", "it contains text, but `ids` is set")
        if isinstance(value, np.ndarray):
            return self._checked(value, None)
        assert settings.ids is not None
        mask = None if settings.mask is None else _column(value, settings.mask)
        return self._checked(_column(value, settings.ids), mask)

    def _checked(self, ids: Any, mask: Any) -> TokenIds:
        array = _integers(ids, "ids")
        if array.size and (int(array.min()) < 0 or int(array.max()) >= self._vocab_size):
            bad = int(array.min()) if int(array.min()) < 0 else int(array.max())
            raise _Bad(
                "id outside the vocabulary", f"{bad}; the tokenizer has {self._vocab_size} tokens"
            )
        if mask is None:
            return TokenIds(array, None)
        counts = _integers(mask, "the mask")
        if counts.shape != array.shape:
            raise _Bad("mask of another length", f"{len(counts)} for {len(array)} tokens")
        return TokenIds(array, (counts != 0).astype(np.uint8))

    def _transformed(self, transform: Callable[[Any], Any], value: Any) -> Content | Omitted:
        try:
            made = transform(_named(value))
        except Exception as error:  # noqa: BLE001 - user code; reported per record
            raise _Bad("transform failed", f"{type(error).__name__}: {error}") from None
        match made:
            case None:
                return Omitted.DROPPED
            case str():
                return made
            case list():
                return self._conversation(made)
            case (ids, mask):
                return self._checked(ids, mask)
            case np.ndarray():
                return self._checked(made, None)
            case _:
                raise _Bad(
                    "transform failed",
                    f"it returned {type(made).__name__}; it can return a text, a list of messages, "
                    "a pair (ids, mask), or None to drop the record",
                )


HALF_PAIR = "half a surrogate pair (\\ud800 to \\udfff): the text was cut inside a character"


class _Bad(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def _template(text: str) -> list[tuple[str, str | None]]:
    """Literal texts, each with the column that follows it. `str.format` cannot be used: `{a.b}` and
    `{0}` would not name columns."""
    template_columns(text)  # refuses an invalid template
    pieces = list(Formatter().parse(text))
    for _, name, form, conversion in pieces:
        if form or conversion:
            raise BadInput(
                f"template {text!r}: columns cannot be formatted", f"write just {{{name}}}"
            )
    return [(literal, name) for literal, name, _, _ in pieces]


def _named(value: Any) -> Any:
    """Wraps plain text as a record with one column."""
    return {"text": value} if isinstance(value, str) else value


def _column(value: Any, name: str) -> Any:
    if not isinstance(value, Mapping) or name not in value:
        columns = ", ".join(map(str, value)) if isinstance(value, Mapping) else ""
        raise _Bad("no column", f"no column `{name}`; there are: {columns or 'none'}")
    return value[name]


def _text(value: Any, name: str) -> str:
    found = _column(value, name)
    if not isinstance(found, str):
        raise _Bad("not text", f"column `{name}` holds {_kind(found)}, not text")
    return found


def _kind(value: Any) -> str:
    return "nothing (null)" if value is None else type(value).__name__


def _integers(values: Any, what: str) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:
        raise _Bad("not token ids", f"{what}: rows of unequal length") from None
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in ("iu" if what == "ids" else "iub"):
        raise _Bad("not token ids", f"{what} must be a list of integers, not {_kind(values)}")
    if array.dtype == np.uint64 and int(array.max()) >= 2**63:
        raise _Bad("id outside the vocabulary", str(int(array.max())))
    return array.astype(np.int64)


def _has_half_pair(text: str) -> bool:
    """JSON can contain half a surrogate pair, UTF-8 cannot, and tokenizers would panic."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
