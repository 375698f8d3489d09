"""An object store in memory, behind fsspec's own registry, whose requests can be made to fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from fsspec.spec import AbstractBufferedFile

Trouble = Literal["refused", "answer lost"]


class FakeS3(MemoryFileSystem):  # type: ignore[misc]
    """One for each `fake_s3()`. `troubles` are taken one by one by the writes to come: a request
    that never arrived, or one that was carried out and whose answer was lost."""

    protocol = "s3"
    root_marker = ""
    cachable = False
    store: dict[str, Any] = {}
    pseudo_dirs: list[str] = [""]
    troubles: list[Trouble | None] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("s3://").strip("/")

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "wb" or "data" in options:
            return super()._open(path, mode, **options)
        return _Upload(self, path, mode)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        trouble = self.troubles.pop(0) if self.troubles else None
        if trouble == "refused":
            raise OSError("the store does not answer")
        if mode == "create" and self._strip_protocol(path) in self.store:
            raise FileExistsError(path)
        super().pipe_file(path, value)
        if trouble == "answer lost":
            raise OSError("the connection was closed before the answer came")


class _Upload(AbstractBufferedFile):  # type: ignore[misc]
    """As in a real store, the object exists once it was closed, with what had been written by then:
    whoever does not want that has to discard it."""

    def _initiate_upload(self) -> None:
        self._parts: list[bytes] = []

    def _upload_chunk(self, final: bool = False) -> bool:
        self._parts.append(self.buffer.getvalue())
        if final:
            self.fs.pipe_file(self.path, b"".join(self._parts))
        return True


@contextmanager
def fake_s3() -> Iterator[type[FakeS3]]:
    """s3:// is in memory as long as this lasts."""
    fresh = type("FakeS3", (FakeS3,), {"store": {}, "pseudo_dirs": [""], "troubles": []})
    fsspec.register_implementation("s3", fresh, clobber=True)
    try:
        yield fresh
    finally:
        _registry.pop("s3")  # the next to ask for s3:// gets the real one
