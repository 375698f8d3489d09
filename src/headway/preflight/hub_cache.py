"""Reads the cache of hub models on this machine, without asking the hub."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from headway.spec.load import load_run

PUBLISHED = {
    "gpt2": "gpt2-small",
    "openai-community/gpt2": "gpt2-small",
    "gpt2-medium": "gpt2-medium",
    "openai-community/gpt2-medium": "gpt2-medium",
    "gpt2-large": "gpt2-large",
    "openai-community/gpt2-large": "gpt2-large",
    "gpt2-xl": "gpt2-xl",
    "openai-community/gpt2-xl": "gpt2-xl",
    "distilgpt2": "distilgpt2",
    "distilbert/distilgpt2": "distilgpt2",
    "bert-base-uncased": "bert-base",
    "google-bert/bert-base-uncased": "bert-base",
    "bert-large-uncased": "bert-large",
    "google-bert/bert-large-uncased": "bert-large",
    "meta-llama/Llama-2-7b-hf": "llama2-7b",
    "meta-llama/Llama-2-13b-hf": "llama2-13b",
    "meta-llama/Llama-2-70b-hf": "llama2-70b",
    "meta-llama/Meta-Llama-3-8B": "llama3-8b",
}
"""Models of the hub whose shape and number of tokens are those of a preset. Some of them ask for
an account before they show their config."""


def published_config(name: str) -> dict[str, Any] | None:
    """Return the config of a model of the hub, if a preset has its shape."""
    if name not in PUBLISHED:
        return None
    model = load_run(PUBLISHED[name]).run.model
    assert model is not None
    return {"model_type": model.type, **model.config}


def in_hub_cache(name: str, revision: str | None, file: str) -> Path:
    """Return where huggingface_hub keeps a file. The hub is not asked: a plan takes a second."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    folder = cache / f"models--{name.replace('/', '--')}"
    commit = revision or "main"
    with suppress(OSError):
        commit = (folder / "refs" / commit).read_text().strip()
    return folder / "snapshots" / commit / file
