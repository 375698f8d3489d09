"""Byte-level BPE by a memory of words: several times as fast as the tokenizer, the same result.

Such a tokenizer cuts a text into words by a pattern and encodes each word by itself. So the ids of
a text are those of its words, and words come again: each is encoded once, by the tokenizer itself.
What could go wrong is the cut, and it is made certain: only patterns that are known to the letter
are followed, and each character is first shown to the tokenizer, to see that it takes it for the
same kind of character. Texts with any other character are left to the tokenizer.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

MOST_WORDS = 2**18
"""About 50 MB in each process. Then all are forgotten: the frequent ones are soon back."""
LONGEST_WORD = 64
"""Longer ones hardly come again."""
MOST_ADDED = 16
"""Tokens that are found anywhere in a text, and for which each text is searched."""

# In the words of the tokenizer's file, and in ours. {L} letters, {N} numbers, {S} white space.
GPT2 = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[stmd]|re|ve|ll)| ?[{L}]+| ?[{N}]+| ?[^{S}{L}{N}]+|[{S}]+(?![^{S}])|[{S}]+",
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[^\r\n{L}{N}]?[{L}]+|[{N}]{{1,3}}|"
    r" ?[^{S}{L}{N}]+[\r\n]*|[{S}]*[\r\n]+|[{S}]+(?![^{S}])|[{S}]+",
)
PATTERNS = dict((GPT2, LLAMA3))

FOLDED = "\u017f"
"""A long s: without regard to case it is an s, so that `'\u017f` may be a word of its own."""
PROBES = {"L": "a", "N": "1", "S": "\t", "other": "!"}
"""A character that is taken together with one of its kind. In this order: some patterns also take a
sign together with the letters behind it."""


class Memory(dict[str, bytes]):
    """The ids of each word that has been seen, as they are in a shard."""

    def __init__(self, tokenizer: Tokenizer, dtype: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._dtype = np.dtype(dtype)

    def __missing__(self, word: str) -> bytes:
        ids = self._tokenizer.encode(word, add_special_tokens=False).ids
        found = np.array(ids, dtype=self._dtype).tobytes()
        if len(word) <= LONGEST_WORD:
            if len(self) >= MOST_WORDS:
                self.clear()
            self[word] = found
        return found


class Words:
    def __init__(self, tokenizer: Tokenizer, pattern: str, added: list[str], dtype: Any) -> None:
        self._tokenizer = tokenizer
        self._added = added
        self._cut = re.compile(pattern.format(**_classes()))
        self._known: set[str] = set()
        self._odd = {FOLDED}
        self.memory = Memory(tokenizer, dtype)

    def encode(self, text: str) -> bytes | None:
        """The ids of a text; None: the tokenizer itself has to do it."""
        characters = set(text)
        if not characters <= self._known and not self._learn(characters):
            return None
        if any(token in text for token in self._added):
            return None
        return b"".join(map(self.memory.__getitem__, self._cut.findall(text)))

    def _learn(self, characters: set[str]) -> bool:
        """Whether the tokenizer takes them all for what we take them for."""
        for character in characters - self._known - self._odd:
            kind = self._kind(character)
            (self._known if kind == _kind(character) else self._odd).add(character)
        return self._odd.isdisjoint(characters)

    def _kind(self, character: str) -> str | None:
        """What the tokenizer takes a character for."""
        pre_tokenizer = self._tokenizer.pre_tokenizer
        for kind, probe in PROBES.items():
            if len(pre_tokenizer.pre_tokenize_str(probe + character)) == 1:
                return kind
        return None


def words_of(tokenizer: Tokenizer, file: Path, dtype: Any) -> Words | None:
    """For a tokenizer that works as described; None for all others."""
    described = json.loads(file.read_text("utf-8"))
    model, added = described["model"], described.get("added_tokens", [])
    # Special ones are no tokens in plain texts; others are, and stand before the pattern.
    in_texts = [token["content"] for token in added if not token["special"]]
    pattern = _pattern(described.get("pre_tokenizer"))
    if (
        pattern is None
        or described.get("normalizer") is not None
        or model.get("type") != "BPE"
        or model.get("dropout")
        or model.get("unk_token") is not None
        or model.get("continuing_subword_prefix")
        or model.get("end_of_word_suffix")
        or len(in_texts) > MOST_ADDED
        or not tokenizer.encode_special_tokens
    ):
        return None
    return Words(tokenizer, pattern, in_texts, dtype)


def _pattern(described: Any) -> str | None:
    match described:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return GPT2[1]
        case {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": str(regex)},
                    "behavior": "Isolated",
                } as split,
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        } if not split.get("invert"):
            return PATTERNS.get(regex)
    return None


@cache
def _classes() -> dict[str, str]:
    """What goes between the brackets of a character class. Characters beyond 16 bits are left out,
    for they make matching five times slower: they count as neither letters nor numbers here, and
    those that are make their text one for the tokenizer."""
    return {"L": _ranges("L"), "N": _ranges("N"), "S": r"\s"}


def _ranges(category: str) -> str:
    return "".join(
        f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in _runs(category)
    )


def _runs(category: str) -> Iterator[tuple[int, int]]:
    first = None
    for code in range(2**16 + 1):
        inside = code < 2**16 and unicodedata.category(chr(code)).startswith(category)
        if inside and first is None:
            first = code
        elif not inside and first is not None:
            yield first, code - 1
            first = None


def _kind(character: str) -> str:
    """What our patterns take a character for."""
    if ord(character) < 2**16:
        category = unicodedata.category(character)[0]
        if category in "LN":
            return category
    return "S" if re.match(r"\s", character) else "other"
