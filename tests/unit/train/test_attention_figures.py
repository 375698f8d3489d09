"""Attention figures: those of transformers' plain attention, beside the output of the kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from headway.train import attention_figures
from headway.train.attention_figures import watched_attention
from headway.train.models import find_blocks

LENGTH = 24
GPT2 = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 64, "vocab_size": 64}
BERT = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 32,
    "intermediate_size": 64,
    "vocab_size": 64,
}
GROUPED = {**BERT, "num_key_value_heads": 2}
SHAPES = {
    "gpt2": GPT2,
    "bert": BERT,
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": 5},
}


def model_of(kind: str) -> Any:
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **SHAPES[kind])
    auto = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # At its initial size all scores are nearly zero, and any mistake would go unnoticed.
            parameter.mul_(3)
    return model


def tokens(rows: int, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(0, 64, (rows, length), generator=torch.Generator().manual_seed(2))


def watched(model: Any, *args: Any, **settings: Any) -> tuple[Any, list[list[float]]]:
    blocks = find_blocks(model)
    with torch.no_grad(), watched_attention(blocks) as figures:
        output = model(*args, **settings).logits
    return output, [figures[index].tolist() for index in range(len(blocks))]


@contextmanager
def seen_scores(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Tensor]]:
    """What is given to softmax, which is how plain attention ends."""
    seen: list[torch.Tensor] = []
    softmax = torch.nn.functional.softmax

    def noted(scores: torch.Tensor, *args: Any, **settings: Any) -> torch.Tensor:
        seen.append(scores[0].float())
        return softmax(scores, *args, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "softmax", noted)
        yield seen


def plain(model: Any, monkeypatch: pytest.MonkeyPatch, *args: Any, **settings: Any) -> list[Any]:
    """The same figures, of transformers' plain attention."""
    model.set_attn_implementation("eager")
    with torch.no_grad(), seen_scores(monkeypatch) as seen:
        model(*args, **settings)
    model.set_attn_implementation("sdpa")
    found = []
    for scores in seen:
        allowed = scores > torch.finfo(torch.bfloat16).min / 2
        rows = allowed.any(-1)
        entropy = torch.special.entr(scores.softmax(-1)).sum(-1)[rows].mean()
        found.append([float(entropy), float(scores[allowed].min()), float(scores[allowed].max())])
    return found


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", SHAPES)
def test_the_figures_are_those_of_plain_attention(
    kind: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = model_of(kind), tokens(rows)
    _, figures = watched(model, inputs)
    expected = plain(model, monkeypatch, inputs)
    assert len(figures) == len(expected) == 2
    for found, reference in zip(figures, expected, strict=True):
        assert found == pytest.approx(reference, rel=1e-4, abs=1e-5)
        assert found[2] > found[1] + 0.5, "scores that differ"


@pytest.mark.parametrize("kind", SHAPES)
def test_the_output_is_that_of_the_kernel_bit_for_bit(kind: str) -> None:
    model, inputs = model_of(kind), tokens(2)
    output, _ = watched(model, inputs)
    with torch.no_grad():
        assert torch.equal(output, model(inputs).logits)


@pytest.mark.parametrize("kind", SHAPES)
def test_padding_is_left_out(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = model_of(kind), tokens(2)
    mask = torch.ones_like(inputs)
    mask[0, LENGTH - 7 :] = 0
    _, figures = watched(model, inputs, attention_mask=mask)
    expected = plain(model, monkeypatch, inputs, attention_mask=mask)
    for found, reference in zip(figures, expected, strict=True):
        assert found == pytest.approx(reference, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("at_once", [1, 5 * LENGTH, LENGTH**2, 3 * LENGTH**2])
def test_a_part_at_a_time_gives_the_same(
    kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = model_of(kind), tokens(1)
    _, whole = watched(model, inputs)
    monkeypatch.setattr(attention_figures, "SCORES_AT_ONCE", at_once)
    _, in_parts = watched(model, inputs)
    for one, other in zip(whole, in_parts, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def test_in_bf16_scores_are_computed_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = model_of("llama"), tokens(2)
    with torch.autocast("cpu", torch.bfloat16):
        _, figures = watched(model, inputs)
        expected = plain(model, monkeypatch, inputs)
    for found, reference in zip(figures, expected, strict=True):
        assert found == pytest.approx(reference, rel=0.02, abs=0.02)


def test_even_attention() -> None:
    """Weights of zero: every score is zero, and every row spreads over all that it sees."""
    model = model_of("gpt2")
    for parameter in model.parameters():
        parameter.data.zero_()
    _, figures = watched(model, tokens(1))
    even = sum(math.log(row + 1) for row in range(LENGTH)) / LENGTH
    assert figures == [pytest.approx([even, 0, 0], abs=1e-6)] * 2


def test_attention_in_ways_of_its_own_has_no_figures_and_still_runs() -> None:
    """A mask of two dimensions, which the kernel accepts."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    block = torch.nn.Identity()
    query = torch.randn(1, 2, 4, 8)
    mask = torch.ones(4, 4, dtype=torch.bool)
    with watched_attention([block]) as figures:
        output, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](block, query, query, query, mask)
    assert output.shape == (1, 4, 2, 8)
    assert figures == {}


def test_afterwards_nothing_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    model = model_of("gpt2")
    with pytest.raises(ValueError, match="broken"), watched_attention(find_blocks(model)):
        raise ValueError("broken")
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before
