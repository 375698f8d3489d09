"""Byte-level BPE with a word cache: several times faster than the tokenizer, with the same result.

Such a tokenizer splits a text into words by a pattern and encodes each word separately. So the ids
of a text are those of its words, and words recur: each is encoded once, by the tokenizer itself.
Only the split could go wrong, and this is ruled out: only exactly known patterns are used, and each
new character is first passed to the tokenizer, to check that it puts it into the same class. Texts
with any other character are left to the tokenizer, as are texts that its normalizer might change.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer

MOST_WORDS = 2**18
"""Size limit of the cache: about 50 MB per process. When full, it is cleared and soon refilled."""
LONGEST_WORD = 64
"""Length limit of a cached word: longer ones rarely recur."""
MOST_ADDED = 16
"""Limit of added tokens that can occur anywhere in a text: each text is searched for all."""


@dataclass(frozen=True)
class Split:
    """How a tokenizer splits a text into words."""

    pattern: str
    """In Python's syntax. {L} letters, {N} numbers, {S} whitespace, {W} one whitespace character
    of a longer run."""
    single_digits: bool = False
    """Whether each digit is a word."""


GPT2 = Split(r"'(?:[stmd]|re|ve|ll)| ?[{L}]+| ?[{N}]+| ?[^{S}{L}{N}]+|{W}+(?![^{S}])|{W}+")
# Digits are cut out first: for what stands before one, the text ends there.
SMOLLM = Split(r"'(?:[stmd]|re|ve|ll)| ?[{L}]+|[{N}]| ?[^{S}{L}{N}]+|{W}+(?![^{S}{N}])|{W}+", True)
_LLAMA3 = (
    r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[^\r\n{L}{N}]?[{L}]+|[{N}]DIGITS|"
    r" ?[^{S}{L}{N}]+[\r\n]*|{W}*[\r\n]+|{W}+(?![^{S}])|{W}+"
)
LLAMA3 = Split(_LLAMA3.replace("DIGITS", "{{1,3}}"))
QWEN2 = Split(_LLAMA3.replace("DIGITS", ""), True)

# As in the tokenizers' files.
_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {_REGEX.replace("DIGITS", "{1,3}"): LLAMA3, _REGEX.replace("DIGITS", ""): QWEN2}

FOLDED = "\u017f"
"""A long s: case-insensitively it equals s, so `'\u017f` may be a separate word."""
PROBES = {"L": "a", "N": "1", "S": "\t", "other": "!"}
"""By class, a character that forms one word with a character of the same class (a digit only if
digits are not single). The order matters: some patterns also join a symbol with the letters after
it."""


class WordCache(dict[str, bytes]):
    """The ids of each cached word, encoded as in a shard."""

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


class FastBpe:
    def __init__(
        self, tokenizer: Tokenizer, split: Split, is_nfc: bool, added: Added, dtype: Any
    ) -> None:
        self._tokenizer = tokenizer
        self._split = split
        self._is_nfc = is_nfc
        self._added = added.elsewhere
        self._cut = re.compile(added.spaces_first(split.pattern).format(**_classes()))
        self._known: set[str] = set()
        self._odd = {FOLDED}
        self.cache = WordCache(tokenizer, dtype)

    def encode(self, text: str) -> bytes | None:
        """The ids of a text; None if the tokenizer itself has to encode it."""
        characters = set(text)
        if not characters <= self._known and not self._learn(characters):
            return None
        if self._is_nfc and not text.isascii() and not unicodedata.is_normalized("NFC", text):
            return None
        if any(token in text for token in self._added):
            return None
        return b"".join(map(self.cache.__getitem__, self._cut.findall(text)))

    def _learn(self, characters: set[str]) -> bool:
        """Whether the tokenizer puts each of them into the same class as our patterns do."""
        for character in characters - self._known - self._odd:
            kind = self._kind(character)
            (self._known if kind == _kind(character) else self._odd).add(character)
        return self._odd.isdisjoint(characters)

    def _kind(self, character: str) -> str | None:
        """The class that the tokenizer puts a character into."""
        # How a character composes is only known if Python's version of Unicode has it.
        if self._is_nfc and unicodedata.category(character) == "Cn":
            return None
        for kind, probe in PROBES.items():
            if self._is_word(probe + character):
                return kind
        is_single = self._split.single_digits and not self._is_word(character * 2)
        return "N" if is_single else None

    def _is_word(self, text: str) -> bool:
        return len(self._tokenizer.pre_tokenizer.pre_tokenize_str(text)) == 1


@dataclass(frozen=True)
class Added:
    """Added tokens that are recognised in texts, before the pattern applies."""

    elsewhere: tuple[str, ...]
    """A text with one of these is left to the tokenizer."""
    spaces: tuple[int, int] | None
    """Fewest and most spaces of those that are runs of spaces, of which the longest counts."""

    def spaces_first(self, pattern: str) -> str:
        if self.spaces is None:
            return pattern.replace("{W}", "[{S}]")
        # What stands before such a run ends there, as if the text did.
        fewest, most = self.spaces
        outside = f"(?:(?! {{{{{fewest}}}}})[{{S}}])"
        return f" {{{{{fewest},{most}}}}}|{pattern.replace('{W}', outside)}"


def fast_bpe_for(tokenizer: Tokenizer, dtype: Any) -> FastBpe | None:
    """A fast encoder for a tokenizer that works as described above; None for all others."""
    described = json.loads(tokenizer.to_str())
    model, normalizer = described["model"], described["normalizer"]
    split = _split(described["pre_tokenizer"])
    added = _added(described["added_tokens"])
    if (
        split is None
        or added is None
        or normalizer not in (None, {"type": "NFC"})
        or model.get("type") != "BPE"
        or model.get("dropout")
        or model.get("unk_token") is not None
        or model.get("continuing_subword_prefix")
        or model.get("end_of_word_suffix")
        or not tokenizer.encode_special_tokens
    ):
        return None
    return FastBpe(tokenizer, split, normalizer is not None, added, dtype)


def _split(described: Any) -> Split | None:
    match described:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return GPT2
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            ],
        }:
            return SMOLLM
        case {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": str(regex)},
                    "behavior": behavior,
                    "invert": invert,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        } if (behavior, invert) in (("Isolated", False), ("Removed", True)):
            # Every character is in some match: dropping what is in none drops nothing.
            return SPLITS.get(regex)
    return None


def _added(tokens: list[dict[str, Any]]) -> Added | None:
    """None if texts would have to be searched for too many, or by other rules."""
    # Special tokens are not recognised in plain text.
    plain = [token for token in tokens if not token["special"]]
    runs = [token for token in plain if not token["content"].strip(" ")]
    elsewhere = tuple(token["content"] for token in plain if token not in runs)
    if len(elsewhere) > MOST_ADDED or not unicodedata.is_normalized("NFC", " ".join(elsewhere)):
        return None
    if not runs:
        return Added(elsewhere, None)
    lengths = sorted(len(token["content"]) for token in runs)
    if (
        lengths != list(range(lengths[0], lengths[-1] + 1))
        or len({token["normalized"] for token in runs}) > 1
        or any(token[flag] for token in runs for flag in ("single_word", "lstrip", "rstrip"))
        # It would be recognised before the spaces in it, and then passed over together with them.
        or any(" " in token["content"] for token in tokens if token["special"])
    ):
        return None
    return Added(elsewhere, (lengths[0], lengths[-1]))


@cache
def _classes() -> dict[str, str]:
    """Contents of the character classes. Characters beyond 16 bits are left out because they make
    matching five times slower: here they count as neither letters nor numbers, and a text with one
    that is either is left to the tokenizer."""
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
    """The class that our patterns put a character into."""
    if ord(character) < 2**16:
        category = unicodedata.category(character)[0]
        if category in "LN":
            return category
    return "S" if re.match(r"\s", character) else "other"
