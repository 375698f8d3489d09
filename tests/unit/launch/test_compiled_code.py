"""Compiled code between pods: fetched, kept, refused; and never in the way of a run."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.launch.compiled_code import (
    LOOK_SECONDS,
    NUM_STEPS,
    SETTLED_SECONDS,
    BadArchive,
    CompiledCode,
    cached_files,
    machine_kind,
    pack,
    unpack,
)
from headway.state.store import Store
from support.clock import Patient

KEY, NAMED = b"k" * 32, "compiled/0a1b"
FILES = {
    "aotautograd/ax1/5f2e": b"a pickle",
    "fxgraph/xy/fxy1/77aa": b"another",
    "q2/cq2rb.main.so": bytes(range(256)) * 20,
    "q2/cq2rb.main.so.load_ok": b"",
}
CPUINFO = """processor : 0
vendor_id : GenuineIntel
cpu MHz : {mhz}
flags : {flags}

processor : 1
vendor_id : GenuineIntel
cpu MHz : {mhz}
flags : {flags}
"""


class FakeClock(Patient):
    """Also for the time of files."""

    def now(self) -> float:
        return 1e9 + self.passed


class Node:
    """A node, with a folder of its own."""

    def __init__(self, tmp_path: Path, name: str, key: bytes = KEY, most: int = 10**9) -> None:
        self.clock = FakeClock()
        self.storage = Store(tmp_path / "storage")
        self.said: list[str] = []
        self.folder = tmp_path / name
        self.compiled = CompiledCode(
            *(self.storage, "0a1b", key, self.folder, self.clock, self.said.append), most
        )

    def compiles(self, *names: str, age: float = 60.0) -> None:
        for name in names:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"code of {name}")
            written = self.clock.now() - age
            os.utime(path, (written, written))

    def keeps(self, num_steps: int = NUM_STEPS) -> None:
        self.compiled.keep(num_steps)
        if (thread := self.compiled._saving) is not None:
            thread.join(60)

    @property
    def kept(self) -> bytes | None:
        return self.storage.read(NAMED) if self.storage.size(NAMED) is not None else None


@pytest.mark.trap(15, 16)
def test_what_one_pod_compiled_the_next_one_has(tmp_path: Path) -> None:
    first, second = Node(tmp_path, "first"), Node(tmp_path, "second")
    first.compiled.fetch()
    first.compiles("fxgraph/a", "q2/b.so")
    first.keeps()
    assert first.said == ["kept compiled code for pods that start later: 2 files"]
    second.compiled.fetch()
    assert set(cached_files(second.folder)) == {"fxgraph/a", "q2/b.so"}
    assert second.said == ["fetched compiled code: 2 files, 10 KiB"]


def test_not_before_ten_steps_and_not_while_something_is_written(tmp_path: Path) -> None:
    node = Node(tmp_path, "node")
    node.compiles("fxgraph/a", age=1.0)
    node.keeps(NUM_STEPS - 1)
    node.keeps()
    assert node.kept is None
    node.clock.sleep(SETTLED_SECONDS + 1)
    node.keeps()
    assert node.kept is not None


def test_the_graph_of_an_evaluation_comes_later(tmp_path: Path) -> None:
    node = Node(tmp_path, "node")
    node.compiles("fxgraph/a")
    node.keeps()
    node.compiles("fxgraph/evaluation")
    node.keeps()
    assert len(node.said) == 1
    node.clock.sleep(LOOK_SECONDS + 1)
    node.keeps()
    later = Node(tmp_path, "later")
    later.compiled.fetch()
    assert set(cached_files(later.folder)) == {"fxgraph/a", "fxgraph/evaluation"}


def test_nothing_new_is_not_written_again(tmp_path: Path) -> None:
    first, second = Node(tmp_path, "first"), Node(tmp_path, "second")
    first.compiles("fxgraph/a")
    first.keeps()
    second.compiled.fetch()
    second.keeps()
    assert len(second.said) == 1


def test_too_much_is_not_kept_and_said_once(tmp_path: Path) -> None:
    node = Node(tmp_path, "node", most=20)
    node.compiles("fxgraph/a", "fxgraph/b")
    node.keeps()
    node.clock.sleep(LOOK_SECONDS + 1)
    node.keeps()
    assert node.said == ["compiled code is too large to be kept: over 0 MiB"]
    assert node.kept is None


def test_an_archive_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    first, second = Node(tmp_path, "first"), Node(tmp_path, "second", most=2000)
    first.compiles("fxgraph/a")
    first.keeps()
    second.compiled.fetch()
    assert (second.said, second.folder.exists()) == ([], False)


@pytest.mark.parametrize("how", ["changed", "another key"])
def test_what_does_not_fit_is_refused_and_replaced(tmp_path: Path, how: str) -> None:
    """Another key is that of another run, or of an earlier start."""
    first = Node(tmp_path, "first", key=KEY if how == "changed" else b"o" * 32)
    first.compiles("fxgraph/a")
    first.keeps()
    if how == "changed":
        content = bytearray(first.kept or b"")
        content[-1] ^= 1
        first.storage.write(NAMED, bytes(content))
    second, third = Node(tmp_path, "second"), Node(tmp_path, "third")
    second.compiled.fetch()
    (said,) = second.said
    assert f"{NAMED} is not used: it was changed, or written by an earlier start" in said
    assert not second.folder.exists()
    second.compiles("fxgraph/a")
    second.keeps()
    third.compiled.fetch()
    assert set(cached_files(third.folder)) == {"fxgraph/a"}


def test_storage_that_is_away(tmp_path: Path) -> None:
    (tmp_path / "storage").write_text("not a folder")
    node = Node(tmp_path, "node")
    node.compiled.fetch()
    node.compiles("fxgraph/a")
    node.keeps()
    assert node.said[-1].startswith("compiled code cannot be kept: ")


def test_a_folder_that_cannot_be_filled_has_no_cut_off_file(tmp_path: Path) -> None:
    first, second = Node(tmp_path, "first"), Node(tmp_path, "second")
    first.compiles("fxgraph/a", "q2/b.so")
    first.keeps()
    (second.folder / "q2" / "b.so").mkdir(parents=True)  # as a full disk: the second file fails
    second.compiled.fetch()
    (said,) = second.said
    assert said.startswith("compiled code cannot be fetched: ")
    assert set(cached_files(second.folder)) == set()


class Vanishing(type(Path())):  # type: ignore[misc]
    """A folder that is removed while it is listed."""

    def rglob(self, pattern: str) -> Iterator[Path]:
        raise FileNotFoundError(f"no {self}/{pattern} any more")


def test_a_cache_folder_that_is_cleared_meanwhile(tmp_path: Path) -> None:
    node = Node(tmp_path, "node")
    node.compiled._folder = Vanishing(node.folder)
    node.keeps()
    (said,) = node.said
    assert said.startswith("compiled code cannot be kept: no ")


# The archive


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def read_back(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_what_was_packed_is_unpacked(tmp_path: Path) -> None:
    archive = pack(cached_files(written(tmp_path / "here", FILES)), KEY, NAMED)
    assert set(unpack(archive, KEY, NAMED, tmp_path / "there")) == set(FILES)
    assert read_back(tmp_path / "there") == FILES


def test_locks_temporary_files_and_links_stay(tmp_path: Path) -> None:
    left = {"locks/a.lock": b"", ".123.tmp": b"", "q2/.half.so": b"", "q2/x.py.lock": b""}
    here = written(tmp_path / "here", FILES | left)
    (here / "q2" / "link.so").symlink_to("/bin/true")
    assert set(cached_files(here)) == set(FILES)


def test_long_names(tmp_path: Path) -> None:
    """Those of kernels list all that was fused, in folders with digests as names."""
    kernel = f"{'0a' * 32}/{'1b' * 32}/triton_poi_fused_{'_add_mul_native_layer_norm' * 7}.cubin"
    files = {kernel: b"code", f"x/{'n' * 250}": b"more"}
    archive = pack(cached_files(written(tmp_path / "here", files)), KEY, NAMED)
    unpack(archive, KEY, NAMED, tmp_path / "there")
    assert read_back(tmp_path / "there") == files


@pytest.mark.trap(15)
def test_a_pickle_that_somebody_plants_is_never_loaded(tmp_path: Path) -> None:
    """torch loads every file in the folder of a key, whatever its name: so whoever can put one
    there runs code in the pods."""
    proof = tmp_path / "was-run"

    class Planted:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return os.mkdir, (str(proof),)

    planted = {**FILES, "fxgraph/xy/fxy1/0000": pickle.dumps(Planted())}
    files = cached_files(written(tmp_path / "here", planted))
    whole, forged = pack(files, KEY, NAMED), pack(files, b"another key", NAMED)
    there = tmp_path / "there"
    for archive in (forged, b"\0" * 32 + whole[32:], whole[32:], b""):
        with pytest.raises(BadArchive):
            unpack(archive, KEY, NAMED, there)
    assert not there.exists()
    # The plant would have worked, and only the MAC keeps it out.
    unpack(whole, KEY, NAMED, there)
    pickle.loads((there / "fxgraph/xy/fxy1/0000").read_bytes())
    assert proof.is_dir()


def test_moved_to_the_name_of_another_machine_it_does_not_fit(tmp_path: Path) -> None:
    archive = pack(cached_files(written(tmp_path / "here", FILES)), KEY, NAMED)
    with pytest.raises(BadArchive):
        unpack(archive, KEY, "compiled/ffff", tmp_path / "there")
    assert not (tmp_path / "there").exists()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_changed_bit_or_a_torn_end_is_noticed(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("archive")
    archive = pack(cached_files(written(folder / "here", FILES)), KEY, NAMED)
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(archive) * 8 - 1))
        changed = bytearray(archive)
        changed[at // 8] ^= 1 << at % 8
        archive = bytes(changed)
    else:
        archive = archive[: data.draw(st.integers(0, len(archive) - 1))]
    with pytest.raises(BadArchive):
        unpack(archive, KEY, NAMED, folder / "there")
    assert not (folder / "there").exists()


# The machine


def machine(folder: Path, flags: str = "fpu sse2 avx2", mhz: str = "2500.0") -> Path:
    (folder / "proc").mkdir(parents=True)
    (folder / "proc/cpuinfo").write_text(CPUINFO.format(flags=flags, mhz=mhz))
    return folder


def test_the_same_kind_of_machine(tmp_path: Path) -> None:
    one = machine(tmp_path / "one")
    other = machine(tmp_path / "other", flags="avx2 sse2 fpu", mhz="1200.0")
    assert machine_kind(one) == machine_kind(other)


@pytest.mark.trap(15)
def test_another_processor(tmp_path: Path) -> None:
    """torch's own keys do not know it, and its library would end a worker with SIGILL."""
    one = machine(tmp_path / "one")
    other = machine(tmp_path / "other", flags="fpu sse2 avx2 avx512f")
    assert machine_kind(one) != machine_kind(other)
