"""The files of a claim over HTTP, for whoever comes through the API server. Every request needs the
key.

GET     /files/PATH   a file; a Range gives part of it
GET     /find/PATH    every file below, as {name: [size, time of the last change in nanoseconds]}
PUT     /files/PATH   a file; with `?create` only if there is none (409)
DELETE  /files/PATH   it, or everything below
PUT     /parts/PATH   with `?at=N&upload=ID` a part of a large file, in any order, which appears
                      after `?size=N&upload=ID` without content
DELETE  /parts/PATH   with `?upload=ID`: the parts
"""

from __future__ import annotations

import hmac
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from headway.clock import Clock
from headway.http_server import JSON, TEXT, Answer, HttpError, HttpRequest, Resource
from headway.state.store import PARTIAL, Store

KEY_HEADER = "X-Headway-Key"
"""The API server takes Authorization for itself."""
MAX_PART_BYTES = 2**26
BYTES = "application/octet-stream"
UPLOAD = re.compile(r"[0-9a-f]{8,32}")
ABANDONED_SECONDS = 3600.0
"""After which parts that nobody added to are removed, when the file is uploaded again."""
RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class ServedClaim:
    """`root` is the folder that is served, for those who show the key."""

    def __init__(self, root: Path, key: str, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._store = Store(root)
        self._key = key.encode()

    @property
    def resources(self) -> Mapping[str, Resource]:
        return {"files": self._files, "find": self._find, "parts": self._parts}

    def _files(self, request: HttpRequest) -> Answer:
        name = self._require(request)
        if request.method in ("GET", "HEAD"):
            return BYTES, self._read(name, request.headers.get("Range"))
        if request.method == "PUT":
            self._write(name, request.content(MAX_PART_BYTES), request.query)
        elif request.method == "DELETE":
            self._remove(name)
        else:
            raise HttpError(405, "this answers GET, PUT and DELETE", "GET, HEAD, PUT, DELETE")
        return TEXT, b""

    def _parts(self, request: HttpRequest) -> Answer:
        name, options = self._require(request), request.query
        partial = self._partial(name, options)
        if request.method == "DELETE":
            partial.unlink(missing_ok=True)
        elif request.method != "PUT":
            raise HttpError(405, "this answers PUT and DELETE", "PUT, DELETE")
        elif "at" in options:
            self._write_part(partial, request.content(MAX_PART_BYTES), int(options["at"][0]))
        elif "size" in options:
            self._finish(name, partial, int(options["size"][0]))
        else:
            raise HttpError(400, "a part has a place, the whole has a size")
        return TEXT, b""

    def _find(self, request: HttpRequest) -> Answer:
        name = self._require(request)
        if request.method not in ("GET", "HEAD"):
            raise HttpError(405, "this answers GET and HEAD", "GET, HEAD")
        if (size := self._store.size(name)) is not None and (self._root / name).is_file():
            return JSON, json.dumps({name: self._facts(name, size)}).encode()
        if not (self._root / name).is_dir():
            raise HttpError(404, f"no folder {name}")
        found = {each: self._facts(each, one.size) for each, one in self._store.facts(name).items()}
        return JSON, json.dumps(found).encode()

    def _facts(self, name: str, size: int) -> tuple[int, int]:
        try:
            return size, (self._root / name).stat().st_mtime_ns
        except FileNotFoundError:
            return size, 0  # removed just now

    def _require(self, request: HttpRequest) -> str:
        """The name of a file inside the root, whatever the path is; requires the key."""
        key = request.headers.get(KEY_HEADER)
        if key is None or not hmac.compare_digest(key.encode(), self._key):
            raise HttpError(403, "this needs the key")
        request.trust()
        name = unquote(request.path).strip("/")
        if ".." in PurePosixPath(name).parts or not (self._root / name).resolve().is_relative_to(
            self._root.resolve()
        ):
            raise HttpError(400, f"{name} is not in the claim")
        return name

    def _read(self, name: str, wanted: str | None) -> bytes:
        try:
            if wanted is None:
                return self._store.read(name)
            if (found := RANGE.fullmatch(wanted)) is None:
                raise HttpError(416, "one range, with both ends")
            start, end = int(found[1]), int(found[2]) + 1
            return self._store.read_range(name, start, end - start)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise HttpError(404, f"no file {name}") from None

    def _write(self, name: str, content: bytes, options: Mapping[str, list[str]]) -> None:
        if "create" in options:
            if not self._store.create(name, content):
                raise HttpError(409, f"{name} exists already")
        else:
            self._store.write(name, content)

    def _write_part(self, partial: Path, content: bytes, at: int) -> None:
        """Possibly twice, if the answer was lost."""
        if not partial.exists():
            partial.parent.mkdir(parents=True, exist_ok=True)
            _remove_old(partial, self._clock.now() - ABANDONED_SECONDS)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.seek(at)
            file.write(content)

    def _finish(self, name: str, partial: Path, size: int) -> None:
        if not partial.exists() and self._store.size(name) == size:
            return
        if not partial.exists() or partial.stat().st_size != size:
            raise HttpError(409, f"{name} is incomplete")
        self._store.adopt(partial, name)

    def _partial(self, name: str, options: Mapping[str, list[str]]) -> Path:
        """Of one upload: another one of the same file may be under way."""
        upload = options.get("upload", [""])[0]
        if UPLOAD.fullmatch(upload) is None:
            raise HttpError(400, "an upload is named by 8 to 32 hexadecimal digits")
        path = self._root / name
        return path.with_name(f".{path.name}{PARTIAL}sent-{upload}")

    def _remove(self, name: str) -> None:
        if not name:
            raise HttpError(400, "the whole claim cannot be deleted")
        self._store.remove(name)


def _remove_old(partial: Path, before: float) -> None:
    """Parts from other uploads of the same file, if nothing was added since then."""
    beginning = partial.name.rpartition("-")[0]
    for other in partial.parent.iterdir():
        if other.name.startswith(f"{beginning}-"):
            with suppress(FileNotFoundError):
                if other.stat().st_mtime < before:
                    other.unlink()
