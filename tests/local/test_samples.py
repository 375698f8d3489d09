"""Continuations of prompts: there at every evaluation, and invisible to training."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from headway.state.rewinds import Record, apply_rewinds
from headway.state.run_directory import RunDirectory
from support.live import LiveRun, write_run
from support.workers import resolved_run, train

pytestmark = pytest.mark.local

STEPS, EVERY = 8, 4
PROMPTS = ("Once upon a time there was", "The", "Once upon a time there was a little cat and a dog")
RUN_FILE = """\
version: 1
name: it
model: {model}
data: {{train: unused, sequence_length: 32}}
batch: {{global: 6, micro: 2}}
train_for: 8 steps
optimizer: {{lr: 2e-3}}
schedule: {{warmup: 2 steps}}
precision: {precision}
seed: 3
threads: 1
track: []
checkpoint: {{every: 1000 steps}}
evaluation: {{every: 4 steps}}
{more}
"""
MODELS = {
    "gpt2": "{type: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 32, n_positions: 32, "
    "vocab_size: 448, resid_pdrop: 0.1, embd_pdrop: 0.1, attn_pdrop: 0.1}}",
    "own": '{call: "mine:build"}',
}
# The global random state, and the mode of a layer, are what an own model could see of a sample.
OWN_MODEL = """\
from torch import nn

def build(wrapped=False):
    layers = [nn.Embedding(448, 16), nn.Dropout(0.1), nn.Linear(16, 448)]
    return Wrapped(*layers) if wrapped else nn.Sequential(*layers)

class Wrapped(nn.Sequential):
    def forward(self, inputs):
        return {"scores": super().forward(inputs)}
"""
OWN_LOSS = """
from headway import Loss
from headway.train.objectives import summed_cross_entropy

def loss(model, batch):
    scores = model(batch.inputs)["scores"]
    return Loss(summed_cross_entropy(scores, batch.targets), (batch.targets != -100).sum())
"""
SHARDED = ("resources.accelerators=cpu:2", "shard=node")
ASKED = (f"evaluation.prompts={list(PROMPTS)}", "evaluation.sample_tokens=9")


def folder_of(tmp_path: Path, model: str, precision: str = "fp32") -> Path:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    (folder / "mine.py").write_text(OWN_MODEL + OWN_LOSS)
    more = "code: {path: .}" if model == "own" else ""
    (folder / "run.yaml").write_text(
        RUN_FILE.format(model=MODELS[model], precision=precision, more=more)
    )
    return folder


def numbers(directory: RunDirectory) -> list[tuple[float, ...]]:
    steps = [(line["loss"], line["grad_norm"]) for line in directory.steps()]
    return [*steps, *((line["loss"],) for line in directory.evaluations.read()[0])]


def samples(directory: RunDirectory) -> list[Record]:
    return apply_rewinds(directory.samples.read()[0])


CASES = [
    pytest.param("gpt2", 2, (), "bf16", id="2-workers-bf16"),
    pytest.param("gpt2", 2, SHARDED, "fp32", id="2-nodes-of-2-sharded"),
    pytest.param("own", 1, (), "fp32", id="own"),
    pytest.param(
        "own",
        1,
        ("memory.compile=true",),
        "fp32",
        id="own-compiled",
        marks=pytest.mark.long("compiling takes most of a minute"),
    ),
]


@pytest.mark.parametrize(("model", "nodes", "overrides", "precision"), CASES)
def test_every_evaluation_has_them_and_no_bit_changes(
    tmp_path: Path, stream: dict[str, Path], model, nodes, overrides, precision
) -> None:
    folder = folder_of(tmp_path, model, precision)
    asked = train(resolved_run(folder, stream, nodes, [*overrides, *ASKED]))
    folder = folder_of(tmp_path, model, precision)
    plain = train(resolved_run(folder, stream, nodes, list(overrides)))
    assert len(numbers(plain)) == STEPS + STEPS // EVERY
    assert numbers(asked) == numbers(plain)
    assert samples(plain) == []
    found = samples(asked)
    wanted = [(step, prompt) for step in (4, 8) for prompt in PROMPTS]
    assert [(line["step"], line["prompt"]) for line in found] == wanted
    assert all(line["text"] for line in found)
    assert found[:3] != found[3:], "the model has learned in between"


def test_a_prompt_is_continued_the_same_whatever_stands_beside_it(
    tmp_path: Path, stream: dict[str, Path]
) -> None:
    """Also without a validation set."""
    sets = {"train": stream["train"]}
    alone = [f"evaluation.prompts={[PROMPTS[1]]}", "evaluation.sample_tokens=9"]
    one = train(resolved_run(folder_of(tmp_path, "gpt2"), sets, 1, alone))
    several = train(resolved_run(folder_of(tmp_path, "gpt2"), sets, 1, list(ASKED)))
    texts = [line["text"] for line in samples(several) if line["prompt"] == PROMPTS[1]]
    assert [line["text"] for line in samples(one)] == texts
    (_, last) = [event for event in one.history() if event["event"] == "evaluated"]
    assert last["losses"] == {}


def test_a_model_without_logits_is_refused_before_the_first_step(
    tmp_path: Path, stream: dict[str, Path]
) -> None:
    folder = folder_of(tmp_path, "own")
    own = ['objective={call: "mine:loss"}', "model.config={wrapped: true}"]
    with pytest.raises(AssertionError, match="returns dict, not logits"):
        train(resolved_run(folder, stream, 1, [*own, *ASKED]))


@pytest.mark.long("ten seconds; losing a leader is in test_losing_workers.py")
@pytest.mark.chaos
@pytest.mark.timeout(180)
def test_the_leader_is_lost_and_another_continues_the_prompts(tmp_path: Path, text: Path) -> None:
    often = ("--set", "evaluation.every=3 steps", "--set", f"evaluation.prompts={[*PROMPTS]}")
    with LiveRun(write_run(tmp_path, text), "it", 2, *often) as run:
        run.wait_for_step(10)
        before = run.step
        run.kill((run.members()[0], 0))
        run.wait_for_step(before + 10, 20.0)
        output = run.stop()
        run.require_exact()
        evaluated = {event["step"] for event in run.events("evaluated")}
        sampled = {line["step"] for line in samples(run.directory)}
        assert evaluated <= sampled
        assert {3, 6} <= sampled
        assert max(sampled) > before + 3
    assert "  The | " in output
