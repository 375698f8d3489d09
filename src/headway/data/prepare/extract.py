"""Extracts the content of a record: text, a conversation, or token ids."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from headway.data.formats.chunks import Problem, SourceRecord
from headway.data.formats.megatron import DocumentIds
from headway.data.prepare.chat import BadConversation, ChatTemplate, RenderedChat
from headway.data.prepare.columns import (
    BadRecord,
    column_of,
    kind_of,
    named,
    template_pieces,
    text_of,
)
from headway.data.prepare.masked_rows import MaskedRows
from headway.data.prepare.recipe import RecipeSettings, TokenizerFacts
from headway.errors import BadInput, HeadwayError
from headway.state.own_function import TRANSFORM, own_function
from headway.state.user_code import make_importable


@dataclass(frozen=True)
class TokenIds:
    """Token ids as given, and which of them count for the loss (all, without a mask)."""

    ids: np.ndarray
    mask: np.ndarray | None


class Omitted(Enum):
    """Why a record is left out on purpose; these are counted."""

    BLANK = "blank"
    DROPPED = "dropped by the transform"


ALL_DROPPED = "the transform returns None, which leaves a record out; has it a return?"

Content = str | RenderedChat | TokenIds
Extracted = Content | Problem | Omitted


class Extractor:
    """Extracts the content of records. Created once per process."""

    def __init__(
        self,
        settings: RecipeSettings,
        tokens: TokenizerFacts,
        tokenizer_folder: Path,
        code: Path | None,
        called: str = "the set's tokenizer",
    ) -> None:
        """`called`: how errors refer to the tokenizer, whose folder may be temporary."""
        self._called = called
        self._settings = settings
        self._vocab_size = tokens.vocab_size
        is_masked = settings.layout == "windows" and settings.transform is None
        self._rows = MaskedRows(tokens, settings.unmask) if is_masked else None
        self._tokenizer_folder = tokenizer_folder
        self._chat = ChatTemplate.load(tokenizer_folder, called) if settings.messages else None
        self._transform: Callable[[Any], Any] | None = None
        self._num_tried_twice = 0
        if settings.transform is not None:
            make_importable(code)
            self._transform = own_function(settings.transform, *TRANSFORM)
        if settings.template is not None:
            self._template = template_pieces(settings.template)

    def extract(self, record: SourceRecord, file: str, is_part: bool = False) -> Extracted:
        """`is_part`: of a document that is too long for one chunk."""
        try:
            found = self._content(record.value)
            if self._rows is not None and isinstance(found, TokenIds):
                found = self._plain_row(self._rows, found.ids, record, file, is_part)
        except BadRecord as bad:
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
        if settings.messages is not None:
            return self._conversation(column_of(named(value), settings.messages))
        if settings.template is not None:
            return "".join(
                text if name is None else text + text_of(named(value), name)
                for text, name in self._template
            )
        if isinstance(value, DocumentIds) and self._vocab_size:
            return self._checked(value, None)
        if isinstance(value, np.ndarray):
            wanted = "set `ids`" if self._vocab_size else "name the tokenizer that made them"
            raise BadRecord("token ids", f"it contains token ids: {wanted}")
        return value if isinstance(value, str) else text_of(value, settings.column)

    def _conversation(self, messages: Any) -> RenderedChat:
        if self._chat is None:  # a transform returned messages
            self._chat = ChatTemplate.load(self._tokenizer_folder, self._called)
        try:
            return self._chat.render(messages)
        except BadConversation as error:
            raise BadRecord("bad conversation", str(error)) from None

    def _ids_of(self, value: Any) -> TokenIds:
        settings = self._settings
        if isinstance(value, str):
            raise BadRecord("not token ids", "it contains text, but `ids` is set")
        if isinstance(value, np.ndarray):
            return self._checked(value, None)
        assert settings.ids is not None
        mask = None if settings.mask is None else column_of(value, settings.mask)
        return self._checked(column_of(value, settings.ids), mask)

    def _plain_row(
        self, rows: MaskedRows, ids: np.ndarray, record: SourceRecord, file: str, is_part: bool
    ) -> TokenIds:
        """For windows: masked anew in each epoch, so nothing may be masked in the source."""
        if not is_part:
            ids = rows.unmasked(ids, record.value)
        if count := rows.num_masked(ids):
            raise BadInput(
                f"{file}, row {record.line}: {count} of {len(ids)} tokens are [MASK]: the model "
                "would learn to predict from noise",
                "if the file says what was masked: unmask: {positions: masked_lm_positions, ids: "
                "masked_lm_ids}; otherwise prepare from the text",
            )
        return TokenIds(ids if is_part else rows.text_of(ids), None)

    def _checked(self, ids: Any, mask: Any) -> TokenIds:
        array = _integers(ids, "ids")
        if array.size and (int(array.min()) < 0 or int(array.max()) >= self._vocab_size):
            bad = int(array.min()) if int(array.min()) < 0 else int(array.max())
            raise BadRecord(
                "id outside the vocabulary", f"{bad}; the tokenizer has {self._vocab_size} tokens"
            )
        if mask is None:
            return TokenIds(array, None)
        counts = _integers(mask, "the mask")
        if counts.shape != array.shape:
            raise BadRecord("mask of another length", f"{len(counts)} for {len(array)} tokens")
        return TokenIds(array, (counts != 0).astype(np.uint8))

    def _transformed(self, transform: Callable[[Any], Any], value: Any) -> Content | Omitted:
        try:
            if self._num_tried_twice < TRIED_TWICE:
                self._num_tried_twice += 1
                self._require_same_again(transform, value)
            made = transform(named(value))
        except HeadwayError:
            raise
        except Exception as error:  # noqa: BLE001 - user code; reported per record
            said = f"{type(error).__name__}: {error}{_raised_at(error)}"
            raise BadRecord("transform failed", said) from None
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
                raise BadRecord(
                    "transform failed",
                    f"it returned {type(made).__name__}; it can return a text, a list of messages, "
                    "a pair (ids, mask), or None to drop the record",
                )

    def _require_same_again(self, transform: Callable[[Any], Any], value: Any) -> None:
        """Refuse a random transform: sets are prepared in parts, in any order, and again after a
        kill."""
        # Copies: it may change the record, or keep what it has returned.
        one, other = (deepcopy(transform(named(deepcopy(value)))) for _ in range(2))
        if not _is_same(one, other):
            raise BadInput(
                f"transform {self._settings.transform} returns {_short(one)} and then "
                f"{_short(other)} for the same record",
                "take randomness from the record: random.Random(record['id']), for example",
            )


TRIED_TWICE = 16
"""Records of each process that a transform gets twice."""


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other))
    return bool(one == other)


def _short(made: Any) -> str:
    text = repr(made)
    return text if len(text) <= SHORT_CHARACTERS else f"{text[:SHORT_CHARACTERS]}..."


SHORT_CHARACTERS = 60
HALF_PAIR = "half a surrogate pair (\\ud800 to \\udfff): the text was cut inside a character"


def _raised_at(error: Exception) -> str:
    """The line of the transform, or of what it called, that raised it; not our own."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _integers(values: Any, what: str) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:
        raise BadRecord("not token ids", f"{what}: rows of unequal length") from None
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in ("iu" if what == "ids" else "iub"):
        raise BadRecord(
            "not token ids", f"{what} must be a list of integers, not {kind_of(values)}"
        )
    if array.dtype == np.uint64 and int(array.max()) >= 2**63:
        raise BadRecord("id outside the vocabulary", str(int(array.max())))
    return array.astype(np.int64)


def _has_half_pair(text: str) -> bool:
    """JSON can contain half a surrogate pair, UTF-8 cannot, and tokenizers would panic."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
