"""The size of a gradient."""

from __future__ import annotations

import torch

from headway.train.fsdp import local_part


def squared_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Squared norm of the gradients that this rank holds, in fp64.

    The same, to ten digits, however the rows are dealt out: each row is added up for itself, in
    fp32, and rows are added up in fp64. A sum in fp32 over all is wrong in its sixth digit and
    another one for each sharding; clipping would carry that into every weight. fp64 throughout
    takes four times as long on a CPU.
    """
    parts = [local_part(gradient) for gradient in gradients]
    vectors = [part.reshape(-1) for part in parts if part.ndim < 2]
    rows = [torch.linalg.vector_norm(part.flatten(1), dim=1) for part in parts if part.ndim >= 2]
    return torch.cat([*vectors, *rows]).double().square().sum()
