"""Encoding by words gives, for every text, the very ids that the tokenizer gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE, WordLevel
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split, Whitespace
from tokenizers.trainers import BpeTrainer

from headway.data.prepare import fast_bpe as module
from headway.data.prepare.fast_bpe import GPT2, LLAMA3, FastBpe, fast_bpe_for
from headway.data.tiny_stories import stories

TRICKY = (
    " \t\n\r\x0b\x0c\x1c\x85\xa0\u2003\u3000\u200b"  # white space, and what only looks like it
    "'\u2019.,!?-_/#@()\"\u00ab\u00a7\u20ac"
    "abstmdrvelABSTMDRVEL\u00e9\u00df\u017f\u212a\u0130\u0111\u4e2d\u6587\u0e01\u05d0\u0915\u093f"
    "0123456789\u00b2\u00bd\u2167\u0663\u09ea"
    "\u0301\ufe0f\U0001f600\U00020000\U0001d7d8\ud7ff"
)
SPECIAL = "<|endoftext|>"


def trained(pattern: str) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    if pattern == GPT2[0]:
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = Sequence(
            [
                Split(Regex(pattern), behavior="isolated"),
                ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    trainer = BpeTrainer(
        vocab_size=800,
        special_tokens=[SPECIAL],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [*stories(200, seed=1), TRICKY, "it's we'LL I'm they'd 12345 \n\n\n  x\r\n\r\n !!?\n"]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.encode_special_tokens = True
    return tokenizer


def by_words(tokenizer: Tokenizer, folder: Path) -> FastBpe | None:
    file = folder / "tokenizer.json"
    tokenizer.save(str(file))
    return fast_bpe_for(tokenizer, file, "uint16")


@pytest.fixture(scope="module", params=[GPT2, LLAMA3], ids=["gpt2", "llama3"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, FastBpe]:
    tokenizer = trained(request.param[0])
    words = by_words(tokenizer, tmp_path_factory.mktemp("tokenizer"))
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
def test_any_text_of_tricky_characters(pair: tuple[Tokenizer, FastBpe], text: str) -> None:
    assert_same(pair, text)


@given(st.text(max_size=60))
def test_any_text(pair: tuple[Tokenizer, FastBpe], text: str) -> None:
    assert_same(pair, text)


def test_every_character_there_is(pair: tuple[Tokenizer, FastBpe]) -> None:
    """Between letters, numbers, signs and spaces. Most are encoded by words; the rest are left."""
    codes = [code for code in range(1, 0x11000) if not 0xD800 <= code < 0xE000]
    left = 0
    for code in codes[::7]:
        text = f"a{chr(code)}b {chr(code)}1{chr(code)} !{chr(code)}  {chr(code)}"
        left += pair[1].encode(text) is None
        assert_same(pair, text)
    assert left < len(codes[::7]) // 20


def test_real_text_is_encoded_by_words(pair: tuple[Tokenizer, FastBpe]) -> None:
    for text in stories(50, seed=2):
        assert pair[1].encode(text) is not None
        assert_same(pair, text)
    assert pair[1].encode("") == b""


def test_text_that_spells_a_special_token_stays_text(pair: tuple[Tokenizer, FastBpe]) -> None:
    text = f"an end {SPECIAL} is none"
    assert pair[1].encode(text) is not None
    assert_same(pair, text)
    assert pair[0].token_to_id(SPECIAL) not in ids(pair[0], text)


def test_texts_with_other_added_tokens_are_left_to_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = trained(GPT2[0])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    words = by_words(tokenizer, tmp_path)
    assert words is not None
    assert words.encode("call <tool> now") is None
    assert words.encode("call it now") is not None


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
    return Tokenizer.from_str(json.dumps(described))


@pytest.mark.parametrize("what", ["dropout", "a prefix space", "many added tokens"])
def test_tokenizers_that_work_otherwise_do_their_own_work(what: str, tmp_path: Path) -> None:
    tokenizer = changed(trained(GPT2[0]), what)
    tokenizer.encode_special_tokens = True
    assert by_words(tokenizer, tmp_path) is None


def test_other_kinds_of_tokenizers_do_their_own_work(tmp_path: Path) -> None:
    normalizing = trained(GPT2[0])
    normalizing.normalizer = NFC()
    assert by_words(normalizing, tmp_path) is None
    by_spaces = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    by_spaces.pre_tokenizer = Whitespace()
    assert by_words(by_spaces, tmp_path) is None
    other_pattern = trained(r"\p{L}+|\s+|.")
    assert by_words(other_pattern, tmp_path) is None
