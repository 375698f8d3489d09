"""Text sets and small models that the training tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.data.prepare import TokenizerSource, prepare
from headway.data.tiny import stories

WINDOW = 16


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "train.txt").write_text("\n\n".join(stories(60_000, seed=1)))
    (folder / "held-out.txt").write_text("\n\n".join(stories(8_000, seed=2)))
    return folder


def _prepared(text: Path, into: Path, layout: str, tokenizer: TokenizerSource, file: str) -> Path:
    prepare(
        [file],
        "text",
        tokenizer,
        into,
        text,
        layout,  # type: ignore[arg-type]
        WINDOW if layout == "windows" else None,
        lambda progress: None,
        SystemClock(),
    )
    return into


@pytest.fixture(scope="session")
def stream(text: Path) -> dict[str, Path]:
    """Prepared sets for causal models."""
    train = _prepared(
        text, text / "stream", "stream", TokenizerSource(train_vocab=400), "train.txt"
    )
    same = TokenizerSource(load=str(train / "tokenizer"))
    held_out = _prepared(text, text / "stream-held-out", "stream", same, "held-out.txt")
    return {"train": train, "held-out": held_out}


@pytest.fixture(scope="session")
def windows(text: Path) -> dict[str, Path]:
    """Prepared sets for masked models."""
    train = _prepared(
        text, text / "windows", "windows", TokenizerSource(train_vocab=400), "train.txt"
    )
    same = TokenizerSource(load=str(train / "tokenizer"))
    held_out = _prepared(text, text / "windows-held-out", "windows", same, "held-out.txt")
    return {"train": train, "held-out": held_out}


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 saved by plain transformers."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(5)
    config = GPT2Config(
        n_layer=2,
        n_head=2,
        n_embd=32,
        n_positions=32,
        vocab_size=448,
        bos_token_id=0,
        eos_token_id=0,
    )
    folder = tmp_path_factory.mktemp("models") / "teacher"
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder
