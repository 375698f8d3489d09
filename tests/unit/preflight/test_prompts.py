"""`check` refuses prompts that the model cannot continue, where they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import SpecError
from headway.preflight.preflight import Preflight, preflight
from headway.spec.load import load_run

GPT2 = "{type: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 64}}"
BERT = "{type: bert, config: {num_hidden_layers: 2, num_attention_heads: 2, hidden_size: 64%s}}"


def found(folder: Path, model: str, more: str = "", prompts: str = "[Once]") -> Preflight:
    (folder / "text.txt").write_text("Once.")
    (folder / "mine.py").write_text("def build(): ...\ndef loss(model, batch): ...\n")
    (folder / "run.yaml").write_text(
        f"version: 1\nmodel: {model}\nbatch: {{global: 8, micro: 8}}\ntrain_for: 10 steps\n"
        "data: {sequence_length: 64, train: {sources: [text.txt], "
        "tokenizer: {train: {vocab: 512}}}}"
        f"\nevaluation:\n  prompts: {prompts}\ncode: {{path: .}}\n{more}"
    )
    return preflight(load_run(folder / "run.yaml"))


@pytest.mark.parametrize(
    ("model", "more", "problem"),
    [
        (BERT % "", "objective: masked", "a masked model fills gaps"),
        (BERT % "", "", "bert reads text in both directions"),
    ],
)
def test_an_encoder_does_not_continue_text(
    tmp_path: Path, model: str, more: str, problem: str
) -> None:
    (refusal,) = found(tmp_path, model, more).problems
    assert problem in refusal.problem
    assert refusal.position[1:] == (7, 3)
    assert refusal.hint is not None
    assert "remove evaluation.prompts" in refusal.hint


@pytest.mark.parametrize("model", [GPT2, BERT % ", is_decoder: true", '{call: "mine:build"}'])
def test_others_do(tmp_path: Path, model: str) -> None:
    checked = found(tmp_path, model)
    assert (checked.problems, checked.unchecked) == ([], [])


def test_what_an_own_model_returns_to_an_own_loss_is_not_known(tmp_path: Path) -> None:
    checked = found(tmp_path, '{call: "mine:build"}', 'objective: {call: "mine:loss"}')
    assert checked.problems == []
    assert any("whether mine:build returns logits" in note for note in checked.unchecked)


@pytest.mark.parametrize(
    "prompts", [str(["Once"] * 9), f"[{'x' * 1001}]", "[Once]\n  sample_tokens: 257"]
)
def test_their_cost_is_bounded(tmp_path: Path, prompts: str) -> None:
    with pytest.raises(SpecError, match=r"run\.yaml:[78]:"):
        found(tmp_path, GPT2, prompts=prompts)
