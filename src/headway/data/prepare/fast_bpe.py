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

# As Python patterns. {L} letters, {N} numbers, {S} whitespace, {W} one of several whitespace.
GPT2 = r"'(?:[stmd]|re|ve|ll)| ?[{L}]+| ?[{N}]+| ?[^{S}{L}{N}]+|{W}+(?![^{S}])|{W}+"
# Digits are cut out first: for what stands before one, the text ends there.
SMOLLM = r"'(?:[stmd]|re|ve|ll)| ?[{L}]+|[{N}]| ?[^{S}{L}{N}]+|{W}+(?![^{S}{N}])|{W}+"
LLAMA3 = (
    r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[^\r\n{L}{N}]?[{L}]+|[{N}]{{1,3}}|"
    r" ?[^{S}{L}{N}]+[\r\n]*|{W}*[\r\n]+|{W}+(?![^{S}])|{W}+"
)
LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {
    LLAMA3_REGEX: LLAMA3,
    LLAMA3_REGEX.replace("{1,3}", ""): LLAMA3.replace("{{1,3}}", ""),  # Qwen's
}
"""Our patterns, by those that tokenizers' files have."""

FOLDED = "\u017f"
"""A long s: case-insensitively it equals s, so `'\u017f` may be a separate word."""
PROBES = {"L": "a", "N": "1", "S": "\t", "other": "!"}
"""Gives for each class a character that forms one word with a character of the same class (a digit
only if digits are not single). The order matters: some patterns also join a symbol with the letters
after it."""


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
        self, tokenizer: Tokenizer, pattern: str, added: list[str], is_nfc: bool, dtype: Any
    ) -> None:
        self._tokenizer = tokenizer
        self._added = added
        self._is_nfc = is_nfc
        self._cut = re.compile(pattern.format(**_classes()))
        self._has_single_digits = "|[{N}]|" in pattern
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
        is_single = self._has_single_digits and not self._is_word(character * 2)
        return "N" if is_single else None

    def _is_word(self, text: str) -> bool:
        return len(self._tokenizer.pre_tokenizer.pre_tokenize_str(text)) == 1


def fast_bpe_for(tokenizer: Tokenizer, dtype: Any) -> FastBpe | None:
    """A fast encoder for a tokenizer that works as described above; None for all others."""
    described = json.loads(tokenizer.to_str())
    model, added = described["model"], described["added_tokens"]
    # Special tokens are not recognised in plain text; others are, before the pattern applies.
    in_texts = [token["content"] for token in added if not token["special"]]
    elsewhere = [content for content in in_texts if content.strip(" ")]
    pattern = _pattern(described["pre_tokenizer"])
    pattern = pattern and _after_spaces(pattern, added)
    if (
        pattern is None
        or described["normalizer"] not in (None, {"type": "NFC"})
        or model.get("type") != "BPE"
        or model.get("dropout")
        or model.get("unk_token") is not None
        or model.get("continuing_subword_prefix")
        or model.get("end_of_word_suffix")
        or len(elsewhere) > MOST_ADDED
        or not unicodedata.is_normalized("NFC", " ".join(elsewhere))
        or not tokenizer.encode_special_tokens
    ):
        return None
    return FastBpe(tokenizer, pattern, elsewhere, described["normalizer"] is not None, dtype)


def _pattern(described: Any) -> str | None:
    *cuts, last = (described or {}).get("pretokenizers", [described or {}])
    if last.get("type") != "ByteLevel" or last["add_prefix_space"]:
        return None
    match cuts, last["use_regex"]:
        case [], True:
            return GPT2
        case [{"type": "Digits", "individual_digits": True}], True:
            return SMOLLM
        case [{"type": "Split", "pattern": {"Regex": str(regex)}} as cut], False:
            # Every character is in a match, so that removing what is in none changes nothing.
            if (cut["behavior"], cut["invert"]) in (("Isolated", False), ("Removed", True)):
                return PATTERNS.get(regex)
    return None


def _after_spaces(pattern: str, added: list[dict[str, Any]]) -> str | None:
    """The pattern, after added tokens that are runs of spaces and of which the longest counts. What
    stands before such a run ends there, as if the text did. None if they follow other rules."""
    spaces = [token for token in added if not token["special"] and not token["content"].strip(" ")]
    if not spaces:
        return pattern.replace("{W}", "[{S}]")
    lengths = sorted(len(token["content"]) for token in spaces)
    if (
        lengths != list(range(lengths[0], lengths[-1] + 1))
        or len({token["normalized"] for token in spaces}) > 1
        or any(token[flag] for token in spaces for flag in ("single_word", "lstrip", "rstrip"))
        # It would be recognised before the spaces in it, and then passed over together with them.
        or any(" " in token["content"] for token in added if token["special"])
    ):
        return None
    outside = f"(?:(?! {{{{{lengths[0]}}}}})[{{S}}])"
    return f" {{{{{lengths[0]},{lengths[-1]}}}}}|{pattern.replace('{W}', outside)}"


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
