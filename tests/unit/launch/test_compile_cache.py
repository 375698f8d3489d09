"""Compiled code between pods: fetched, kept, refused; and never in the way of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from headway.launch.compile_cache import LOOK_SECONDS, NUM_STEPS, SETTLED_SECONDS, CompileCache
from headway.state.store import Store
from support.clock import Patient

KEY = b"k" * 32


class FakeClock(Patient):
    """Also for the time of files."""

    def now(self) -> float:
        return 1e9 + self.passed


class Node:
    """A node, with a folder of its own."""

    def __init__(
        self, tmp_path: Path, name: str, index: int = 0, key: bytes = KEY, most: int = 10**9
    ) -> None:
        self.clock = FakeClock()
        self.storage = Store(tmp_path / "storage")
        self.said: list[str] = []
        self.cache = CompileCache(
            *(self.storage, "0a1b", key, tmp_path / name, self.clock, self.said.append, index),
            most_bytes=most,
        )

    def compiles(self, *names: str, age: float = 60.0) -> None:
        for name in names:
            path = self.cache.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"code of {name}")
            written = self.clock.now() - age
            os.utime(path, (written, written))

    def looks(self, num_steps: int = NUM_STEPS) -> None:
        self.cache.look(num_steps)
        if (thread := self.cache._saving) is not None:
            thread.join(60)

    def names(self) -> set[str]:
        folder = self.cache.folder
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}

    @property
    def kept(self) -> bytes | None:
        name = "compiled/0a1b/archive"
        return self.storage.read(name) if self.storage.size(name) is not None else None


@pytest.mark.trap(15)
def test_what_one_pod_compiled_the_next_one_has(tmp_path: Path) -> None:
    first = Node(tmp_path, "first")
    assert first.cache.fetch() is None
    first.compiles("fxgraph/a", "q2/b.so")
    first.looks()
    assert first.said == ["kept compiled code for later starts: 2 files"]
    second = Node(tmp_path, "second")
    assert second.cache.fetch() is None
    assert second.names() == {"fxgraph/a", "q2/b.so"}
    assert first.storage.size("compiled/0a1b.used") is not None


def test_not_before_ten_steps_and_not_while_something_is_written(tmp_path: Path) -> None:
    node = Node(tmp_path, "node")
    node.compiles("fxgraph/a", age=1.0)
    node.looks(NUM_STEPS - 1)
    node.looks()
    assert node.kept is None
    node.clock.sleep(SETTLED_SECONDS + 1)
    node.looks()
    assert node.kept is not None


def test_the_graph_of_an_evaluation_comes_later(tmp_path: Path) -> None:
    node = Node(tmp_path, "node")
    node.compiles("fxgraph/a")
    node.looks()
    node.compiles("fxgraph/evaluation")
    node.looks()
    assert len(node.said) == 1
    node.clock.sleep(LOOK_SECONDS + 1)
    node.looks()
    later = Node(tmp_path, "later")
    later.cache.fetch()
    assert later.names() == {"fxgraph/a", "fxgraph/evaluation"}


def test_at_the_end_of_a_short_run(tmp_path: Path) -> None:
    node = Node(tmp_path, "node")
    node.compiles("fxgraph/a", age=0.0)
    node.cache.finish(NUM_STEPS)
    assert node.kept is not None


def test_nothing_new_is_not_written_again(tmp_path: Path) -> None:
    first, second = Node(tmp_path, "first"), Node(tmp_path, "second")
    first.compiles("fxgraph/a")
    first.looks()
    second.cache.fetch()
    before = first.storage.path("compiled/0a1b/archive").stat().st_ino
    second.cache.finish(NUM_STEPS)
    assert first.storage.path("compiled/0a1b/archive").stat().st_ino == before


def test_an_archive_that_would_be_too_large_begins_anew(tmp_path: Path) -> None:
    first, second = Node(tmp_path, "first"), Node(tmp_path, "second", most=4000)
    first.compiles("fxgraph/a", "fxgraph/b", "fxgraph/c")
    first.looks()
    second.cache.fetch()
    second.compiles("fxgraph/new")
    second.cache.finish(NUM_STEPS)
    third = Node(tmp_path, "third")
    third.cache.fetch()
    assert third.names() == {"fxgraph/new"}


def test_of_nodes_that_start_together_one_writes(tmp_path: Path) -> None:
    first, second = Node(tmp_path, "first"), Node(tmp_path, "second", index=1)
    for node in (first, second):
        node.cache.fetch()
        node.compiles("fxgraph/a")
    first.looks()
    second.looks()
    assert second.said == []
    kept = first.kept
    second.clock.sleep(2.0)
    second.looks()
    second.compiles("q2/its-own.so")
    assert (second.said, second.kept) == ([], kept)
    second.clock.sleep(LOOK_SECONDS + 1)
    second.looks()  # it has something that nobody else has written
    assert second.kept != kept


def test_changed_on_the_storage_it_is_refused_and_replaced(tmp_path: Path) -> None:
    first = Node(tmp_path, "first")
    first.compiles("fxgraph/a")
    first.looks()
    content = bytearray(first.kept or b"")
    content[-1] ^= 1
    first.storage.write("compiled/0a1b/archive", bytes(content))
    second = Node(tmp_path, "second")
    why = second.cache.fetch()
    assert why is not None
    assert "compiled/0a1b/archive is not used: its MAC does not fit" in why
    assert second.names() == set()
    assert not second.cache.was_used_by(0.0)
    second.compiles("fxgraph/a")
    second.looks()
    third = Node(tmp_path, "third")
    assert third.cache.fetch() is None
    assert third.names() == {"fxgraph/a"}


def test_discarded_it_is_not_used_again_and_is_replaced(tmp_path: Path) -> None:
    first, second = Node(tmp_path, "first"), Node(tmp_path, "second")
    first.compiles("q2/for-another-machine.so")
    first.looks()
    second.cache.fetch()
    started = second.clock.monotonic()
    assert second.cache.was_used_by(started)
    second.clock.sleep(1.0)
    second.cache.discard()
    assert second.names() == set()
    assert second.cache.was_used_by(started)  # another that was started with it
    second.clock.sleep(1.0)
    assert not second.cache.was_used_by(second.clock.monotonic())
    second.compiles("q2/own.so")
    second.looks()
    third = Node(tmp_path, "third")
    third.cache.fetch()
    assert third.names() == {"q2/own.so"}


def test_storage_that_is_away(tmp_path: Path) -> None:
    (tmp_path / "storage").write_text("not a folder")
    node = Node(tmp_path, "node")
    assert node.cache.fetch() is None
    node.compiles("fxgraph/a")
    node.looks()
    assert len(node.said) == 1
    assert node.said[0].startswith("compiled code cannot be kept: ")


class Vanishing(type(Path())):  # type: ignore[misc]
    """A folder that is removed while it is listed."""

    def rglob(self, pattern: str) -> Iterator[Path]:
        raise FileNotFoundError(f"no {self}/{pattern} any more")


def test_a_cache_folder_that_is_cleared_meanwhile(tmp_path: Path) -> None:
    node = Node(tmp_path, "node")
    node.compiles("fxgraph/a")
    node.cache.folder = Vanishing(node.cache.folder)
    node.cache._save()
    assert len(node.said) == 1
    assert node.said[0].startswith("compiled code cannot be kept: no ")


class Silent(Store):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.over = Event()

    def size(self, name: str) -> int | None:
        self.over.wait(60)
        return super().size(name)


def test_storage_that_does_not_answer(tmp_path: Path) -> None:
    said: list[str] = []
    storage = Silent(tmp_path)
    cache = CompileCache(
        storage, "0a1b", KEY, tmp_path, FakeClock(), said.append, storage_seconds=0.1
    )
    assert cache.fetch() is None
    storage.over.set()
    assert said == ["compiled code on the storage: no answer for 0.1 s"]
