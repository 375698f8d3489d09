"""The size of a model and its cost per token, from its type and config alone.

`plan` has to answer within a second and without torch, so parameters are counted from the shapes
instead of building the model. The counts are not estimates: the tests build every preset and a set
of odd shapes with transformers on the meta device and compare the numbers exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headway.errors import BadInput

VOCABULARY_MULTIPLE = 64
"""A vocabulary that is not given is rounded up to this: matrix products like round sizes."""


class BadShape(BadInput):
    """A config that no model can be built from; `field` is the one to change."""

    def __init__(self, field: str, problem: str, hint: str | None = None) -> None:
        super().__init__(f"model.config.{field} {problem}", hint)
        self.field = field


@dataclass(frozen=True)
class ModelSize:
    """Counts for one model. Tied weights are counted once."""

    parameters: int
    """Number of parameters that the optimizer updates."""
    matmul_parameters: int
    """Number of weights that every token is multiplied with: the matrices of the blocks and the
    output head, counted once whether tied or not. Excludes biases and norms."""
    embedding_parameters: int
    """Number of weights that are only looked up: positions and token types, and the token table
    unless it is also the output head."""
    num_layers: int
    hidden: int
    attention_width: int
    """Heads x head size: the width of the queries and of the attention output. Equal to `hidden` in
    most models, twice as much in qwen3-0.6b."""


# Defaults of transformers for keys that a config omits (from the configuration classes of
# transformers 5; the tests compare these tables with the classes themselves). None means that the
# class derives the value from the others.
GPT2_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,  # 4 x n_embd
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
LLAMA_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,  # num_attention_heads
    "head_dim": None,  # hidden_size / num_attention_heads
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}
BERT_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
QWEN3_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "attention_bias": False,
    "tie_word_embeddings": False,
}

# GPT-2's config class also accepts the names that all other models use.
GPT2_ALIASES: Mapping[str, str] = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


class _Shape:
    """A config completed with its class's defaults, with type-checked access."""

    def __init__(self, config: Mapping[str, object], defaults: Mapping[str, object]) -> None:
        self._values = {**defaults, **config}

    def number(self, key: str, otherwise: int | None = None) -> int:
        """The positive integer under `key`; `otherwise` if the config says null."""
        value = self._values[key]
        if value is None and otherwise is not None:
            return otherwise
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadShape(key, f"is {value!r}, not a whole number above zero", "give at least 1")
        return value

    def flag(self, key: str) -> bool:
        value = self._values[key]
        if not isinstance(value, bool):
            raise BadShape(key, f"is {value!r}, not true or false")
        return value

    def divided(self, key: str, by: str, otherwise: int | None = None) -> int:
        """`key` / `by`. With a remainder, the model classes cannot be built or run."""
        value, parts = self.number(key), self.number(by, otherwise)
        if value % parts:
            raise BadShape(
                key,
                f"({value}) is not a multiple of {by} ({parts})",
                f"change one of the two so that {by} divides {key}",
            )
        return value // parts


def model_size(type: str, config: Mapping[str, object]) -> ModelSize | None:
    """The size of a model of this type; None if Headway cannot count it.

    gpt2, llama and qwen3 are counted as causal language models, bert as a masked one (without
    pooler and next-sentence head). Raises BadInput for a shape that cannot be built.
    """
    count = COUNTED.get(type)
    return None if count is None else count(config)


