"""Tensor, pipeline, context, sequence and expert parallelism, by the keys people bring for them.

Headway replicates a model and shards it (FSDP2). The others are refused by name: nobody should take
one of their keys for a misspelt one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SHARD = "write shard: node, which splits weights, gradients and optimizer state over a node's GPUs"
_ACTIVATIONS = (
    "write memory.checkpoint_activations: true and batch.micro: 1, or a shorter "
    "data.sequence_length"
)
INSTEAD: Mapping[str, str] = {
    "tensor": _SHARD,
    "pipeline": _SHARD,
    "context": _ACTIVATIONS,
    "sequence": _ACTIVATIONS,
    "expert": "write shard: node, which splits experts over a node's GPUs like all other weights",
}
"""What to write, by kind of parallelism."""

# `tp`, `tp_size` (Accelerate), `tp_plan` (transformers).
_SHORT = re.compile(r"e?(?P<letter>[tpcse])p(_size|_degree|_plan)?")
# `tensor_parallel`, `tensor_parallel_degree` (torchtitan), `tensor_model_parallel_size` (Megatron).
_LONG = re.compile(rf".*?(?P<kind>{'|'.join(INSTEAD)})_.*parallel.*")


def parallelism_of(key: str) -> str | None:
    """The kind of parallelism that a key asks for; None if it asks for none of these."""
    folded = key.lower().replace("-", "_")
    if long := _LONG.fullmatch(folded):
        return long["kind"]
    if short := _SHORT.fullmatch(folded):
        return next(kind for kind in INSTEAD if kind[0] == short["letter"])
    return None


def instead_of(kind: str, value: object) -> str:
    """A hint. A degree of 1 asks for nothing."""
    return "leave it out: 1 means none" if value == 1 else INSTEAD[kind]
