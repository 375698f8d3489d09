"""Text sets and small models that the training tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.data.tiny_stories import stories
from support.preparing import prepare_set
from support.simulated_workers import WorkerPrograms
from support.workers import TEN_STEPS, resolved_run, train

WINDOW = 16


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "train.txt").write_text("\n\n".join(stories(60_000, seed=1)))
    (folder / "held-out.txt").write_text("\n\n".join(stories(8_000, seed=2)))
    return folder


def _sets(text: Path, name: str, **settings: int) -> dict[str, Path]:
    prepare_set(["train.txt"], text / name, text, vocab=400, **settings)
    held_out = text / f"{name}-held-out"
    tokenizer = text / name / "tokenizer"
    prepare_set(["held-out.txt"], held_out, text, tokenizer=tokenizer, **settings)
    return {"train": text / name, "held-out": held_out}


@pytest.fixture(scope="session")
def stream(text: Path) -> dict[str, Path]:
    """Prepared sets for causal models."""
    return _sets(text, "stream")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, stream: dict[str, Path]) -> Path:
    """The folder of a run `it` of ten steps that saved at 5 and 10; to be copied."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "run.yaml").write_text(TEN_STEPS)
    train(resolved_run(folder, stream))
    return folder


@pytest.fixture(scope="session")
def windows(text: Path) -> dict[str, Path]:
    """Prepared sets for masked models."""
    return _sets(text, "windows", window_tokens=WINDOW)


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


@pytest.fixture(scope="session")
def programs() -> Iterator[WorkerPrograms]:
    """Worker programs that can run on the simulated device."""
    with WorkerPrograms() as programs:
        yield programs
