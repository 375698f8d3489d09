"""Activation statistics: there for every block, within their bounds, and invisible to training."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pytest

from headway.state.rewinds import Record
from headway.state.run_directory import RunDirectory
from support.workers import resolved_run, train

pytestmark = pytest.mark.local

STEPS, EVERY, LENGTH = 20, 5, 16
RUN_FILE = """\
version: 1
name: {name}
model: {model}
objective: {objective}
data: {{train: unused, sequence_length: 16}}
batch: {{global: 7, micro: 2}}
train_for: 20 steps
optimizer: {{lr: 2e-3}}
schedule: {{warmup: 5 steps}}
precision: {precision}
seed: 3
threads: 1
track: []
checkpoint: {{every: 1000 steps}}
{more}
"""
MODELS = {
    "gpt2": "{type: gpt2, config: {n_layer: 3, n_head: 2, n_embd: 32, n_positions: 32, "
    "vocab_size: 448, resid_pdrop: 0.1, embd_pdrop: 0.1, attn_pdrop: 0.1}}",
    "llama": "{type: llama, config: {num_hidden_layers: 3, num_attention_heads: 4, "
    "num_key_value_heads: 2, hidden_size: 32, intermediate_size: 64, vocab_size: 448, "
    "attention_dropout: 0.1}}",
    "bert": "{type: bert, config: {num_hidden_layers: 3, num_attention_heads: 2, hidden_size: 32, "
    "intermediate_size: 64, max_position_embeddings: 32, vocab_size: 448}}",
    "own": '{call: "mine:build"}',
}
# The mode of a layer and the global random state are all that an own model could see of a pass.
OWN_MODEL = """\
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(torch.relu(self.inner(x)))

def build():
    blocks = nn.ModuleList([Block() for _ in range(3)])
    return nn.Sequential(nn.Embedding(448, 16), *blocks, nn.Linear(16, 448)), blocks
"""
SHARDED = ("resources.accelerators=cpu:2", "shard=node")
WATCHED = f"watch.activations.every={EVERY} steps"


@pytest.fixture
def make(tmp_path: Path, stream: dict[str, Path], windows: dict[str, Path]):
    """Trains a model to the end, with activations watched or not."""

    def run(model: str, watched: bool, nodes: int = 1, *overrides: str, precision: str = "fp32"):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        (folder / "src").mkdir()
        (folder / "src" / "mine.py").write_text(OWN_MODEL)
        masked = model == "bert"
        content = RUN_FILE.format(
            name=model,
            model=MODELS[model],
            objective="masked" if masked else "causal",
            precision=precision,
            more="code: {path: src}" if model == "own" else "",
        )
        (folder / "run.yaml").write_text(content)
        settings = [*overrides, WATCHED] if watched else list(overrides)
        return train(resolved_run(folder, windows if masked else stream, nodes, settings))

    return run


def numbers(directory: RunDirectory) -> list[tuple[float, float]]:
    return [(line["loss"], line["grad_norm"]) for line in directory.steps()]


def looks(directory: RunDirectory) -> list[Record]:
    lines = directory.activations.read()[0]
    expected = [(step, block) for step in range(EVERY, STEPS + 1, EVERY) for block in range(3)]
    assert [(line["step"], line["block"]) for line in lines] == expected
    for line in lines:
        assert line["std"] > 0
        assert line["largest"] > abs(line["mean"])
        assert 0 <= line["zeros"] <= 1
    return lines


MORE = pytest.mark.long("the gate has two workers, recomputed blocks, and own code")
CASES = [
    pytest.param("gpt2", 2, (), id="gpt2-2-workers"),
    pytest.param("gpt2", 1, SHARDED, id="gpt2-sharded-over-2", marks=MORE),
    pytest.param("gpt2", 2, SHARDED, id="gpt2-2-nodes-of-2-sharded", marks=MORE),
    pytest.param("gpt2", 1, ("memory.checkpoint_activations=true",), id="gpt2-recomputed"),
    pytest.param("llama", 1, (), id="llama", marks=MORE),
    pytest.param("bert", 1, SHARDED, id="bert-sharded-over-2", marks=MORE),
    pytest.param("own", 2, (), id="own-2-workers"),
]


@pytest.mark.parametrize(("model", "nodes", "overrides"), CASES)
def test_every_block_is_seen_and_no_bit_changes(make, model, nodes, overrides) -> None:
    watched = make(model, True, nodes, *overrides)
    plain = make(model, False, nodes, *overrides)
    assert len(numbers(plain)) == STEPS
    assert numbers(watched) == numbers(plain)
    assert plain.activations.read()[0] == []
    lines = looks(watched)
    for line in lines:
        if model == "own":
            assert not [name for name in line if name.startswith("attention")]
        else:
            assert 0 < line["attention_entropy"] < math.log(LENGTH)
            assert line["attention_smallest"] < line["attention_largest"]


def test_sharded_and_whole_models_show_the_same(make) -> None:
    whole, sharded = looks(make("gpt2", True)), looks(make("gpt2", True, 1, *SHARDED))
    for one, other in zip(whole, sharded, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_untrained_attention_is_nearly_even(make) -> None:
    """In bf16, whose weights add up to one only nearly."""
    lines = looks(make("gpt2", True, precision="bf16"))
    # Row i of a causal model spreads over i + 1 tokens.
    even = sum(math.log(row + 1) for row in range(LENGTH)) / LENGTH
    assert lines[0]["attention_entropy"] == pytest.approx(even, rel=0.02)
