"""What a run holds in memory in any case, beside what there is."""

from __future__ import annotations

from headway.memory import in_gib
from headway.plan.size import model_size
from headway.spec.resolve import Resolved

STATE_BYTES = 16
"""Of a parameter: itself, its gradient and both averages of the optimizer, in fp32."""
HINT = "a smaller model or batch.micro, fewer --nodes, or a machine with more memory"


def least_bytes(resolved: Resolved) -> int | None:
    """For all workers of the machine that the run is resolved for: each has a copy of the state,
    or each node that shards. Without activations, and without the table of a vocabulary that only
    the data tells. None where the run file does not tell the model's shape."""
    model = resolved.run.model
    size = None
    if model is not None and model.type is not None:
        size = model_size(model.type, {"vocab_size": 1, **model.config})
    copies = resolved.nodes * (1 if resolved.sharded else resolved.ranks_per_node)
    return STATE_BYTES * size.parameters * copies if size is not None else None


def needed_and_present(resolved: Resolved, present_bytes: int) -> str:
    """In words, for a run that has no more memory."""
    needed = least_bytes(resolved)
    there = f"there are {in_gib(present_bytes)}"
    if needed is None:
        return there
    several = f" of all {resolved.num_workers} workers" if resolved.num_workers > 1 else ""
    return f"{there}, and weights, gradients and optimizer{several} take at least {in_gib(needed)}"
