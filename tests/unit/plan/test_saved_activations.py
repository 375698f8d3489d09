"""What autograd keeps: counted from the shape, compared with what transformers' models keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from headway.plan.accelerators import Precision, find_device
from headway.plan.model_size import model_size
from headway.plan.saved_activations import kept_bytes, layer_shape
from headway.plan.workload import CountedModel

ROWS, LENGTH, VOCABULARY = 2, 64, 512
SMALL = 160
"""Bytes a token that are not counted: token ids, rotary angles, sums of norms."""
GATED = {
    "hidden_size": 96,
    "intermediate_size": 320,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": LENGTH,
}
GPT2 = {"n_embd": 128, "n_inner": 320, "n_head": 4, "n_positions": LENGTH, "vocab_size": VOCABULARY}
BERT = {
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": LENGTH,
}


def dropped(type: str, outputs: float, attention: float = 0.0) -> dict[str, Any]:
    if type == "gpt2":
        return GPT2 | {"resid_pdrop": outputs, "embd_pdrop": outputs, "attn_pdrop": attention}
    return BERT | {"hidden_dropout_prob": outputs, "attention_probs_dropout_prob": attention}


CASES = [
    ("gpt2", dropped("gpt2", 0.0)),
    ("gpt2", dropped("gpt2", 0.1)),
    ("gpt2", dropped("gpt2", 0.1, 0.1)),
    ("bert", dropped("bert", 0.0)),
    ("bert", dropped("bert", 0.1, 0.1)),
    ("llama", GATED),
    ("qwen3", GATED),
]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("type", "config"), CASES)
def test_a_layer_keeps_what_its_shape_says_on_cpus(
    type: str, config: dict[str, Any], precision: Precision
) -> None:
    one, two = (seen_bytes(type, config, layers, precision, "cpu") for layers in (1, 2))
    kept = kept_bytes(layer_shape(counted(type, config)), LENGTH, precision, None)
    tokens = ROWS * LENGTH
    assert kept.layer * tokens == pytest.approx(two - one, rel=1e-3)
    ends = 2 * one - two - 4 * VOCABULARY * tokens
    assert kept.ends * tokens == pytest.approx(ends, abs=SMALL * tokens)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("type", "config"), [("gpt2", dropped("gpt2", 0.1)), ("llama", GATED), ("qwen3", GATED)]
)
def test_the_first_layers_keep_their_inputs_alone_if_they_are_recomputed(
    type: str, config: dict[str, Any], precision: Precision
) -> None:
    kept = kept_bytes(layer_shape(counted(type, config)), LENGTH, precision, None)
    none, *some = (seen_bytes(type, config, 3, precision, "cpu", blocks) for blocks in range(4))
    for blocks, seen in enumerate(some, start=1):
        less = kept.of_layers(3, 0) - kept.of_layers(3, blocks)
        # Rotary angles, which layers share, are kept as long as one layer is not recomputed.
        angles = SMALL * ROWS * LENGTH if blocks == 3 else 0
        assert less * ROWS * LENGTH == pytest.approx(none - seen, rel=1e-3, abs=angles)


@pytest.mark.parametrize(
    ("type", "config"),
    [
        *((type, config) for type, config in CASES if type in ("gpt2", "bert")),
        # As many keys as queries: simulated attention shares none.
        ("llama", GATED | {"num_key_value_heads": 4}),
        ("qwen3", GATED | {"num_key_value_heads": 4}),
    ],
)
def test_a_layer_keeps_what_its_shape_says_on_simulated_gpus(
    type: str, config: dict[str, Any]
) -> None:
    one, two = (seen_bytes(type, config, layers, "bf16", "cuda") for layers in (1, 2))
    kept = kept_bytes(layer_shape(counted(type, config)), LENGTH, "bf16", find_device("H100"))
    tokens = ROWS * LENGTH
    assert kept.layer * tokens == pytest.approx(two - one, rel=0.01)
    ends = 2 * one - two - 4 * VOCABULARY * tokens
    assert kept.ends * tokens == pytest.approx(ends, abs=SMALL * tokens)


def test_a_gpu_without_flash_attention_keeps_the_scores_of_shared_keys() -> None:
    shape = layer_shape(counted("llama", GATED))
    with_flash = kept_bytes(shape, LENGTH, "fp16", find_device("A100"))
    without = kept_bytes(shape, LENGTH, "fp16", find_device("V100"))
    assert without.layer == with_flash.layer + 8 * LENGTH * 4


def test_a_gpt2_config_may_use_the_names_of_the_others() -> None:
    named = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 64}
    shape = layer_shape(counted("gpt2", named))
    assert (shape.layers, shape.hidden, shape.inner) == (3, 128, 512)
    assert shape.layer_parameters == 12 * 128**2 + 13 * 128


def counted(type: str, config: dict[str, Any]) -> CountedModel:
    size = model_size(type, config)
    assert size is not None
    return CountedModel(type, config, size)


def seen_bytes(
    type: str,
    config: dict[str, Any],
    layers: int,
    precision: Precision,
    device: str,
    recomputed: int = 0,
) -> int:
    """Bytes that a forward pass of ours leaves for the backward pass, without weights."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from headway.train.models import BuiltModel, find_blocks
    from headway.train.objectives import summed_cross_entropy
    from headway.train.recomputed_blocks import recompute_blocks
    from headway.train.weight_copies import WeightCopies, cast_inputs
    from headway.train.world import RankPlacement

    kept: dict[int, Any] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    mode: Any = FakeTensorMode(allow_non_fake_inputs=True) if device == "cuda" else nullcontext()
    with mode, torch.device(device):
        model = built(type, config, layers)
        cast_inputs(
            BuiltModel(model, find_blocks(model), None, True),
            precision,
            RankPlacement(torch.device(device)),
        )
        recompute_blocks(find_blocks(model)[:recomputed])
        copies = WeightCopies(model, precision, is_sharded=False)
        tokens = torch.zeros((ROWS, LENGTH), dtype=torch.int64)
        with copies.in_use(), computing(precision, device):
            weights = {
                tensor.untyped_storage()._cdata
                for module in model.modules()
                for tensor in (*module._parameters.values(), *module._buffers.values())
                if tensor is not None
            }
            with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
                summed_cross_entropy(model(tokens).logits, tokens)
        return sum(s.nbytes() for number, s in kept.items() if number not in weights)


