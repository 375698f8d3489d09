"""One seed gives the same weights, bit by bit, at any number of ranks, replicated or sharded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import GPT2LMHeadModel

from headway.train.export import load_trained
from support.workers import resolved_run, train

pytestmark = pytest.mark.local

# One step that changes nothing, since its learning rate is 0 in fp32: the checkpoint has the
# weights that the run began with.
RUN_FILE = """\
version: 1
name: first
model: {model}
objective: {objective}
data: {{train: unused, sequence_length: 16}}
batch: {{global: 4, micro: 1}}
train_for: 1 steps
optimizer: {{lr: 1e-60, weight_decay: 0}}
precision: fp32
seed: {seed}
threads: 1
track: []
"""
# Sizes that neither 2, 3 nor 4 ranks divide. Tied weights, and untied ones with rotary positions.
GPT2 = (
    "{type: gpt2, config: {n_layer: 2, n_head: 1, n_embd: 30, n_positions: 17, vocab_size: 401}}",
    "causal",
)
LLAMA = (
    "{type: llama, config: {num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1, "
    "hidden_size: 20, intermediate_size: 34, vocab_size: 401, max_position_embeddings: 32}}",
    "causal",
)
BERT = (
    "{type: bert, config: {num_hidden_layers: 2, num_attention_heads: 2, hidden_size: 22, "
    "intermediate_size: 30, max_position_embeddings: 32, vocab_size: 407}}",
    "masked",
)
ONE = ("one", 1, 1, "none")


def weights(
    folder: Path, sets: dict[str, Path], case: tuple[str, int, int, str], kind: str, seed: int = 3
) -> dict[str, torch.Tensor]:
    name, nodes, ranks, shard = case
    model, objective = {"gpt2": GPT2, "llama": LLAMA, "bert": BERT}[kind]
    content = RUN_FILE.format(model=model, objective=objective, seed=seed)
    (folder / "run.yaml").write_text(content)
    settings = [f"name={kind}-{name}", f"resources.accelerators=cpu:{ranks}", f"shard={shard}"]
    module, step = load_trained(train(resolved_run(folder, sets, nodes, settings)), None)
    assert step == 1
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].shape == tensor.shape, name
        assert found[name].numpy().tobytes() == tensor.numpy().tobytes(), name


@pytest.fixture(scope="module")
def alone(
    tmp_path_factory: pytest.TempPathFactory, stream: dict[str, Path]
) -> dict[str, torch.Tensor]:
    return weights(tmp_path_factory.mktemp("alone"), stream, ONE, "gpt2")


SEVERAL = pytest.mark.long("the gate has three copies, and four ranks of both ways to shard")


@pytest.mark.parametrize(
    ("nodes", "ranks", "shard"),
    [
        *[pytest.param(nodes, 1, "none", marks=SEVERAL) for nodes in (2, 4)],
        *[pytest.param(1, ranks, "node", marks=SEVERAL) for ranks in (2, 3, 4)],
        *[pytest.param(nodes, 1, "all", marks=SEVERAL) for nodes in (1, 2, 3, 4)],
        (3, 1, "none"),
        (2, 2, "node"),
        (2, 2, "all"),
    ],
)
def test_gpt2_at_one_to_four_ranks(
    tmp_path: Path,
    stream: dict[str, Path],
    alone: dict[str, torch.Tensor],
    nodes: int,
    ranks: int,
    shard: str,
) -> None:
    assert_same(weights(tmp_path, stream, ("several", nodes, ranks, shard), "gpt2"), alone)


def test_each_block_has_numbers_of_its_own(alone: dict[str, torch.Tensor]) -> None:
    blocks = [alone[f"transformer.h.{number}.mlp.c_fc.weight"] for number in (0, 1)]
    assert not torch.equal(*blocks)
    assert 0.015 < blocks[0].std() < 0.025


@pytest.mark.long("the rule is the same for all types; unit tests have these without ranks")
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_other_types(
    tmp_path: Path, stream: dict[str, Path], windows: dict[str, Path], kind: str
) -> None:
    sets = windows if kind == "bert" else stream
    alone = weights(tmp_path, sets, ONE, kind)
    assert_same(weights(tmp_path, sets, ("sharded", 1, 3, "node"), kind), alone)
    other = weights(tmp_path, sets, ("other", 1, 1, "none"), kind, seed=4)
    name = next(name for name, tensor in alone.items() if tensor.ndim == 2)
    assert not torch.equal(other[name], alone[name]), "the seed decides"


def test_from_a_folder_and_from_a_run(
    tmp_path: Path, stream: dict[str, Path], teacher: Path
) -> None:
    """Each of three ranks reads its own rows."""
    content = RUN_FILE.format(model=f"{{from: {teacher}}}", objective="causal", seed=3)
    (tmp_path / "run.yaml").write_text(content)
    sharded = ["resources.accelerators=cpu:3", "shard=node"]
    settings = ["name=folder", *sharded]
    found, _ = load_trained(train(resolved_run(tmp_path, stream, 1, settings)), None)
    expected = GPT2LMHeadModel.from_pretrained(teacher).state_dict()
    assert_same(found.state_dict(), expected)

    settings = ["name=run", "model.from=folder@1", *sharded]
    found, _ = load_trained(train(resolved_run(tmp_path, stream, 1, settings)), None)
    assert_same(found.state_dict(), expected)


def test_a_resumed_run_reads_no_first_weights(
    tmp_path: Path, stream: dict[str, Path], teacher: Path
) -> None:
    """They may take as long as restoring does, at each restart."""
    base = shutil.copytree(teacher, tmp_path / "base")
    content = RUN_FILE.format(model=f"{{from: {base}}}", objective="causal", seed=3)
    (tmp_path / "run.yaml").write_text(content)
    train(resolved_run(tmp_path, stream))
    file = base / "model.safetensors"
    with file.open("r+b") as weights:
        header = int.from_bytes(weights.read(8), "little")
        weights.truncate(8 + header)
    directory = train(resolved_run(tmp_path, stream, 1, ["train_for=2 steps"]))
    assert [line["step"] for line in directory.steps()] == [1, 2]
