"""Tokenizers that tests of preparation share, and a quick place for what they prepare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from headway.data.tiny_stories import stories
from headway.data.tokenizer import save_tokenizer, train_tokenizer, trained_roles
from support.prepared import folder_in_memory

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: "
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{{ '\\n' }}{% endfor %}"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Byte-level BPE: decodes to the very text. Its end of text is token 0."""
    folder = tmp_path_factory.mktemp("tokenizer")
    made = train_tokenizer(stories(30_000, 1), 400, "stream")
    save_tokenizer(made, trained_roles("stream"), folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def masked_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """[PAD], [UNK], [CLS], [SEP], [MASK] are the tokens 0 to 4."""
    folder = tmp_path_factory.mktemp("masked")
    made = train_tokenizer(stories(30_000, 1), 400, "windows")
    save_tokenizer(made, trained_roles("windows"), folder)
    return folder


@pytest.fixture(scope="session")
def word_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Knows ten words, "zero" to "nine": the tokens 2 to 11. [UNK] is 0, the end of text 1."""
    digits = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    words = ["[UNK]", "<eos>", *digits]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([AddedToken(token, special=True) for token in words[:2]])
    folder = tmp_path_factory.mktemp("words")
    save_tokenizer(made, {"eos_token": "<eos>", "unk_token": "[UNK]"}, folder)
    return folder
