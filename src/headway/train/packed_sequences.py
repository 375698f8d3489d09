"""transformers reads position ids on the device in every forward pass, to find out whether several
sequences are packed into a row: a host sync for every micro-batch. Headway's rows never are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SEARCH = "find_packed_sequence_indices"


@contextmanager
def not_packed() -> Iterator[None]:
    """For forward passes of token ids alone, whose positions count from zero in every row."""
    masks: Any = sys.modules.get("transformers.masking_utils")
    search = getattr(masks, SEARCH, None)
    if search is None:  # a model in the user's own code, or a transformers that does not search
        yield
        return
    setattr(masks, SEARCH, lambda position_ids: None)
    try:
        yield
    finally:
        setattr(masks, SEARCH, search)