def built(type: str, config: dict[str, Any], layers: int) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    key = "n_layer" if type == "gpt2" else "num_hidden_layers"
    made = AutoConfig.for_model(
        type, **config, **{key: layers}, bos_token_id=0, eos_token_id=0, pad_token_id=0
    )
    kind: Any = AutoModelForMaskedLM if type == "bert" else AutoModelForCausalLM
    model = kind.from_config(made, attn_implementation="sdpa", dtype=torch.float32)
    model.config.use_cache = False
    return model.train()


@contextmanager
def computing(precision: Precision, device: str) -> Iterator[None]:
    """Autocast of that device, whether there is one or not; and attention of a GPU, whose kernels
    torch cannot choose without one: they keep queries, keys, values, the output and its sums."""
    import torch
    from torch.nn import functional

    from headway.train.precision import COMPUTE_DTYPE

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
            output, sums = torch.empty_like(query), torch.empty(query.shape[:3])
            ctx.save_for_backward(query, key, value, output, sums)
            return output

    def attention(query: Any, key: Any, value: Any, **_: Any) -> Any:
        return Attention.apply(*(t.to(COMPUTE_DTYPE[precision]) for t in (query, key, value)))

    real = functional.scaled_dot_product_attention
    with pytest.MonkeyPatch.context() as patch:
        if device == "cuda":
            patch.setattr(functional, "scaled_dot_product_attention", attention)
        torch.set_autocast_enabled(device, precision != "fp32")
        torch.set_autocast_dtype(device, COMPUTE_DTYPE[precision])
        try:
            yield
        finally:
            torch.set_autocast_enabled(device, False)
    assert functional.scaled_dot_product_attention is real
