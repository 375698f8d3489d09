"""Trained models leave in the HF format, and come back from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.train.export import export, load_trained
from headway.train.export_check import loss_of_export
from support.workers import resolved_run, train

pytestmark = pytest.mark.local

RUN_FILE = """\
version: 1
name: trained
model: {model}
objective: {objective}
data: {{train: unused, sequence_length: 16}}
batch: {{global: 4, micro: 2}}
train_for: 3 steps
precision: fp32
threads: 1
track: []
"""
MODELS = {
    "gpt2": "{type: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 32, n_positions: 32}}",
    "llama": (
        "{type: llama, config: {num_hidden_layers: 2, num_attention_heads: 4, "
        "num_key_value_heads: 2, hidden_size: 32, intermediate_size: 64, "
        "max_position_embeddings: 32}}"
    ),
    "bert": (
        "{type: bert, config: {num_hidden_layers: 2, num_attention_heads: 2, hidden_size: 32, "
        "intermediate_size: 64, max_position_embeddings: 32}}"
    ),
}


def write_run(folder: Path, model: str, objective: str = "causal") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "run.yaml").write_text(RUN_FILE.format(model=model, objective=objective))
    return folder


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_plain_transformers_reads_an_export(
    kind: str, tmp_path: Path, stream: dict[str, Path], windows: dict[str, Path]
) -> None:
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

    masked = kind == "bert"
    folder = write_run(tmp_path / "run", MODELS[kind], "masked" if masked else "causal")
    directory = train(resolved_run(folder, windows if masked else stream))
    assert export(directory, None, tmp_path / "out") == (3, tmp_path / "out")

    reader: Any = AutoModelForMaskedLM if masked else AutoModelForCausalLM
    theirs = reader.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    ours, _ = load_trained(directory, 3)
    tokens = torch.arange(32).view(2, 16)
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours(tokens).logits, rtol=0, atol=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").encode("Once")


def test_a_run_starts_from_a_model_saved_by_transformers(
    tmp_path: Path, stream: dict[str, Path], teacher: Path
) -> None:
    """And training moves it: the loss of the first step is that of the saved weights."""
    from transformers import AutoModelForCausalLM

    folder = write_run(tmp_path / "run", f"{{from: {teacher}}}")
    directory = train(resolved_run(folder, stream))
    started, _ = load_trained(directory, 3)
    saved = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32)
    weight, before = started.transformer.wte.weight, saved.transformer.wte.weight
    assert not torch.equal(weight, before)
    torch.testing.assert_close(weight, before, rtol=0, atol=0.01)


def test_a_run_starts_from_a_step_of_another(tmp_path: Path, stream: dict[str, Path]) -> None:
    folder = write_run(tmp_path / "run", MODELS["gpt2"])
    first = train(resolved_run(folder, stream))
    # A learning rate of almost nothing leaves the weights where they came from.
    second = write_run(tmp_path / "second", f'{{from: "{folder}/runs/trained@3"}}')
    directory = train(resolved_run(second, stream, overrides=["optimizer.lr=1e-12"]))
    ours, theirs = load_trained(first, 3)[0], load_trained(directory, 3)[0]
    for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-6)


def test_weights_that_the_files_have_apart_stay_apart(
    tmp_path: Path, stream: dict[str, Path]
) -> None:
    """transformers does not tie them, although the config of the folder says so."""
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(5)
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 32, "vocab_size": 448}
    saved = GPT2LMHeadModel(GPT2Config(**shape, tie_word_embeddings=False)).eval()
    saved.save_pretrained(tmp_path / "saved")
    config = tmp_path / "saved" / "config.json"
    says = json.loads(config.read_text())
    config.write_text(json.dumps({**says, "tie_word_embeddings": True}))

    folder = write_run(tmp_path / "run", f"{{from: {tmp_path / 'saved'}}}")
    directory = train(resolved_run(folder, stream, overrides=["optimizer.lr=1e-12"]))
    _, out = export(directory, None, tmp_path / "out")
    exported = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    tokens = torch.arange(32).view(2, 16)
    for model in (exported, load_trained(directory, None)[0]):
        with torch.no_grad():
            torch.testing.assert_close(model(tokens).logits, saved(tokens).logits)


OWN_CODE = """\
import torch
from torch import nn
from torch.nn import functional as F

from headway import IGNORED, Loss


class Mine(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(448, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.head = nn.Linear(width, 448)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.head(x)


def build(width):
    model = Mine(width)
    return model, list(model.blocks)


def loss(model, batch):
    logits = model(batch.inputs).flatten(0, 1)
    total = F.cross_entropy(logits, batch.targets.flatten(), ignore_index=IGNORED, reduction="sum")
    squares = (logits.detach() ** 2).mean(-1).sum()
    return Loss(total, (batch.targets != IGNORED).sum(), {"logit_size": squares})


def metrics(model, batch):
    right = (model(batch.inputs).argmax(-1) == batch.targets) & batch.is_real[:, None]
    return {"accuracy": (right.sum(), (batch.targets != IGNORED).sum())}
"""


def test_own_model_loss_and_metrics_train_without_a_fork(
    tmp_path: Path, stream: dict[str, Path]
) -> None:
    folder = write_run(
        tmp_path / "run", '{call: "mine:build", config: {width: 16}}', '{call: "mine:loss"}'
    )
    (folder / "src").mkdir()
    (folder / "src" / "mine.py").write_text(OWN_CODE)
    own = [
        "code.path=src",
        'evaluation.metrics.call="mine:metrics"',
        "train_for=40 steps",
        "optimizer.lr=1e-2",
    ]
    alone = train(resolved_run(folder, stream, overrides=[*own, "name=alone"]))
    two = train(resolved_run(folder, stream, 2, [*own, "name=two"]))
    losses = [line["loss"] for line in alone.steps()]
    assert losses[-1] < losses[0] - 0.5
    assert [line["loss"] for line in two.steps()] == pytest.approx(losses, rel=1e-5)
    assert [line["logit_size"] for line in two.steps()] == pytest.approx(
        [line["logit_size"] for line in alone.steps()], rel=1e-4
    )
    accuracy = alone.evaluations.last()["accuracy"]
    assert 0 < accuracy < 1
    assert two.evaluations.last()["accuracy"] == pytest.approx(accuracy, rel=1e-5)


def test_the_loss_of_an_export_is_that_of_the_run(tmp_path: Path, stream: dict[str, Path]) -> None:
    """What `headway prove` compares."""
    folder = write_run(tmp_path / "run", MODELS["gpt2"])
    directory = train(resolved_run(folder, stream))
    export(directory, None, tmp_path / "out")
    name = next(name for name in stream if name != "train")
    (recorded,) = [line for line in directory.evaluations.read()[0] if line["set"] == name]
    assert recorded["step"] == 3
    found = loss_of_export(tmp_path / "out", directory, name)
    assert found == pytest.approx(recorded["loss"], rel=1e-6)
