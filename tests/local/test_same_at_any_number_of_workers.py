"""The same run on 1 to 5 workers, replicated and sharded, gives the same numbers."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest

from support.workers import resolved_run, train

pytestmark = pytest.mark.local

STEPS = 30
TOLERANCE = 1e-5

# A batch that nothing divides: 7 sequences in micro-batches of 2 are 4 micro-batches, the last half
# empty. Five workers leave one with nothing to do. Dropout is on.
RUN_FILE = """\
version: 1
name: {name}
model: {model}
objective: {objective}
data: {{train: unused, sequence_length: 16}}
batch: {{global: 7, micro: 2}}
train_for: {steps} steps
optimizer: {{lr: 2e-3}}
schedule: {{warmup: 5 steps}}
precision: fp32
seed: 3
threads: 1
track: []
evaluation: {{every: 10 steps, sequences: 11}}
checkpoint: {{every: 1000 steps}}
"""
GPT2 = (
    "{type: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 32, n_positions: 32, vocab_size: 448, "
    "resid_pdrop: 0.1, embd_pdrop: 0.1, attn_pdrop: 0.1}}"
)
BERT = (
    "{type: bert, config: {num_hidden_layers: 2, num_attention_heads: 2, hidden_size: 32, "
    "intermediate_size: 64, max_position_embeddings: 32, vocab_size: 448}}"
)


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory,
    stream: dict[str, Path],
    windows: dict[str, Path],
    teacher: Path,
) -> dict[str, tuple[Path, dict[str, Path]]]:
    """A folder with a run file for each objective, and the sets it trains on."""
    distill = f"{{type: distill, teacher: {{from: {teacher}}}, temperature: 2}}"
    kinds = {
        "causal": (GPT2, "causal", stream),
        "masked": (BERT, "masked", windows),
        "distill": (GPT2, distill, stream),
    }
    made = {}
    for name, (model, objective, sets) in kinds.items():
        folder = tmp_path_factory.mktemp(name)
        content = RUN_FILE.format(name=name, model=model, objective=objective, steps=STEPS)
        (folder / "run.yaml").write_text(content)
        made[name] = (folder, sets)
    return made


def figures(
    run: tuple[Path, dict[str, Path]], nodes: int, *overrides: str
) -> dict[str, list[float]]:
    folder, sets = run
    name = f"name=w{nodes}-{crc32(repr(overrides).encode())}"
    directory = train(resolved_run(folder, sets, nodes, [name, *overrides]))
    lines = directory.steps()
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    return {
        "loss": [line["loss"] for line in lines],
        "grad_norm": [line["grad_norm"] for line in lines],
        "targets": [line["targets"] for line in lines],
        "held-out": [line["loss"] for line in directory.evaluations.read()[0]],
    }


@pytest.fixture(scope="module")
def alone(runs: dict[str, tuple[Path, dict[str, Path]]]) -> dict[str, dict[str, list[float]]]:
    return {name: figures(run, 1) for name, run in runs.items()}


SEVERAL = pytest.mark.long("the gate has three workers, and four ranks of each way to shard")


def assert_equal(found: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    assert found["targets"] == expected["targets"]
    for name in ("loss", "grad_norm", "held-out"):
        assert found[name] == pytest.approx(expected[name], rel=TOLERANCE, abs=0), name


@pytest.mark.trap(34)
@pytest.mark.parametrize(
    "workers", [pytest.param(2, marks=SEVERAL), 3, pytest.param(5, marks=SEVERAL)]
)
@pytest.mark.parametrize("objective", ["causal", "masked", "distill"])
def test_replicated(runs, alone, objective: str, workers: int) -> None:
    assert_equal(figures(runs[objective], workers), alone[objective])


@pytest.mark.parametrize("objective", ["causal", "masked", "distill"])
def test_sharded_over_two(runs, alone, objective: str) -> None:
    sharded = ("resources.accelerators=cpu:2", "shard=node")
    assert_equal(figures(runs[objective], 1, *sharded), alone[objective])


@pytest.mark.parametrize(
    ("nodes", "ranks", "shard"),
    [
        pytest.param(4, 1, "none", marks=SEVERAL),
        pytest.param(1, 3, "node", marks=SEVERAL),
        pytest.param(1, 4, "node", marks=SEVERAL),
        (2, 2, "node"),
        pytest.param(1, 1, "all", marks=SEVERAL),
        pytest.param(2, 1, "all", marks=SEVERAL),
        pytest.param(3, 1, "all", marks=SEVERAL),
        pytest.param(4, 1, "all", marks=SEVERAL),
        (2, 2, "all"),
        (4, 1, "2 nodes"),
    ],
)
def test_other_shapes(runs, alone, nodes: int, ranks: int, shard: str) -> None:
    """With `test_replicated` and `test_sharded_over_two`: all ways on one to four ranks."""
    shape = (f"resources.accelerators=cpu:{ranks}", f"shard={shard}")
    assert_equal(figures(runs["causal"], nodes, *shape), alone["causal"])


def test_in_bf16_sharding_changes_no_arithmetic(runs) -> None:
    """It may change between two starts, and `auto` changes it with the number of devices."""
    bf16 = "precision=bf16"
    whole = figures(runs["causal"], 1, bf16)
    sharded = figures(runs["causal"], 1, bf16, "resources.accelerators=cpu:2", "shard=node")
    assert_equal(sharded, whole)


def test_learning_happens(alone) -> None:
    """The equality above would also hold for a model that never changes."""
    for name in ("causal", "masked", "distill"):
        loss = alone[name]["loss"]
        assert sum(loss[-5:]) < sum(loss[:5]) * 0.98, name


def test_dropout_is_on_and_keyed_by_the_seed(runs, alone) -> None:
    without = figures(
        runs["causal"],
        1,
        "model.config.resid_pdrop=0.0",
        "model.config.embd_pdrop=0.0",
        "model.config.attn_pdrop=0.0",
    )
    assert without["loss"][0] != pytest.approx(alone["causal"]["loss"][0], rel=1e-4)
