"""transformers reads position ids on the device in every forward pass, to find out whether several
sequences are packed into a row: a host sync for every micro-batch. Headway's rows never are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from headway.errors import BadInput
from headway.spec.tested_versions import install_hint

MASKS = "transformers.masking_utils"
SEARCH = "find_packed_sequence_indices"


def require_search() -> None:
    """Raises if this transformers has no such search by that name: by another one it would slow
    down every micro-batch, in silence."""
    import transformers

    try:
        is_there = hasattr(import_module(MASKS), SEARCH)
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise BadInput(
            f"transformers {transformers.__version__} has no {MASKS}.{SEARCH}, which Headway "
            "switches off, since it waits for the device in every micro-batch",
            install_hint("transformers"),
        )


@contextmanager
def not_packed() -> Iterator[None]:
    """For forward passes of token ids alone, whose positions count from zero in every row."""
    masks: Any = sys.modules.get(MASKS)
    search = getattr(masks, SEARCH, None)
    if search is None:  # a model in the user's own code: others were refused
        yield
        return
    setattr(masks, SEARCH, lambda position_ids: None)
    try:
        yield
    finally:
        setattr(masks, SEARCH, search)
