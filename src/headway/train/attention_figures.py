"""Figures of attention, recomputed from queries and keys.

The kernels that training uses never form the scores that we want to look at. transformers' models
call attention by a name in a table; while it is watched, the function of that name also computes
figures of the first sequence, a part of its scores at a time. What it returns is the kernel's own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

KERNEL = "sdpa"
"""Name of the attention of all models that Headway builds."""
ATTENTION_FIGURES = ("attention_entropy", "attention_smallest", "attention_largest")
SCORES_AT_ONCE = 2**22
"""16 MiB in fp32, and at most six tensors of that size at one moment: 1,024 queries of one head at
4,096 tokens, or all of 64 heads at 256."""

ByBlock = dict[int, torch.Tensor]
"""The figures of each block, still on the device."""


@contextmanager
def watched_attention(blocks: Sequence[nn.Module]) -> Iterator[ByBlock]:
    """Fills in the figures of blocks whose attention is called meanwhile; of several calls in one
    block the first counts. A block that calls it in ways of its own has none."""
    figures: ByBlock = {}
    modeling: Any = sys.modules.get("transformers.modeling_utils")
    table = getattr(modeling, "ALL_ATTENTION_FUNCTIONS", None)
    if table is None or KERNEL not in table:  # a model without transformers
        yield figures
        return
    places = {id(inner): index for index, block in enumerate(blocks) for inner in block.modules()}
    kernel = table[KERNEL]

    def watched(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *more: Any,
        **settings: Any,
    ) -> Any:
        place = places.get(id(module))
        tensors = (query, key, attention_mask, settings.get("position_bias"))
        is_known = not more and all(one is None or one.ndim == 4 for one in tensors)
        if place is not None and place not in figures and is_known:
            figures[place] = attention_figures(module, query, key, attention_mask, **settings)
        return kernel(module, query, key, value, attention_mask, *more, **settings)

    table[KERNEL] = watched
    try:
        yield figures
    finally:
        table[KERNEL] = kernel


def attention_figures(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """Those of the first sequence: mean entropy of the rows of its weights, smallest and largest
    score that a mask lets through. The arguments are those of transformers' `sdpa`, which takes no
    notice of others either."""
    num_heads, num_queries, width = query.shape[1:]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    scale = width**-0.5 if scaling is None else scaling
    entropies, counts, smallest, largest = [], [], [], []
    with torch.autocast(query.device.type, enabled=False):
        for heads, rows in _parts(num_heads, num_queries, key.shape[2]):
            keys = _keys_of(key[0], heads, num_heads).float()
            scores = query[0, heads, rows].float() @ keys.transpose(1, 2) * scale
            if position_bias is not None:
                scores = scores + _part_of(position_bias, heads, rows).float()
            allowed = torch.ones_like(scores, dtype=torch.bool)
            if mask is None and causal and num_queries > 1:
                allowed = allowed.tril(rows.start)
            elif mask is not None and mask.dtype == torch.bool:
                allowed = allowed & _part_of(mask, heads, rows)
            elif mask is not None:
                added = _part_of(mask, heads, rows)
                scores = scores + added.float()
                allowed = allowed & (added > torch.finfo(added.dtype).min / 2)
            smallest.append(scores.masked_fill(~allowed, torch.inf).min())
            scores = scores.masked_fill(~allowed, -torch.inf)
            largest.append(scores.max())
            # A padded query may see nothing at all, and has no weights.
            sees = allowed.any(-1)
            entropy = torch.special.entr(scores.softmax(-1)).sum(-1)
            entropies.append(entropy.masked_fill(~sees, 0).sum())
            counts.append(sees.sum())
    mean = torch.stack(entropies).sum() / torch.stack(counts).sum()
    return torch.stack([mean, torch.stack(smallest).min(), torch.stack(largest).max()])


def _parts(num_heads: int, num_queries: int, num_keys: int) -> Iterator[tuple[slice, slice]]:
    """Heads and queries whose scores are computed at once."""
    queries = min(num_queries, max(1, SCORES_AT_ONCE // num_keys))
    heads = max(1, SCORES_AT_ONCE // (num_keys * queries))
    for head in range(0, num_heads, heads):
        for first in range(0, num_queries, queries):
            yield slice(head, min(num_heads, head + heads)), slice(first, first + queries)


def _keys_of(key: torch.Tensor, heads: slice, num_heads: int) -> torch.Tensor:
    """Keys of these heads, of which several may share one."""
    shared_by = num_heads // key.shape[0]
    own = key[heads.start // shared_by : (heads.stop - 1) // shared_by + 1]
    first = heads.start % shared_by
    return own.repeat_interleave(shared_by, 0)[first : first + heads.stop - heads.start]


def _part_of(tensor: torch.Tensor, heads: slice, rows: slice) -> torch.Tensor:
    """Of the first sequence; a dimension of one counts for all."""
    of_heads = tensor[0, heads] if tensor.shape[1] > 1 else tensor[0]
    return of_heads[:, rows] if of_heads.shape[1] > 1 else of_heads
