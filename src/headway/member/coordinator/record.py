"""The record: the newest generation, written before it is published, and who may write the next
one.

Each entry has a number, and can be made only once. The coordinator that makes the next one has
replaced all that wrote before; that alone keeps two coordinators from changing the same run.
"""

from __future__ import annotations

from typing import Protocol
from uuid import uuid4

import msgspec
from msgspec import Struct

from headway.errors import BadInput, RunFailed
from headway.member.protocol.generation import Generation, nobody
from headway.state.store import Store

FORMAT = 1
SUFFIX = ".json"
KEPT = 16
"""Entries kept for inspection. Older ones are removed when a newer one has been made."""


class Entry(Struct, frozen=True):
    version: int
    incarnation: int
    """Incarnation of the newest coordinator: each start takes the next one."""
    generation: Generation


class GenerationRecord(Protocol):
    """Blocking: to be called from a thread. OSError when the store is unavailable: then the outcome
    of a call is unknown, and it is repeated."""

    def read(self) -> Entry:
        """The newest entry; one of version 0 before the first."""
        ...

    def swap(self, after: Entry, new: Entry) -> bool:
        """Makes `new` the newest entry if `after` is it; also True if it was made so by an earlier
        call of this object whose answer was lost."""
        ...


NOTHING = Entry(0, 0, nobody(0))


class _Written(Struct, frozen=True):
    format: int
    run: str
    writer: str
    """Random name of the writer: otherwise two coordinators that start together would write the
    same entry, and both would take it for their own."""
    entry: Entry


def encoded(entry: Entry, run: str, writer: str) -> bytes:
    return msgspec.json.encode(_Written(FORMAT, run, writer, entry)) + b"\n"


def decoded(data: bytes, run: str, where: str) -> Entry:
    try:
        written = msgspec.json.decode(data, type=_Written)
    except msgspec.DecodeError as error:
        raise RunFailed(f"{where} is damaged: {error}") from None
    if written.format != FORMAT:
        raise BadInput(
            f"{where} has format {written.format}; this version of Headway reads {FORMAT}"
        )
    if written.run != run:
        raise BadInput(f"{where} belongs to run {written.run}")
    return written.entry


class StoreRecord:
    """Numbered files in a folder or under a prefix of an object store, made only if absent.

    Old ones are removed, so a free number need not be the next one: a coordinator that slept for
    long could make one that is long past. So after making a file it lists them: with a higher
    number, or without the one before, the file does not count."""

    def __init__(self, store: Store, run: str) -> None:
        self.store = store
        self.run = run
        self._writer = uuid4().hex

    def read(self) -> Entry:
        versions = self._versions()
        if not versions:
            return NOTHING
        return self._read(versions[-1])

    def swap(self, after: Entry, new: Entry) -> bool:
        assert new.version == after.version + 1
        # If the folder itself has vanished, making a file would recreate it empty.
        if after.version and self.store.size(_name(after.version)) is None:
            return self._not_there(after.version)
        content = encoded(new, self.run, self._writer)
        made = self.store.create(_name(new.version), content)
        if not made and self.store.read(_name(new.version)) != content:
            return False
        versions = self._versions()
        if not versions or versions[-1] != new.version:
            return False
        if after.version and after.version not in versions:
            self.store.remove(_name(new.version))
            return self._not_there(after.version)
        self._remove_older(versions)
        return True

    def _not_there(self, version: int) -> bool:
        """The entry before is gone: there are newer ones, or the folder is another one."""
        versions = self._versions()
        if versions and versions[-1] > version:
            return False
        raise OSError(f"{self.store.location(_name(version))} has disappeared")

    def _read(self, version: int) -> Entry:
        name = _name(version)
        return decoded(self.store.read(name), self.run, self.store.location(name))

    def _versions(self) -> list[int]:
        numbers = (name.removesuffix(SUFFIX) for name in self.store.names(""))
        return sorted(int(number) for number in numbers if number.isdecimal())

    def _remove_older(self, versions: list[int]) -> None:
        try:
            for version in versions[:-KEPT]:
                self.store.remove(_name(version))
        except OSError:
            pass  # tried again after the next one


def _name(version: int) -> str:
    return f"{version:012d}{SUFFIX}"
