"""Encoding by words gives, for every text, the very ids that the tokenizer gives."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import NFC, NFKC
from tokenizers.pre_tokenizers import Split, Whitespace

from headway.data.prepare import fast_bpe as module
from headway.data.prepare.fast_bpe import FastBpe, fast_bpe_for
from headway.data.tiny_stories import stories
from support.tokenizer_families import END, FAMILIES, PERSONAL, TOOLS
from support.tokenizer_families import trained as trained_on

TRICKY = (
    " \t\n\r\x0b\x0c\x1c\x85\xa0\u2003\u3000\u200b"  # white space, and what only looks like it
    "'\u2019.,!?-_/#@()\"\u00ab\u00a7\u20ac"
    "abstmdrvelABSTMDRVEL\u00e9\u00df\u017f\u212a\u0130\u0111\u4e2d\u6587\u0e01\u05d0\u0915\u093f"
    "0123456789\u00b2\u00bd\u2167\u0663\u09ea"
    "\u0301\ufe0f\U0001f600\U00020000\U0001d7d8\ud7ff"
)
TEXTS = [*stories(200, seed=1), TRICKY, "it's we'LL I'm they'd 12345 \n\n\n  x\r\n\r\n !!?\n"]

HERE = Path(__file__)
PAGES = [HERE, *sorted((HERE.parents[4] / "docs" / "concepts").glob("o*.md"))]


def trained(family: str) -> Tokenizer:
    return trained_on(family, TEXTS, vocab_size=800)


def by_words(tokenizer: Tokenizer) -> FastBpe | None:
    return fast_bpe_for(tokenizer, "uint16")


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, FastBpe]:
    tokenizer = trained(request.param)
    words = by_words(tokenizer)
    assert words is not None
    return tokenizer, words


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


def assert_same(pair: tuple[Tokenizer, FastBpe], text: str) -> None:
    tokenizer, words = pair
    found = words.encode(text)
    if found is not None:
        assert np.frombuffer(found, "uint16").tolist() == ids(tokenizer, text)


@given(st.text(alphabet=TRICKY, max_size=40))
@example("'\u017f x")
@example("a \n \r\n  b")
@example("a\n   b \n    c  1  !\t  \n  ")
@example("  1  '\u00e9 12 345\u00b2x")
def test_any_text_of_tricky_characters(pair: tuple[Tokenizer, FastBpe], text: str) -> None:
    assert_same(pair, text)


@given(st.lists(st.sampled_from([" ", "  ", " " * 23, " " * 25, "\n", "\t", "a", "1", "!", "'s"])))
def test_any_run_of_spaces(pair: tuple[Tokenizer, FastBpe], parts: list[str]) -> None:
    assert pair[1].encode("".join(parts)) is not None
    assert_same(pair, "".join(parts))


@given(st.text(max_size=60))
def test_any_text(pair: tuple[Tokenizer, FastBpe], text: str) -> None:
    assert_same(pair, text)


def test_every_character_there_is(pair: tuple[Tokenizer, FastBpe]) -> None:
    """Between letters, numbers, signs and spaces. Most are encoded by words; the rest are left:
    those that compose with the letter before them, for example."""
    codes = [code for code in range(1, 0x11000) if not 0xD800 <= code < 0xE000][::17]
    left = 0
    for code in codes:
        text = f"a{chr(code)}b {chr(code)}1{chr(code)} !{chr(code)}  {chr(code)}"
        left += pair[1].encode(text) is None
        assert_same(pair, text)
    assert left < len(codes) // 10


def test_real_text_is_encoded_by_words(pair: tuple[Tokenizer, FastBpe]) -> None:
    for text in stories(50, seed=2):
        assert pair[1].encode(text) is not None
        assert_same(pair, text)
    assert pair[1].encode("") == b""


def test_pages_and_programs(pair: tuple[Tokenizer, FastBpe]) -> None:
    for path in PAGES:
        assert pair[1].encode(path.read_text("utf-8")) is not None
        assert_same(pair, path.read_text("utf-8"))


def test_text_that_spells_a_special_token_stays_text(pair: tuple[Tokenizer, FastBpe]) -> None:
    text = f"an end {END} is none"
    assert pair[1].encode(text) is not None
    assert_same(pair, text)
    assert pair[0].token_to_id(END) not in ids(pair[0], text)


def test_texts_with_other_added_tokens_are_left_to_the_tokenizer() -> None:
    for family, token in (("qwen2.5", TOOLS[0]), ("olmo", PERSONAL[0]), ("olmo2", PERSONAL[1])):
        words = by_words(trained(family))
        assert words is not None
        assert words.encode(f"call {token} now") is None
        assert words.encode("call it now") is not None


def test_texts_that_the_tokenizer_would_compose_are_left_to_it() -> None:
    words = by_words(trained("qwen3"))
    assert words is not None
    composed = unicodedata.normalize("NFC", "re\u0301sume\u0301")
    assert words.encode(composed) is not None
    assert words.encode("re\u0301sume\u0301") is None
    assert words.encode("a new letter \U00010efc") is None, "how it composes is not known"


def test_a_full_memory_is_emptied_and_nothing_changes(
    pair: tuple[Tokenizer, FastBpe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WORDS", 10)
    pair[1].cache.clear()
    for text in stories(20, seed=3):
        assert_same(pair, text)
        assert len(pair[1].cache) <= 10


def changed(tokenizer: Tokenizer, what: str) -> Tokenizer:
    described: Any = json.loads(tokenizer.to_str())
    match what:
        case "dropout":
            described["model"]["dropout"] = 0.1
        case "a prefix space":
            described["pre_tokenizer"]["add_prefix_space"] = True
        case "many added tokens":
            tokenizer.add_tokens([f"<{number}>" for number in range(40)])
            described = json.loads(tokenizer.to_str())
        case "runs of 2 and 4 spaces":
            tokenizer.add_tokens(["  ", "    "])
            described = json.loads(tokenizer.to_str())
        case "spaces that take others with them":
            tokenizer.add_tokens([AddedToken("  ", lstrip=True)])
            described = json.loads(tokenizer.to_str())
        case "a special token with spaces":
            tokenizer.add_tokens(["  "])
            tokenizer.add_special_tokens([AddedToken("<  >", normalized=True)])
            described = json.loads(tokenizer.to_str())
    return Tokenizer.from_str(json.dumps(described))


@pytest.mark.parametrize(
    "what",
    [
        "dropout",
        "a prefix space",
        "many added tokens",
        "runs of 2 and 4 spaces",
        "spaces that take others with them",
        "a special token with spaces",
    ],
)
def test_tokenizers_that_work_otherwise_do_their_own_work(what: str) -> None:
    tokenizer = changed(trained("gpt2"), what)
    tokenizer.encode_special_tokens = True
    assert by_words(tokenizer) is None


def test_other_kinds_of_tokenizers_do_their_own_work() -> None:
    normalizing = trained("gpt2")
    normalizing.normalizer = NFC()
    assert by_words(normalizing) is not None
    normalizing.normalizer = NFKC()
    assert by_words(normalizing) is None
    by_spaces = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    by_spaces.pre_tokenizer = Whitespace()
    assert by_words(by_spaces) is None
    other_pattern = trained("llama3")
    other_pattern.pre_tokenizer = Split(Regex(r"\p{L}+|\s+|."), behavior="isolated")
    assert by_words(other_pattern) is None
