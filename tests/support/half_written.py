"""A writer that is interrupted in the middle of a large file."""

from __future__ import annotations

import pytest

from headway.state.store import Store


def write_half(store: Store, name: str, content: bytes) -> None:
    with pytest.raises(KeyboardInterrupt):
        _interrupted(store, name, content)


def _interrupted(store: Store, name: str, content: bytes) -> None:
    before = store.read(name) if store.size(name) is not None else None
    with store.writing(name) as file:
        file.write(content)
        file.flush()
        now = store.read(name) if store.size(name) is not None else None
        assert now == before, "nobody sees half of it"
        raise KeyboardInterrupt
