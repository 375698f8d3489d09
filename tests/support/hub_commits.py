"""A model with its tokenizer and a dataset on a fake hub, each in two commits that differ."""

from __future__ import annotations

import json
from pathlib import Path

from headway.data.tiny_stories import stories
from headway.data.tokenizer import save_tokenizer, train_tokenizer, trained_roles
from support.fake_hub import FakeHub, Files

TEXTS = tuple(" ".join(stories(4_000, seed)) for seed in (1, 2))
LAYERS = (1, 2)


def two_commits(hub: FakeHub, folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The commits of `team/small` and `team/corpus`, as a run has them; the second is the newest.
    The first model has one layer, and its tokenizer's file ends with a space."""
    old, new = (first_commit(hub, folder, number) for number in (0, 1))
    return old, new


def first_commit(hub: FakeHub, folder: Path, number: int = 0) -> dict[str, str]:
    place = folder / f"model-{number}"
    place.mkdir()
    line = json.dumps({"text": TEXTS[number]})
    files = {
        "models/team/small": _model_files(LAYERS[number], " \n"[number], place),
        "datasets/team/corpus": {"data.jsonl": f"{line}\n".encode()},
    }
    return {repository: hub.commit(repository, content) for repository, content in files.items()}


def _model_files(layers: int, mark: str, folder: Path) -> Files:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    tokenizer = train_tokenizer(stories(30_000, 1), 300, "stream")
    save_tokenizer(tokenizer, trained_roles("stream"), folder)
    config = GPT2Config(
        n_layer=layers,
        n_head=1,
        n_embd=8,
        n_positions=32,
        vocab_size=300,
        bos_token_id=0,
        eos_token_id=0,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files["tokenizer.json"] += mark.encode()
    return files
