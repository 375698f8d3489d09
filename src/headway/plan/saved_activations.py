"""Bytes that autograd keeps for the backward pass, from a model's shape alone.

Every figure is a count of the tensors that the model's operators save, by their sizes; none is
fitted. On CPUs they were compared with torch's own counts, to the byte. On GPUs autocast computes
norms and powers in fp32, which keeps more, and dropout keeps bytes; that was counted on simulated
tensors and has not been seen on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.plan.accelerators import Device, Precision
from headway.plan.model_size import (
    BERT_DEFAULTS,
    GPT2_ALIASES,
    GPT2_DEFAULTS,
    LLAMA_DEFAULTS,
    QWEN3_DEFAULTS,
    model_size,
)
from headway.plan.workload import CountedModel

NUMBER_BYTES: Mapping[Precision, int] = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Of activations, and of the weights that are computed with."""

DROPOUT_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "gpt2": {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
    "bert": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "llama": {"attention_dropout": 0.0},
    "qwen3": {"attention_dropout": 0.0},
}
"""Of transformers, for keys that a config omits."""
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "gpt2": GPT2_DEFAULTS,
    "bert": BERT_DEFAULTS,
    "llama": LLAMA_DEFAULTS,
    "qwen3": QWEN3_DEFAULTS,
}


@dataclass(frozen=True)
class Dropout:
    outputs: bool
    """Of a layer's two outputs."""
    embeddings: bool
    attention: bool


@dataclass(frozen=True)
class LayerShape:
    """Numbers of a model that its activations depend on."""

    type: str
    hidden: int
    width: int
    """Of the queries: heads x head size."""
    key_width: int
    inner: int
    heads: int
    key_heads: int
    vocabulary: int
    layers: int
    layer_parameters: int
    is_tied: bool
    dropout: Dropout

    @property
    def table_parameters(self) -> int:
        """Of the token table, and of the output head."""
        return self.vocabulary * self.hidden


@dataclass(frozen=True)
class KeptBytes:
    """Bytes a token that autograd keeps."""

    layer: int
    """Of each layer."""
    ends: int
    """Of what comes before and after the layers, without logits."""
    block_input: int
    """Bytes that each recomputed layer keeps."""

    def of_layers(self, layers: int, recomputed: int) -> int:
        """Return the bytes that the first `layers` keep, if the model's first `recomputed` are
        recomputed."""
        again = min(layers, recomputed)
        return again * self.block_input + (layers - again) * self.layer


def layer_shape(model: CountedModel) -> LayerShape:
    given = dict(model.config)
    if model.type == "gpt2":
        given = {GPT2_ALIASES.get(key, key): value for key, value in given.items()}
    values = {**_DEFAULTS[model.type], **DROPOUT_DEFAULTS[model.type], **given}

    def number(key: str, otherwise: int | None = None) -> int:
        value = values[key]
        if value is None:
            assert otherwise is not None, key
            return otherwise
        return int(value)

    if model.type == "gpt2":
        hidden, heads, layers = number("n_embd"), number("n_head"), number("n_layer")
        width = key_width = hidden
        key_heads, inner = heads, number("n_inner", 4 * hidden)
        drops = (values["resid_pdrop"], values["embd_pdrop"], values["attn_pdrop"])
    else:
        hidden, inner = number("hidden_size"), number("intermediate_size")
        heads, layers = number("num_attention_heads"), number("num_hidden_layers")
        if model.type == "bert":
            width = key_width = hidden
            key_heads, output = heads, values["hidden_dropout_prob"]
            drops = (output, output, values["attention_probs_dropout_prob"])
        else:
            key_heads = number("num_key_value_heads", heads)
            head = number("head_dim", hidden // heads)
            width, key_width = heads * head, key_heads * head
            drops = (0.0, 0.0, values["attention_dropout"])
    return LayerShape(
        type=model.type,
        hidden=hidden,
        width=width,
        key_width=key_width,
        inner=inner,
        heads=heads,
        key_heads=key_heads,
        vocabulary=number("vocab_size"),
        layers=layers,
        layer_parameters=_layer_parameters(model, layers),
        is_tied=bool(values["tie_word_embeddings"]),
        dropout=Dropout(*(bool(drop) for drop in drops)),
    )


def _layer_parameters(model: CountedModel, layers: int) -> int:
    """One layer more has as many parameters more."""
    key = "n_layer" if model.type == "gpt2" else "num_hidden_layers"
    names = {key, "num_hidden_layers"} if model.type == "gpt2" else {key}
    others = {name: value for name, value in model.config.items() if name not in names}
    more = model_size(model.type, {**others, key: layers + 1})
    assert more is not None
    return more.parameters - model.size.parameters


def kept_bytes(
    shape: LayerShape, length: int, precision: Precision, device: Device | None
) -> KeptBytes:
    """For sequences of this length. Without a device, on the CPU."""
    c, hidden, on_gpu = NUMBER_BYTES[precision], shape.hidden, device is not None
    layer, ends = _plain(shape, c)
    if on_gpu and precision != "fp32":
        layer_more, ends_more = _of_fp32_operators(shape)
        layer, ends = layer + layer_more, ends + ends_more
    mask = 1 if on_gpu else c
    if shape.dropout.outputs:
        layer += 2 * mask * hidden
    if shape.dropout.embeddings:
        ends += mask * hidden
    if shape.dropout.attention and not on_gpu:
        # torch has no fused attention with dropout for CPUs: it keeps three matrices of all pairs
        # of tokens, in fp32.
        layer += (12 * length - 4) * shape.heads
        layer += 6 * hidden if c == 2 else 0
    if device is not None and shape.key_heads < shape.heads and not _has_flash(device, precision):
        # Only FlashAttention shares keys between heads; otherwise scores and probabilities are
        # written out.
        layer += 8 * length * shape.heads
    return KeptBytes(layer, ends, block_input=c * hidden)


def _has_flash(device: Device, precision: Precision) -> bool:
    """FlashAttention computes in bf16 or fp16, on devices that have both."""
    return device.bf16_flops is not None and precision != "fp32"


def _plain(shape: LayerShape, c: int) -> tuple[int, int]:
    """Of a layer and of the ends, without dropout, where every operator keeps the precision."""
    hidden, inner, heads = shape.hidden, shape.inner, shape.heads
    widths = shape.width + shape.key_width
    match shape.type:
        case "gpt2":
            return c * (8 * hidden + 5 * inner) + 4 * heads + 4 * c, 2 * c * hidden
        case "bert":
            return c * (8 * hidden + 2 * inner) + 4 * heads + 4 * c, 5 * c * hidden
        case "llama":
            layer = (4 * c + 8) * hidden + 2 * c * widths + 4 * c * inner + 4 * heads + 8
        case "qwen3":
            layer = (4 * c + 8) * hidden + (3 * c + 4) * widths + 4 * c * inner
            layer += 8 * heads + 4 * shape.key_heads + 8
        case other:
            raise AssertionError(f"activations of {other} are not counted")
    return layer, (2 * c + 4) * hidden


def _of_fp32_operators(shape: LayerShape) -> tuple[int, int]:
    """What a layer and the ends keep beyond that under autocast of GPUs, in bf16 or fp16."""
    match shape.type:
        case "gpt2":
            # The inputs of three norms are fp32. Of the activation function, which is written out,
            # so are the power's input, the tanh and the sum around it.
            return 4 * shape.hidden + 6 * shape.inner, 2 * shape.hidden
        case "bert":
            return 4 * shape.hidden, 4 * shape.hidden
        case _:
            return 0, 0  # their norms are written out in fp32 everywhere
