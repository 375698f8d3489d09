"""The minimum memory that a run needs, compared with what is available."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.memory_limits import byte_size
from headway.plan.model_size import ModelSize, model_size
from headway.spec.resolve import Resolved, recomputed_blocks
from headway.spec.run_file import RunFile

STATE_BYTES = 16
"""Bytes per parameter: the weight, its gradient and both of the optimizer's averages, in fp32."""
COPY_BYTES = 2
"""Bytes per parameter of the bf16 or fp16 copy that a whole model computes with. A sharded one
gathers its blocks one by one."""

CHECKPOINT_BYTES = 12
"""Bytes per parameter of a checkpoint: the weight and both averages."""


def least_size(run: RunFile, saved_config: Mapping[str, Any] | None = None) -> ModelSize | None:
    """Size of the model, from the run file or, with `model.from`, from the saved model's config.
    Excludes the embedding table if only the data determines the vocabulary size. None if they do
    not give the model's shape."""
    if run.model is None:
        return None
    type = run.model.type or (saved_config or {}).get("model_type")
    config = {"vocab_size": 1, **(saved_config or {}), **run.model.config}
    return model_size(type, config) if isinstance(type, str) else None


def least_parameters(run: RunFile) -> int | None:
    """Number of parameters of that model."""
    size = least_size(run)
    return None if size is None else size.parameters


def state_bytes(parameters: int, precision: str, num_shards: int = 1) -> int:
    """Weights, gradients and optimizer state of one of `num_shards` equal shards."""
    is_copied = num_shards == 1 and precision != "fp32"
    return -(-parameters * (STATE_BYTES + COPY_BYTES * is_copied) // num_shards)


def least_bytes_of_worker(resolved: Resolved, parameters: int) -> int:
    """Minimum for one worker, without activations."""
    nodes = resolved.shard.num_nodes or resolved.nodes
    shards = resolved.ranks_per_node * nodes if resolved.sharded else 1
    return state_bytes(parameters, resolved.run.precision, shards)


def least_bytes(resolved: Resolved, nodes: int, parameters: int) -> int:
    """Minimum for all workers of `nodes` nodes on one machine."""
    return least_bytes_of_worker(resolved, parameters) * nodes * resolved.ranks_per_node


def offloaded_bytes(resolved: Resolved, size: ModelSize) -> int:
    """Memory of a node's host for the inputs of the recomputed blocks of one micro-batch, on all
    its devices. It is pinned, and torch rounds each piece of pinned memory up to a power of two."""
    if resolved.run.memory.offload == "none":
        return 0
    numbers = resolved.micro * resolved.run.data.sequence_length * size.hidden
    num_bytes = numbers * (4 if resolved.run.precision == "fp32" else 2)
    blocks = min(recomputed_blocks(resolved.checkpoint_activations), size.num_layers)
    return (1 << (num_bytes - 1).bit_length()) * blocks * resolved.ranks_per_node


def needed_and_present(
    resolved: Resolved, nodes: int, present_bytes: int, parameters: int | None = None
) -> str:
    """A phrase for messages, for a machine with this much memory that runs `nodes` nodes. Without
    `parameters` their number is what the run file gives."""
    parameters = parameters or least_parameters(resolved.run)
    present = f"{byte_size(present_bytes)} is available"
    if parameters is None:
        return present
    workers = nodes * resolved.ranks_per_node
    several = f" of all {workers} workers" if workers > 1 else ""
    needed = byte_size(least_bytes(resolved, nodes, parameters))
    return f"weights, gradients and optimizer state{several} need at least {needed}; {present}"


def less_memory(resolved: Resolved, nodes: int) -> str:
    """A hint for a run on `nodes` nodes of one machine whose state fits into memory, or it would
    have been refused, and whose activations do not."""
    ways = []
    if (
        resolved.checkpoint_activations is not True
        and resolved.run.model
        and resolved.run.model.type
    ):
        ways.append("--set memory.checkpoint_activations=true recomputes activations")
    if nodes > 1:
        ways.append(f"--nodes {nodes // 2} has fewer workers on this machine")
    if resolved.micro > 1:
        half = resolved.micro // 2
        ways.append(f"in a new run, --set batch.micro={half} computes fewer sequences at once")
    if not ways:
        return "use a smaller model, shorter sequences, or a machine with more memory"
    return f"to need less memory: {'; '.join(ways)}"
