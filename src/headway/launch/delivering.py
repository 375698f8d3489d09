"""Folders that a run needs, brought to a target's storage by their content, once; and fetched from
a bucket by the pods that need them as folders.

`KIND/DIGEST.whole` is written last: without it, what is in `KIND/DIGEST` is brought there again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import uuid4

from headway.errors import NotFound
from headway.state.store import Store

Files = Mapping[str, Path]
"""By their names in the folder."""


def is_there(storage: Store, name: str) -> bool:
    return storage.size(_whole(name)) is not None


def deliver(storage: Store, name: str, files: Files, show: Callable[[int, int], None]) -> None:
    """`name` is KIND/DIGEST. `show` gets the bytes that are there and all of them."""
    sizes = {each: path.stat().st_size for each, path in sorted(files.items())}
    total, sent = sum(sizes.values()), 0
    have = {each: facts.size for each, facts in storage.facts(name).items()}
    for each, size in sizes.items():
        # A file that was cut off has not its name yet, or another size.
        if have.get(f"{name}/{each}") != size:
            storage.send(files[each], f"{name}/{each}")
        sent += size
        show(sent, total)
    storage.write(_whole(name), json.dumps(sizes, indent=2).encode() + b"\n")


def fetch(storage: Store, name: str, into: Path) -> None:
    """As a whole: a pod may be killed half-way, and its folder may outlive it."""
    if into.is_dir():
        return
    try:
        sizes = json.loads(storage.read(_whole(name)))
    except FileNotFoundError:
        where = storage.location(name)
        raise NotFound(f"{where} is not there", "headway run --on brings it there again") from None
    partial = into.with_name(f".{into.name}-{uuid4().hex[:8]}")
    for each in sizes:
        path = partial / each
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(storage.read(f"{name}/{each}"))
    partial.mkdir(parents=True, exist_ok=True)
    partial.rename(into)


def _whole(name: str) -> str:
    return f"{name}.whole"
