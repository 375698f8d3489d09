"""A model with its tokenizer and a dataset on a fake hub, each in two commits that differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from headway.data.tiny_stories import stories
from headway.data.tokenizer import save_tokenizer, train_tokenizer, trained_roles
from support.fake_hub import FakeHub, Files

TEXTS = tuple(" ".join(stories(4_000, seed)) for seed in (1, 2))
LAYERS = (1, 2)
WIDTH, POSITIONS, VOCABULARY = 8, 32, 300


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
    """Of a GPT-2 that is as small as can be, written without torch: importing it takes seconds."""
    tokenizer = train_tokenizer(stories(30_000, 1), VOCABULARY, "stream")
    save_tokenizer(tokenizer, trained_roles("stream"), folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files["tokenizer.json"] += mark.encode()
    files["config.json"] = json.dumps(
        {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "n_layer": layers,
            "n_head": 1,
            "n_embd": WIDTH,
            "n_positions": POSITIONS,
            "vocab_size": VOCABULARY,
            "bos_token_id": 0,
            "eos_token_id": 0,
        }
    ).encode()
    draw = np.random.default_rng(layers)
    files["model.safetensors"] = save(
        {
            f"transformer.{name}": (
                np.ones(shape) if "ln" in name and "weight" in name else draw.normal(0, 0.02, shape)
            ).astype(np.float32)
            for name, shape in _shapes(layers).items()
        },
        {"format": "pt"},
    )
    return files


def _shapes(layers: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (VOCABULARY, WIDTH),
        "wpe.weight": (POSITIONS, WIDTH),
        "ln_f.weight": (WIDTH,),
        "ln_f.bias": (WIDTH,),
    }
    products = {
        "attn.c_attn": (WIDTH, 3 * WIDTH),
        "attn.c_proj": (WIDTH, WIDTH),
        "mlp.c_fc": (WIDTH, 4 * WIDTH),
        "mlp.c_proj": (4 * WIDTH, WIDTH),
    }
    for layer in range(layers):
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"h.{layer}.{norm}.{part}": (WIDTH,) for part in ("weight", "bias")}
        for name, shape in products.items():
            shapes |= {f"h.{layer}.{name}.weight": shape, f"h.{layer}.{name}.bias": shape[1:]}
    return shapes
