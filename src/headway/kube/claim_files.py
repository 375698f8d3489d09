"""The files of a claim from outside the cluster, as if it were a bucket: `claim://TARGET/runs/it`.

A short-lived pod has it mounted and serves it; it is asked through the API server, with the user's
own rights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Protocol
from urllib.parse import quote
from uuid import uuid4

import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from headway.clock import Clock, SystemClock
from headway.errors import HeadwayError, NotFound
from headway.state.store import in_parallel

SCHEME = "claim"
PIECE_BYTES = 2**23
"""Of a large file: one call each, so that a lost connection costs little."""
PIECES_AT_ONCE = 4
"""A single connection is slower than the network: each byte passes the API server and a kubelet."""
PAUSE_SECONDS = (0, 2, 10)
"""Pauses before retries of a part."""


class ClaimFileExists(FileExistsError):
    """The file exists already."""


class ClaimConnection(Protocol):
    """The pod that serves a claim."""

    def ask(self, path: str, method: str, content: bytes | None, headers: dict[str, str]) -> bytes:
        """Raises NotFound if there is no such file, ClaimFileExists if it must not exist, and
        OSError if the pod cannot be reached."""
        ...


def register(connect: Callable[[str], ClaimConnection], clock: Clock | None = None) -> None:
    """From now on `claim://TARGET/...` can be opened; `connect` starts the pod of a target."""
    used = clock or SystemClock()

    class Registered(ClaimFileSystem):
        def __init__(self, **options: Any) -> None:
            super().__init__(connect, used, **options)

    fsspec.register_implementation(SCHEME, Registered, clobber=True)


class ClaimFileSystem(AbstractFileSystem):  # type: ignore[misc]
    protocol = SCHEME
    cachable = False

    def __init__(
        self, connect: Callable[[str], ClaimConnection], clock: Clock, **options: Any
    ) -> None:
        super().__init__(**options)
        self._connect = connect
        self.clock = clock
        self._pods: dict[str, ClaimConnection] = {}
        self._connecting = Lock()
        """Files are uploaded from several threads."""

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        root = self._strip_protocol(path)
        depth = root.count("/") + 1
        entries: dict[str, dict[str, Any]] = {}
        for name, entry in self._found(root).items():
            first = "/".join(name.split("/")[: depth + 1])
            is_file = first == name
            entries[first] = entry if is_file else {"name": first, "size": 0, "type": "directory"}
        return list(entries.values()) if detail else list(entries)

    def find(self, path: str, detail: bool = False, **_: Any) -> Any:
        found = self._found(self._strip_protocol(path))
        return found if detail else sorted(found)

    def _found(self, path: str) -> dict[str, dict[str, Any]]:
        target, _, _ = path.partition("/")
        found = json.loads(self.ask("find", path))
        entries = {}
        for name, (size, changed) in found.items():
            full = f"{target}/{name}"
            entries[full] = {"name": full, "size": size, "type": "file", "etag": str(changed)}
        return entries

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        wanted = self._strip_protocol(path)
        found = self._found(wanted)
        return found.get(wanted) or {"name": wanted, "size": 0, "type": "directory"}

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        headers = {}
        if start is not None and end is not None:
            headers["Range"] = f"bytes={start}-{end - 1}"
        return self.ask("files", self._strip_protocol(path), headers=headers)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        options = "?create" if mode == "create" else ""
        self.ask("files", self._strip_protocol(path), "PUT", value, options)

    def put_file(self, lpath: str, rpath: str, callback: Any = None, **_: Any) -> None:
        file = Path(lpath)
        size, upload = file.stat().st_size, ClaimUpload(self, self._strip_protocol(rpath))

        def send(at: int) -> int:
            with file.open("rb") as opened:
                opened.seek(at)
                piece = opened.read(PIECE_BYTES)
            upload.send(at, piece)
            return len(piece)

        try:
            for sent in in_parallel(send, range(0, max(size, 1), PIECE_BYTES), PIECES_AT_ONCE):
                if callback is not None:
                    callback.relative_update(sent)
            upload.finish(size)
        except BaseException:
            upload.drop()
            raise

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        self.ask("files", self._strip_protocol(path), "DELETE")

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **_: Any) -> Any:
        return ClaimFile(self, path, mode, block_size or PIECE_BYTES)

    def ask(
        self,
        kind: str,
        path: str,
        method: str = "GET",
        content: bytes | None = None,
        options: str = "",
        headers: dict[str, str] | None = None,
    ) -> bytes:
        target, _, name = path.partition("/")
        pod = self._pod(target)
        try:
            return pod.ask(f"/{kind}/{quote(name)}{options}", method, content, headers or {})
        except NotFound:
            raise FileNotFoundError(f"{SCHEME}://{path}") from None

    def _pod(self, target: str) -> ClaimConnection:
        with self._connecting:
            if target not in self._pods:
                self._pods[target] = self._connect(target)
            return self._pods[target]


class ClaimUpload:
    """A large file in parts, from any number of threads. A part may be sent twice."""

    def __init__(self, files: ClaimFileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._id = uuid4().hex

    def send(self, at: int, piece: bytes) -> None:
        self._put(piece, f"?at={at}&upload={self._id}")

    def finish(self, size: int) -> None:
        self._put(b"", f"?size={size}&upload={self._id}")

    def drop(self) -> None:
        """Removes what was sent: it would fill the claim."""
        with suppress(OSError, HeadwayError):  # the next upload of the file removes it
            self._files.ask("parts", self._path, "DELETE", options=f"?upload={self._id}")

    def _put(self, content: bytes, options: str) -> None:
        for pause in (*PAUSE_SECONDS, None):
            try:
                self._files.ask("parts", self._path, "PUT", content, options)
                return
            except (FileNotFoundError, PermissionError, FileExistsError):
                raise  # an answer
            except OSError:
                if pause is None:
                    raise
                self._files.clock.sleep(pause)


class ClaimFile(AbstractBufferedFile):  # type: ignore[misc]
    """Read by ranges, written by pieces."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.fs.cat_file(self.path, start=start, end=end))

    _upload: ClaimUpload | None = None

    def _initiate_upload(self) -> None:
        self._at, self._upload = 0, ClaimUpload(self.fs, self.path)

    def _upload_chunk(self, final: bool = False) -> bool:
        assert self._upload is not None
        piece = self.buffer.getvalue()
        self._upload.send(self._at, piece)
        self._at += len(piece)
        if final:
            self._upload.finish(self._at)
        return True

    def discard(self) -> None:
        if self._upload is not None:
            self._upload.drop()
