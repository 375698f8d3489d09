"""Folders that a run needs: uploaded once to a target's storage, by the digest of their content,
and fetched from a bucket by the pods that need them as folders.

`KIND/DIGEST.whole` is written last: without it, `KIND/DIGEST` is uploaded again. For code and
models it is the listing that has this digest. Others may be able to write to the storage, so a pod
checks the listing before it fetches, and each file before it is used.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from uuid import uuid4

from headway.clock import Clock
from headway.errors import BadInput, NotFound, RunFailed
from headway.state.file_listing import VERSION_2, Listing, read_listing
from headway.state.store import Store, in_parallel

Files = Mapping[str, Path]
"""By their names in the folder."""
PIECE_BYTES = 2**22
FILES_AT_ONCE = 4
LARGE_BYTES = 2**23
"""Files from here on go one after the other: the storage sends several parts of one at a time."""
PAUSE_SECONDS = (2, 10, 60)
"""Pauses before retries of a file: an API server that is upgraded is back sooner."""

RUN_AGAIN = "run the same command again"


def is_uploaded(storage: Store, name: str) -> bool:
    digest = PurePosixPath(name).name
    if not digest.startswith(VERSION_2):
        return storage.size(whole_mark(name)) is not None
    try:
        return read_listing(storage.read(whole_mark(name)), digest) is not None
    except FileNotFoundError:
        return False


def upload(
    storage: Store,
    name: str,
    files: Files,
    listing: bytes,
    show: Callable[[int, int], None],
    say: Callable[[str], None],
    clock: Clock,
) -> None:
    """`name` is KIND/DIGEST, `listing` the content of its `.whole`. `show` gets the bytes uploaded
    and the total."""
    try:
        sizes = {each: path.stat().st_size for each, path in sorted(files.items())}
    except FileNotFoundError as error:
        raise BadInput(f"{error.filename} was deleted meanwhile", RUN_AGAIN) from None
    total, sent = sum(sizes.values()), 0
    kind, digest = PurePosixPath(name).parts
    # Code is edited in place: a file of the same size may be from before an edit.
    there = {} if kind == "code" else storage.facts(name)
    have = {each: facts.size for each, facts in there.items()}

    def put(file: str, work: Callable[[], None]) -> None:
        _retrying(storage.location(file), work, say, clock)

    def send(each: str) -> int:
        file = f"{name}/{each}"
        # A partial upload has another name or another size.
        if have.get(file) != sizes[each]:
            put(file, partial(storage.send, files[each], file))
        return sizes[each]

    small = [each for each, size in sizes.items() if size < LARGE_BYTES]
    large = [each for each, size in sizes.items() if size >= LARGE_BYTES]
    for size in chain(in_parallel(send, small, FILES_AT_ONCE), map(send, large)):
        sent += size
        show(sent, total)
    _require_unchanged(files, read_listing(listing, digest))
    put(whole_mark(name), partial(storage.write, whole_mark(name), listing))


def _require_unchanged(files: Files, listing: Listing | None) -> None:
    """Since they were listed: else the digest would have other content, for every run with it."""
    for listed in listing.files if listing is not None else ():
        path, sha256 = files[listed.name], None
        with suppress(OSError), path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if sha256 != listed.sha256:
            raise BadInput(f"{path} was edited during the upload", RUN_AGAIN)


def fetch(storage: Store, name: str, into: Path) -> None:
    """All or nothing, and exactly the content whose digest `name` ends with: a pod may be killed
    half-way, and its folder may outlive it."""
    if into.is_dir():
        return
    try:
        content = storage.read(whole_mark(name))
    except FileNotFoundError:
        where = storage.location(name)
        raise NotFound(f"{where} does not exist", "headway run --on uploads it again") from None
    listing = read_listing(content, PurePosixPath(name).name)
    if listing is None:
        raise _changed(storage, name, whole_mark(name))
    half = into.with_name(f".{into.name}-{uuid4().hex[:8]}")
    half.mkdir(parents=True)
    try:
        for listed in listing.files:
            path = half / listed.name
            assert path.resolve().is_relative_to(half.resolve()), "checked before it was uploaded"
            path.parent.mkdir(parents=True, exist_ok=True)
            file = f"{name}/{listed.name}"
            try:
                sha256 = _copied(storage, file, path, listed.size)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                # The same for every pod: as an OSError it would have pods replaced forever.
                raise _changed(storage, name, file, "no such file") from None
            if sha256 != listed.sha256:
                raise _changed(storage, name, file)
            if listed.executable:
                path.chmod(path.stat().st_mode | 0o111)
        half.rename(into)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _copied(storage: Store, file: str, path: Path, most: int) -> str:
    """SHA-256 of the copied file; stops after `most` bytes and one more."""
    digest, left = hashlib.sha256(), most + 1
    with storage.reading(file) as source, path.open("wb") as into:
        while left and (piece := source.read(min(left, PIECE_BYTES))):
            digest.update(piece)
            into.write(piece)
            left -= len(piece)
    return digest.hexdigest()


def _changed(
    storage: Store, name: str, file: str, difference: str = "SHA-256 differs"
) -> RunFailed:
    where = storage.location(name)
    return RunFailed(
        f"{storage.location(file)} does not match what was uploaded ({difference}); none of it was "
        "used",
        f"check who can write there, then delete {where} and {where}.whole: headway run --on "
        "uploads them again",
    )


def _retrying(
    where: str, work: Callable[[], None], say: Callable[[str], None], clock: Clock
) -> None:
    """An upload takes minutes or hours, and a connection may be lost meanwhile."""
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
                    "run the same command again to upload the rest",
                ) from None
            say(f"{where}: {error}; retrying in {PAUSE_SECONDS[tried]} s")
            clock.sleep(PAUSE_SECONDS[tried])


def whole_mark(name: str) -> str:
    """The file beside an uploaded folder that says that all of it is there."""
    return f"{name}.whole"