def padded_vocabulary(size: int) -> int:
    """The vocabulary of a model whose config leaves it to the tokenizer."""
    return -(-size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


def flops_per_token(size: ModelSize, sequence_length: int) -> int:
    """Floating-point operations of one token's forward and backward pass (PaLM, appendix B).

    Each weight of a matrix takes part in one multiplication and one addition per token: 2
    operations forward. Backward computes two products of the same size, one for the gradient of the
    weights and one for that of the inputs: 4 more. So 6 per weight of a matrix.

    Attention has products that involve no weights. In each layer, a token's query is multiplied
    with L keys (2 x width x L operations) and its L probabilities with L values (2 x width x L): 4
    x width x L forward, and with backward at twice that, 12 x width x L. Queries count, not keys:
    grouped-query attention shares the keys in memory but multiplies them with every query head.

    By the same convention, a causal mask does not halve this, although good kernels skip the masked
    half: figures stay comparable with published ones, and long sequences look slightly too good.
    Norms, activations, softmax, embeddings and the optimizer are left out (about 1 %), and so are
    recomputed activations and a teacher's forward pass: this is the work that the model needs, not
    what the machine happens to do.
    """
    assert sequence_length >= 1
    attention = 12 * size.num_layers * size.attention_width * sequence_length
    return 6 * size.matmul_parameters + attention


def _gpt2(config: Mapping[str, object]) -> ModelSize | None:
    named = {GPT2_ALIASES.get(key, key): value for key, value in config.items()}
    shape = _Shape(named, GPT2_DEFAULTS)
    if shape.flag("add_cross_attention"):
        return None
    shape.divided("n_embd", by="n_head")
    hidden, layers = shape.number("n_embd"), shape.number("n_layer")
    inner = shape.number("n_inner", otherwise=4 * hidden)
    table = shape.number("vocab_size") * hidden
    positions = shape.number("n_positions") * hidden
    tied = shape.flag("tie_word_embeddings")

    # Queries, keys and values, attention output; then up and down. The head has no bias.
    block_matrices = 4 * hidden * hidden + 2 * hidden * inner
    block_biases = 4 * hidden + inner + hidden
    block_norms = 2 * 2 * hidden
    matmul = layers * block_matrices + table
    lookup = positions + (0 if tied else table)
    other = layers * (block_biases + block_norms) + 2 * hidden
    return ModelSize(matmul + lookup + other, matmul, lookup, layers, hidden, hidden)


def _llama(config: Mapping[str, object]) -> ModelSize | None:
    shape = _Shape(config, LLAMA_DEFAULTS)
    head = shape.number("head_dim", otherwise=shape.divided("hidden_size", "num_attention_heads"))
    return _gated(shape, head, mlp_bias=shape.flag("mlp_bias"), head_norms=0)


def _qwen3(config: Mapping[str, object]) -> ModelSize | None:
    shape = _Shape(config, QWEN3_DEFAULTS)
    head = shape.number("head_dim")
    # Queries and keys are normalised per head, with weights shared by all heads of a layer.
    return _gated(shape, head, mlp_bias=False, head_norms=2 * head)


def _gated(shape: _Shape, head: int, *, mlp_bias: bool, head_norms: int) -> ModelSize:
    """The common shape of llama and qwen3: grouped queries, gated MLP, RMS norms, rotary positions
    (which have no weights)."""
    hidden, inner = shape.number("hidden_size"), shape.number("intermediate_size")
    layers, heads = shape.number("num_hidden_layers"), shape.number("num_attention_heads")
    shape.divided("num_attention_heads", by="num_key_value_heads", otherwise=heads)
    width = heads * head
    key_width = shape.number("num_key_value_heads", otherwise=heads) * head
    table = shape.number("vocab_size") * hidden

    # Queries and attention output; keys and values; gate, up and down.
    block_matrices = 2 * hidden * width + 2 * hidden * key_width + 3 * hidden * inner
    attention_biases = width + 2 * key_width + hidden if shape.flag("attention_bias") else 0
    mlp_biases = 2 * inner + hidden if mlp_bias else 0
    block_norms = 2 * hidden + head_norms
    matmul = layers * block_matrices + table
    lookup = 0 if shape.flag("tie_word_embeddings") else table
    other = layers * (attention_biases + mlp_biases + block_norms) + hidden
    return ModelSize(matmul + lookup + other, matmul, lookup, layers, hidden, width)


def _bert(config: Mapping[str, object]) -> ModelSize | None:
    shape = _Shape(config, BERT_DEFAULTS)
    if shape.flag("add_cross_attention"):
        return None
    shape.divided("hidden_size", by="num_attention_heads")
    hidden, inner = shape.number("hidden_size"), shape.number("intermediate_size")
    layers, vocab = shape.number("num_hidden_layers"), shape.number("vocab_size")
    table = vocab * hidden
    places = shape.number("max_position_embeddings") + shape.number("type_vocab_size")
    tied = shape.flag("tie_word_embeddings")

    block_matrices = 4 * hidden * hidden + 2 * hidden * inner
    block_biases = 4 * hidden + inner + hidden
    block_norms = 2 * 2 * hidden
    # The head: a dense layer with bias and norm, then the decoder with a bias over the vocabulary.
    # The class holds that bias twice, tied if the table is tied.
    head_matrices = hidden * hidden + table
    head_other = hidden + 2 * hidden + (vocab if tied else 2 * vocab)
    matmul = layers * block_matrices + head_matrices
    lookup = places * hidden + (0 if tied else table)
    embedding_norm = 2 * hidden
    other = layers * (block_biases + block_norms) + embedding_norm + head_other
    return ModelSize(matmul + lookup + other, matmul, lookup, layers, hidden, hidden)


COUNTED: Mapping[str, Callable[[Mapping[str, object]], ModelSize | None]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "bert": _bert,
    "qwen3": _qwen3,
}
