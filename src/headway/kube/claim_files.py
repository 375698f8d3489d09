"""The files of a claim from outside the cluster, as if it were a bucket: `claim://TARGET/runs/it`.

A short-lived pod has it mounted and serves it; it is asked through the API server's proxy, with the
user's own rights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from headway.errors import NotFound

SCHEME = "claim"
PIECE_BYTES = 2**23
"""Of a large file: one call each, so that a lost connection costs little."""


class ClaimFileExists(FileExistsError):
    """The file exists already."""


class ClaimConnection(Protocol):
    """The pod that serves a claim."""

    def ask(self, path: str, method: str, content: bytes | None, headers: dict[str, str]) -> bytes:
        """Raises NotFound if there is no such file, ClaimFileExists if it must not exist, and
        OSError if the pod cannot be reached."""
        ...


def register(connect: Callable[[str], ClaimConnection]) -> None:
    """From now on `claim://TARGET/...` can be opened; `connect` starts the pod of a target."""

    class Registered(ClaimFileSystem):
        def __init__(self, **options: Any) -> None:
            super().__init__(connect, **options)

    fsspec.register_implementation(SCHEME, Registered, clobber=True)


class ClaimFileSystem(AbstractFileSystem):  # type: ignore[misc]
    protocol = SCHEME
    cachable = False

    def __init__(self, connect: Callable[[str], ClaimConnection], **options: Any) -> None:
        super().__init__(**options)
        self._connect = connect
        self._pods: dict[str, ClaimConnection] = {}

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
        sizes = json.loads(self._ask("find", path))
        return {
            f"{target}/{name}": {"name": f"{target}/{name}", "size": size, "type": "file"}
            for name, size in sizes.items()
        }

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
        return self._ask("files", self._strip_protocol(path), headers=headers)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        options = "?create" if mode == "create" else ""
        self._ask("files", self._strip_protocol(path), "PUT", value, options)

    def put_file(self, lpath: str, rpath: str, callback: Any = None, **_: Any) -> None:
        wanted, at = self._strip_protocol(rpath), 0
        with Path(lpath).open("rb") as file:
            while (piece := file.read(PIECE_BYTES)) or not at:
                self._ask("files", wanted, "PUT", piece, f"?at={at}")
                at += len(piece)
                if callback is not None:
                    callback.relative_update(len(piece))
                if len(piece) < PIECE_BYTES:
                    break
        self._ask("files", wanted, "PUT", b"", f"?size={at}")

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        self._ask("files", self._strip_protocol(path), "DELETE")

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **_: Any) -> Any:
        return ClaimFile(self, path, mode, block_size or PIECE_BYTES)

    def _ask(
        self,
        kind: str,
        path: str,
        method: str = "GET",
        content: bytes | None = None,
        options: str = "",
        headers: dict[str, str] | None = None,
    ) -> bytes:
        target, _, name = path.partition("/")
        if target not in self._pods:
            self._pods[target] = self._connect(target)
        try:
            where = f"/{kind}/{quote(name)}{options}"
            return self._pods[target].ask(where, method, content, headers or {})
        except NotFound:
            raise FileNotFoundError(f"{SCHEME}://{path}") from None


class ClaimFile(AbstractBufferedFile):  # type: ignore[misc]
    """Read by ranges, written by pieces."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.fs.cat_file(self.path, start=start, end=end))

    def _initiate_upload(self) -> None:
        self._at = 0

    def _upload_chunk(self, final: bool = False) -> bool:
        piece = self.buffer.getvalue()
        self.fs._ask("files", self.path, "PUT", piece, f"?at={self._at}")
        self._at += len(piece)
        if final:
            self.fs._ask("files", self.path, "PUT", b"", f"?size={self._at}")
        return True
