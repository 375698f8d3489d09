"""Provides a set's tokenizer as a folder on this machine, wherever the set is."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import xxhash

from headway.clock import Clock
from headway.data.retry import OPEN_SECONDS, with_retries
from headway.data.set_format import TOKENIZER
from headway.errors import BadInput
from headway.state.store import Store

MAIN_FILE = "tokenizer.json"


def local_tokenizer(store: Store, digest: str, cache: Path, clock: Clock) -> Path:
    """The folder itself, or a copy in `cache` that is made once for each set in a store. Refuses
    another tokenizer than the set's."""
    if store.is_local:
        folder = store.path(TOKENIZER)
        if _digest(folder) != digest:
            raise _not_its_own(store)
        return folder
    where = xxhash.xxh3_64_hexdigest(store.root.encode())
    folder = cache / "tokenizers" / f"{digest}-{where[:12]}"
    if _digest(folder) == digest:
        return folder
    files = with_retries(store, TOKENIZER, lambda: _files(store), clock, OPEN_SECONDS)
    if xxhash.xxh3_128_hexdigest(files.get(MAIN_FILE, b"")) != digest:
        raise _not_its_own(store)
    try:
        return _placed(files, folder, digest)
    except OSError:
        # The cache is not writable: use a folder for this process only.
        return _written(files, Path(tempfile.mkdtemp(prefix="headway-tokenizer-")))


def _not_its_own(store: Store) -> BadInput:
    return BadInput(
        f"{store.location(TOKENIZER)}/{MAIN_FILE} is missing or is not the set's own",
        f"fetch an intact copy of the set; what else is damaged: headway data verify {store.root}",
    )


def _files(store: Store) -> dict[str, bytes]:
    # Keep the last component only: a key must not point outside the folder.
    return {Path(name).name: store.read(name) for name in store.names(TOKENIZER)}


def _placed(files: dict[str, bytes], folder: Path, digest: str) -> Path:
    """Writes the folder beside its place and renames it: another process may be doing the same."""
    partial = folder.with_name(f".{folder.name}.{uuid4().hex[:12]}")
    partial.mkdir(parents=True)
    try:
        _written(files, partial)
        if folder.exists() and _digest(folder) != digest:
            shutil.rmtree(folder, ignore_errors=True)  # left incomplete by a power failure
        with suppress(OSError):  # another process was faster
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if _digest(folder) != digest:
        raise OSError(f"{folder} could not be written")
    return folder


def _written(files: dict[str, bytes], folder: Path) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def _digest(folder: Path) -> str | None:
    try:
        return xxhash.xxh3_128_hexdigest((folder / MAIN_FILE).read_bytes())
    except OSError:
        return None
