"""Random weights made part by part: all of them, once, and as transformers would."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from headway.train.initial_weights import InitialWeights, NotByParts, materialize
from headway.train.world import RankPlacement

CPU = torch.device("cpu")


def filled(model: Any, seed: int = 3) -> Any:
    """A model on the meta device, with weights."""
    weights = InitialWeights(model, seed)
    materialize(model, CPU)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.fill_(77)  # what memory happens to hold
    weights.fill_buffers(model)
    weights.fill(model, RankPlacement(CPU))
    return model


def gpt2() -> Any:
    config = GPT2Config(n_layer=3, n_head=1, n_embd=64, vocab_size=96, bos_token_id=0)
    config.eos_token_id = 0
    return GPT2LMHeadModel(config)


def bert() -> Any:
    shape = {"hidden_size": 32, "num_attention_heads": 1, "intermediate_size": 64}
    return BertForMaskedLM(BertConfig(num_hidden_layers=2, vocab_size=96, pad_token_id=5, **shape))


class Small(PreTrainedModel):
    """Two layers, and an initialization that a test gives."""

    config_class = GPT2Config

    def __init__(self, initialize: Any) -> None:
        super().__init__(GPT2Config())
        self.initialize = initialize
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        self.initialize(self, module)


def on_meta(make: Any) -> Any:
    with torch.device("meta"):
        return make()


@pytest.mark.parametrize("make", [gpt2, bert])
def test_every_tensor_is_distributed_as_by_transformers(make: Any) -> None:
    torch.manual_seed(0)
    ours, theirs = filled(on_meta(make)), make()
    for name, tensor in theirs.named_parameters():
        found = ours.get_parameter(name)
        assert found.std(correction=0).item() == pytest.approx(
            tensor.std(correction=0).item(), rel=0.3, abs=1e-6
        ), name
        assert found.mean().item() == pytest.approx(tensor.mean().item(), abs=0.02), name
    for name, tensor in theirs.named_buffers():
        assert torch.equal(ours.get_buffer(name), tensor), name


def test_tied_weights_stay_one_parameter() -> None:
    model = filled(on_meta(gpt2))
    assert model.lm_head.weight is model.transformer.wte.weight
    model = filled(on_meta(bert))
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight


def test_the_row_of_the_padding_token_is_zero() -> None:
    rows = filled(on_meta(bert)).bert.embeddings.word_embeddings.weight
    assert rows[5].abs().max() == 0
    assert rows[4].abs().max() > 0


def test_a_part_does_not_depend_on_the_rest_of_the_model() -> None:
    """Its numbers follow from the seed and its name."""

    def deeper() -> Any:
        model = gpt2()
        model.config.n_layer = 4
        return GPT2LMHeadModel(model.config)

    name = "transformer.h.1.attn.c_attn.weight"
    three, four = filled(on_meta(gpt2)), filled(on_meta(deeper))
    assert torch.equal(three.get_parameter(name), four.get_parameter(name))
    assert not torch.equal(three.get_parameter(name), filled(on_meta(gpt2), 4).get_parameter(name))


def test_layers_that_are_set_from_above_are_one_part() -> None:
    def scaled(self: Any, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)
            nn.init.zeros_(module.bias)
        else:
            self.second.weight.copy_(2 * self.first.weight)

    model = filled(on_meta(lambda: Small(scaled)))
    assert torch.equal(model.second.weight, 2 * model.first.weight)


def test_a_tensor_that_only_the_constructor_sets_is_refused_by_name() -> None:
    def forgetful(self: Any, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)
            module.bias[:1].zero_()

    with pytest.raises(NotByParts, match=r"does not initialize first\.bias"):
        InitialWeights(on_meta(lambda: Small(forgetful)), 3)


def test_an_initialization_that_needs_numbers_is_refused() -> None:
    def reading(self: Any, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)
            nn.init.constant_(module.bias, module.weight.mean().item())

    with pytest.raises(NotByParts, match="Linear cannot be initialized on the meta device"):
        InitialWeights(on_meta(lambda: Small(reading)), 3)


def test_a_tensor_beside_parameters_and_buffers_is_refused() -> None:
    def with_scale() -> Any:
        model = gpt2()
        model.transformer.scale = torch.ones(2)
        return model

    with pytest.raises(NotByParts, match=r"transformer\.scale is neither"):
        InitialWeights(on_meta(with_scale), 3)
