"""Files under one root: a local folder, or a prefix of an object store.

Runs rely on three guarantees: a file is written completely or not at all, a file can be created
only if it does not exist yet, and a written file is listed at once.
"""

from __future__ import annotations

import io
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from threading import Lock
from typing import IO, Any, BinaryIO, TypeVar, cast
from uuid import uuid4

from headway.errors import BadInput
from headway.state.s3_ranges import RangeReader, fill

# Timeouts are short because callers retry: an unavailable store must not block a thread.
S3_OPTIONS: dict[str, Any] = {
    "use_listings_cache": False,  # another process may have written since
    "config_kwargs": {
        "connect_timeout": 5,
        "read_timeout": 30,
        "retries": {"max_attempts": 2, "mode": "standard"},
    },
}
REMOTE_LIBRARIES = ("botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "requests")
EXTRAS = {"s3": "s3", "gs": "gcs", "claim": "base"}
"""Extras to install per scheme. `claim` is registered by the kube package."""
PARTIAL = ".partial-"
READ_AHEAD_BYTES = 2**23
"""Bytes per request of a sequential read: enough that the latency does not matter."""
BUFFER_BYTES = 2**20
NUM_REQUESTS = 8
"""Requests at the same time for one large read."""
NUM_LOCAL_READERS = 4
PASSING_REFUSALS = ("RequestTimeTooSkewed", "ExpiredToken", "TokenRefreshRequired")
"""Codes of S3."""
CONFLICT, CONFLICTS = "ConditionalRequestConflict", 3
"""Code of S3 for a conditional write beside a deletion, to be sent again; how often."""
LARGE_BYTES = 2**20
"""From which on a read is limited by more than its latency."""

Piece = TypeVar("Piece")
Result = TypeVar("Result")


class Store:
    """`Store("runs/it")` or `Store("s3://bucket/runs/it")`. Names are relative, with slashes."""

    def __init__(self, root: str | Path, *, anonymous: bool = False) -> None:
        """`anonymous`: a public bucket, read without credentials."""
        self.root = str(root).rstrip("/")
        self.is_local = "://" not in self.root
        self.is_served = self.root.startswith("claim://")
        """Whether it is a folder on another machine, with the files of a local one."""
        if not self.is_local:
            self._remote, self._prefix = _open_remote(self.root, anonymous)

    @cached_property
    def _ranges(self) -> RangeReader | None:
        if type(self._remote).__module__.split(".")[0] != "s3fs":
            return None
        with _ONE_BY_ONE:
            return _range_reader(self._remote)

    def location(self, name: str = "") -> str:
        """Location of a file, for messages and for opening it elsewhere."""
        return f"{self.root}/{name}" if name else self.root

    def path(self, name: str = "") -> Path:
        """Path of a local store's file."""
        assert self.is_local, f"{self.root} is not a local folder"
        return Path(self.root, name)

    def read(self, name: str) -> bytes:
        if self.is_local:
            return self.path(name).read_bytes()
        with _as_os_errors():
            return bytes(self._remote.cat_file(self._key(name)))

    def read_range(self, name: str, start: int, length: int, *, often: bool = False) -> bytes:
        """`often`: one of many ranges. A small one takes 4 ms of processor time with the library,
        and 0.6 ms without, once a client for that has been made."""
        if self.is_local:
            with self.path(name).open("rb") as file:
                file.seek(start)
                return file.read(length)
        if (often or length >= LARGE_BYTES) and self._ranges is not None:
            content = memoryview(bytearray(length))
            count = self._ranges.read_into(self._key(name), start, [content])
            if count is not None:
                return bytes(content[:count])
        return self._read_with_library(name, start, length)

    def read_into(self, name: str, start: int, places: list[memoryview]) -> int:
        """Fills the places, one after the other, with what the file has from `start` on. Returns
        the number of bytes, fewer if the file ends before."""
        if self.is_local:
            with self.path(name).open("rb", buffering=0) as file:
                file.seek(start)
                return fill(file.readinto, places)
        length, count = sum(map(len, places)), None
        if length >= LARGE_BYTES and self._ranges is not None:
            count = self._ranges.read_into(self._key(name), start, places)
        if count is None:
            content = io.BytesIO(self._read_with_library(name, start, length))
            count = fill(content.readinto, places)
        return count

    def _read_with_library(self, name: str, start: int, length: int) -> bytes:
        with _as_os_errors():
            return bytes(self._remote.cat_file(self._key(name), start=start, end=start + length))

    def read_ranges(self, name: str, start: int, length: int, each: int) -> Iterator[bytes]:
        """A range in pieces of `each` bytes, in order. From an object store several are read ahead
        at the same time: one request alone is far slower than the network."""
        pieces = [(at, min(each, start + length - at)) for at in range(start, start + length, each)]
        if self.is_local or len(pieces) < 2:
            for at, size in pieces:
                yield self.read_range(name, at, size)
            return
        yield from in_parallel(lambda piece: self.read_range(name, *piece), pieces, NUM_REQUESTS)

    def write(self, name: str, content: bytes) -> None:
        """Writes the whole file; if this fails, the previous content stays."""
        if not self.is_local:
            with _as_os_errors():
                self._remote.pipe_file(self._key(name), content)
            return
        with self.writing(name) as file:
            file.write(content)

    def create(self, name: str, content: bytes) -> bool:
        """Writes a file that does not exist yet; else returns False and changes nothing."""
        if not self.is_local:
            try:
                self._create_there(name, content)
            except OSError as error:
                if not _is_taken(error):
                    raise
                # The answer to a request can be lost, and the request retried: then the file that
                # exists is our own.
                try:
                    return self.read(name) == content
                except FileNotFoundError:  # deleted meanwhile
                    return False
            return True
        with self._partial(name) as partial:
            with partial.open("wb") as file:
                file.write(content)
                _to_disk(file)
            try:
                os.link(partial, self.path(name))  # unlike rename, fails when the name is taken
            except FileExistsError:
                return False
        _folder_to_disk(self.path(name).parent)
        return True

    def _create_there(self, name: str, content: bytes) -> None:
        for attempt in range(CONFLICTS + 1):
            try:
                with _as_os_errors():
                    self._remote.pipe_file(self._key(name), content, mode="create")
                return
            except OSError as error:
                if _code(error) != CONFLICT or attempt == CONFLICTS:
                    raise

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """A file written in pieces, which is there when all of it is. If writing fails, the
        previous content stays: it may be what another process has written."""
        if not self.is_local:
            with _as_os_errors():
                file = self._remote.open(self._key(name), "wb")
                try:
                    yield file
                    file.close()
                except BaseException:
                    _discard(file)
                    raise
            return
        with self._partial(name) as partial:
            with partial.open("wb") as file:
                yield file
                _to_disk(file)
            partial.replace(self.path(name))
        _folder_to_disk(self.path(name).parent)

    def adopt(self, path: Path, name: str) -> None:
        """Moves a finished local file into the store, completely or not at all. Local readers that
        have the previous file open keep it."""
        if not self.is_local:
            with _as_os_errors():
                self._remote.put_file(str(path), self._key(name))
            return
        with path.open("rb") as file:
            os.fsync(file.fileno())  # else a power cut could leave the name without the content
        path.replace(self.path(name))
        _folder_to_disk(self.path(name).parent)

    def send(self, path: Path, name: str) -> None:
        """Copies a local file into the store, completely or not at all."""
        if not self.is_local:
            self.adopt(path, name)
            return
        with self._partial(name) as partial:
            shutil.copyfile(path, partial)
            self.adopt(partial, name)

    def reading(self, name: str = "") -> BinaryIO:
        """A file of any size, open for reading and seeking; without a name, the root itself."""
        if self.is_local:
            return self.path(name).open("rb")
        with _as_os_errors():
            file = self._remote.open(self._key(name), "rb", block_size=READ_AHEAD_BYTES)
        return cast(BinaryIO, io.BufferedReader(_RemoteFile(file), BUFFER_BYTES))

    def facts(self, prefix: str = "") -> dict[str, FileFacts]:
        """Size and tag of every file below `prefix` (or of the file itself), from one listing."""
        if self.is_local:
            names = self.names(prefix)
            return {name: FileFacts(self.path(name).stat().st_size, "") for name in names}
        try:
            with _as_os_errors():
                found = self._remote.find(self._key(prefix), detail=True)
        except FileNotFoundError:
            return {}
        return {
            key.removeprefix(self._prefix).lstrip("/"): FileFacts(
                int(entry["size"]), str(entry.get("ETag") or entry.get("etag") or "").strip('"')
            )
            for key, entry in sorted(found.items())
            if entry.get("type") == "file"
        }

    def size(self, name: str) -> int | None:
        """Size of the file in bytes, or None if it does not exist."""
        try:
            if self.is_local:
                return self.path(name).stat().st_size
            with _as_os_errors():
                return int(self._remote.info(self._key(name))["size"])
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, prefix: str, *, partial: bool = False) -> list[str]:
        """Names of all files below the folder `prefix`, sorted. `partial`: also temporary files."""
        if self.is_local:
            found = [path for path in self.path(prefix).rglob("*") if path.is_file()]
            return sorted(
                str(path.relative_to(self.root))
                for path in found
                if partial or PARTIAL not in path.name
            )
        try:
            with _as_os_errors():
                keys = self._remote.find(self._key(prefix))
        except FileNotFoundError:
            return []
        return sorted(key.removeprefix(self._prefix).lstrip("/") for key in keys)

    def children(self, folder: str) -> list[str]:
        """Names of the files and folders directly below a folder, sorted; "" is the root."""
        if self.is_local:
            try:
                names = os.listdir(self.path(folder))
            except (FileNotFoundError, NotADirectoryError):
                return []
            inside = f"{folder}/" if folder else ""
            return sorted(f"{inside}{name}" for name in names if PARTIAL not in name)
        try:
            with _as_os_errors():
                keys = self._remote.ls(self._key(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(key.removeprefix(self._prefix).strip("/") for key in keys)

    def names_one_below(self, file: str) -> list[str]:
        """`a/FILE`, `b/FILE`, ...: without walking through everything below a and b."""
        if self.is_local:
            return sorted(str(p.relative_to(self.root)) for p in self.path().glob(f"*/{file}"))
        with _as_os_errors():
            keys = self._remote.glob(f"{self._prefix}/*/{file}")
        return sorted(key.removeprefix(self._prefix).lstrip("/") for key in keys)

    def remove(self, prefix: str) -> None:
        """Removes the file, or everything below the folder; it need not exist."""
        if self.is_local:
            path = self.path(prefix)
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            return
        try:
            with _as_os_errors():
                self._remote.rm(self._key(prefix), recursive=True)
        except FileNotFoundError:
            pass

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if name else self._prefix

    def remove_partial(self, prefix: str) -> None:
        """Removes temporary files of killed writers from a folder that has no writer any more."""
        if self.is_local:
            for path in self.path(prefix).glob(f".*{PARTIAL}*"):
                path.unlink(missing_ok=True)

    @contextmanager
    def _partial(self, name: str) -> Iterator[Path]:
        """Path of a temporary file beside `name`, removed if it is still there afterwards. Its name
        is random: on a shared file system process ids repeat."""
        path = self.path(name)
        _make_folder(path.parent)
        partial = path.with_name(f".{path.name}{PARTIAL}{uuid4().hex[:12]}")
        try:
            yield partial
        finally:
            partial.unlink(missing_ok=True)


def in_parallel(
    read: Callable[[Piece], Result], pieces: Iterable[Piece], num_readers: int
) -> Iterator[Result]:
    """Results in the order of the pieces, which are taken one by one; a few are read ahead at the
    same time."""
    with ThreadPoolExecutor(num_readers, thread_name_prefix="reader") as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for piece in pieces:
                waiting.append(pool.submit(read, piece))
                if len(waiting) > num_readers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


@dataclass(frozen=True)
class FileFacts:
    size: int
    tag: str
    """ETag of the content; empty on a file system."""


class _RemoteFile(io.RawIOBase):
    """An object, with errors of the store as OSError."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _as_os_errors():
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _open_remote(root: str, anonymous: bool) -> tuple[Any, str]:
    import fsspec

    scheme = root.partition("://")[0]
    extra = EXTRAS.get(scheme)
    if extra is None:
        raise BadInput(f"{root}: {scheme}:// is not supported", "use s3:// or gs://")
    try:
        remote, prefix = fsspec.core.url_to_fs(root, **_options(scheme, anonymous))
    except ImportError:
        raise BadInput(
            f"{root} needs the {extra} extra", f"pip install 'headway[{extra}]'"
        ) from None
    return remote, str(prefix).rstrip("/")


_ONE_BY_ONE = Lock()


@cache
def _range_reader(remote: Any) -> RangeReader:
    """One for all stores with these settings: making its client takes 0.2 s of processor time."""
    return RangeReader(remote)


def _options(scheme: str, anonymous: bool) -> dict[str, Any]:
    if scheme != "s3":
        return {"token": "anon"} if anonymous else {}
    # Passed although botocore reads it too: fsspec reuses a connection with equal options, and
    # another endpoint is another store.
    return {**S3_OPTIONS, "endpoint_url": os.environ.get("AWS_ENDPOINT_URL"), "anon": anonymous}


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Turns the errors of object store libraries into OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if type(error).__module__.split(".")[0] in REMOTE_LIBRARIES:
            raise OSError(f"{type(error).__name__}: {error}") from error
        raise


def is_refusal(error: OSError) -> bool:
    """Whether the store has answered that there is no such file or bucket, or that we have no
    rights: it would answer the same again. Anything else may pass, also a token that has expired
    or a clock that is not set yet."""
    return (
        isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError)
        and _code(error) not in PASSING_REFUSALS
    )


def _code(error: OSError) -> str:
    """The store's own, empty if there is none."""
    answer = getattr(error.__cause__, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))


def _is_taken(error: OSError) -> bool:
    """Whether a conditional write failed because the file exists. s3fs raises FileExistsError only
    for stores that name the condition in their answer."""
    return _code(error) == "PreconditionFailed" or isinstance(error, FileExistsError)


def _discard(file: Any) -> None:
    """Ends an upload without its object. Closing it, which fsspec does by itself at the end of a
    `with`, would make one of what was written so far."""
    with suppress(OSError), _as_os_errors():  # parts that stay are no object
        file.discard()
    file.closed = True


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _make_folder(folder: Path) -> None:
    """Creates a folder and its parents so that their names survive a power cut."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _folder_to_disk(folder.parent)


def _folder_to_disk(folder: Path) -> None:
    """Flushes a folder: only then do the names in it survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
