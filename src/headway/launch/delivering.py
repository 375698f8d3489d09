"""Folders that a run needs, brought to a target's storage by their content, once; and fetched from
a bucket by the pods that need them as folders.

`KIND/DIGEST.whole` is written last: without it, what is in `KIND/DIGEST` is brought there again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from uuid import uuid4

from headway.clock import Clock
from headway.errors import NotFound, RunFailed
from headway.state.store import Store

Files = Mapping[str, Path]
"""By their names in the folder."""
PAUSE_SECONDS = (2, 10, 60)
"""Before a file that could not be written is tried again: an API server is away for less when it is
updated."""


def is_there(storage: Store, name: str) -> bool:
    return storage.size(_whole(name)) is not None


def deliver(
    storage: Store,
    name: str,
    files: Files,
    show: Callable[[int, int], None],
    say: Callable[[str], None],
    clock: Clock,
) -> None:
    """`name` is KIND/DIGEST. `show` gets the bytes that are there and all of them."""
    sizes = {each: path.stat().st_size for each, path in sorted(files.items())}
    total, sent = sum(sizes.values()), 0
    have = {each: facts.size for each, facts in storage.facts(name).items()}

    def put(file: str, work: Callable[[], None]) -> None:
        _patiently(storage.location(file), work, say, clock)

    for each, size in sizes.items():
        file = f"{name}/{each}"
        # A file that was cut off has not its name yet, or another size.
        if have.get(file) != size:
            put(file, partial(storage.send, files[each], file))
        sent += size
        show(sent, total)
    listing = json.dumps(sizes, indent=2).encode() + b"\n"
    put(_whole(name), partial(storage.write, _whole(name), listing))


def fetch(storage: Store, name: str, into: Path) -> None:
    """As a whole: a pod may be killed half-way, and its folder may outlive it."""
    if into.is_dir():
        return
    try:
        sizes = json.loads(storage.read(_whole(name)))
    except FileNotFoundError:
        where = storage.location(name)
        raise NotFound(f"{where} is not there", "headway run --on brings it there again") from None
    half = into.with_name(f".{into.name}-{uuid4().hex[:8]}")
    for each in sizes:
        path = half / each
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(storage.read(f"{name}/{each}"))
    half.mkdir(parents=True, exist_ok=True)
    half.rename(into)


def _patiently(
    where: str, work: Callable[[], None], say: Callable[[str], None], clock: Clock
) -> None:
    """An upload takes minutes or hours, and a connection may be lost in it."""
    for tried in range(len(PAUSE_SECONDS) + 1):
        try:
            work()
            return
        except OSError as error:
            is_final = isinstance(error, (PermissionError, FileNotFoundError))
            if is_final or tried == len(PAUSE_SECONDS):
                times = f", tried {tried + 1} times" if tried else ""
                raise RunFailed(
                    f"{where} cannot be written{times}: {error}",
                    "the same command goes on with what is missing",
                ) from None
            say(f"{where}: {error}; again in {PAUSE_SECONDS[tried]} s")
            clock.sleep(PAUSE_SECONDS[tried])


def _whole(name: str) -> str:
    return f"{name}.whole"
