"""What a run holds in memory in any case, beside what there is."""

from __future__ import annotations

from headway.memory import in_gib
from headway.plan.size import model_size
from headway.spec.resolve import Resolved

STATE_BYTES = 16
"""Of a parameter: itself, its gradient and both averages of the optimizer, in fp32."""
HINT = "use a smaller model, a smaller batch.micro, fewer --nodes, or a machine with more memory"


def least_bytes(resolved: Resolved, nodes: int) -> int | None:
    """For all workers of `nodes` nodes, those on one machine: each worker has a copy of the state,
    or each node that shards. Without activations, and without the table of a vocabulary that only
    the data tells. None where the run file does not tell the model's shape."""
    model = resolved.run.model
    size = None
    if model is not None and model.type is not None:
        size = model_size(model.type, {"vocab_size": 1, **model.config})
    copies = nodes * (1 if resolved.sharded else resolved.ranks_per_node)
    return STATE_BYTES * size.parameters * copies if size is not None else None


def needed_and_present(resolved: Resolved, nodes: int, present_bytes: int) -> str:
    """In words, for a machine that has no more memory and runs `nodes` nodes."""
    needed = least_bytes(resolved, nodes)
    present = f"{in_gib(present_bytes)} is available"
    if needed is None:
        return present
    workers = nodes * resolved.ranks_per_node
    several = f" of all {workers} workers" if workers > 1 else ""
    state = f"weights, gradients and optimizer state{several}"
    return f"{state} need at least {in_gib(needed)}; {present}"
