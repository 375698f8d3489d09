"""Compiled code from a place where others can write: only what a node has written is ever read."""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import pickle
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.state.compiled_archive import NAME, BadArchive, cached_files, pack, unpack

KEY, NAMED = b"k" * 32, "compiled/0a1b/archive"
FILES = {
    "aotautograd/ax1/5f2e": b"a pickle",
    "fxgraph/xy/fxy1/77aa": b"another",
    "q2/cq2rb.main.so": bytes(range(256)) * 20,
    "q2/cq2rb.main.so.load_ok": b"",
}


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def archive_of(folder: Path) -> bytes:
    made = pack(cached_files(folder).items(), KEY, NAMED)
    assert made is not None
    return made


def read_back(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_what_was_packed_is_unpacked(tmp_path: Path) -> None:
    archive = archive_of(written(tmp_path / "here", FILES))
    assert set(unpack(archive, KEY, NAMED, tmp_path / "there")) == set(FILES)
    assert read_back(tmp_path / "there") == FILES


def test_locks_temporary_files_and_links_stay(tmp_path: Path) -> None:
    left = {"locks/a.lock": b"", ".123.tmp": b"", "q2/.half.so": b"", "q2/x.py.lock": b""}
    here = written(tmp_path / "here", FILES | left)
    (here / "q2" / "link.so").symlink_to("/bin/true")
    assert set(cached_files(here)) == set(FILES)


@pytest.mark.trap(15)
def test_a_pickle_that_somebody_plants_is_never_loaded(tmp_path: Path) -> None:
    """torch loads every file in the folder of a key, whatever its name: so whoever can put one
    there runs code in the pods."""
    proof = tmp_path / "was-run"

    class Planted:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return os.mkdir, (str(proof),)

    planted = {**FILES, "fxgraph/xy/fxy1/0000": pickle.dumps(Planted())}
    whole = archive_of(written(tmp_path / "here", planted))
    forged = pack(cached_files(tmp_path / "here").items(), b"another key", NAMED)
    assert forged is not None
    there = tmp_path / "there"
    for archive in (forged, b"\0" * 32 + whole[32:], whole[32:], b""):
        with pytest.raises(BadArchive, match="MAC"):
            unpack(archive, KEY, NAMED, there)
    assert not there.exists()
    # The plant would have worked, and only the MAC keeps it out.
    unpack(whole, KEY, NAMED, there)
    pickle.loads((there / "fxgraph/xy/fxy1/0000").read_bytes())
    assert proof.is_dir()


def test_of_another_machine_or_run_it_does_not_fit(tmp_path: Path) -> None:
    archive = archive_of(written(tmp_path / "here", FILES))
    with pytest.raises(BadArchive):
        unpack(archive, KEY, "compiled/ffff/archive", tmp_path / "there")
    assert not (tmp_path / "there").exists()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_changed_bit_or_a_torn_end_is_noticed(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("archive")
    archive = archive_of(written(folder / "here", FILES))
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


@settings(max_examples=60, deadline=None)
@given(
    files=st.dictionaries(
        st.from_regex(NAME, fullmatch=True).filter(lambda name: len(name) < 250),
        st.binary(max_size=2000),
        max_size=6,
    )
)
def test_any_files(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Unless one is the folder of another."""
    folder = tmp_path_factory.mktemp("archive")
    try:
        here = written(folder / "here", files)
    except OSError:
        return
    (folder / "here").mkdir(exist_ok=True)
    kept = cached_files(here)
    unpack(archive_of(here), KEY, NAMED, folder / "there")
    assert read_back(folder / "there") == {name: files[name] for name in kept}


def test_long_names(tmp_path: Path) -> None:
    """Those of kernels list all that was fused, in folders with digests as names."""
    kernel = f"{'0a' * 32}/{'1b' * 32}/triton_poi_fused_{'_add_mul_native_layer_norm' * 7}.cubin"
    here = written(tmp_path / "here", {kernel: b"code", f"x/{'n' * 250}": b"more"})
    unpack(archive_of(here), KEY, NAMED, tmp_path / "there")
    assert read_back(tmp_path / "there") == {kernel: b"code", f"x/{'n' * 250}": b"more"}


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out", ".hidden", "a//b", "a/."])
def test_nothing_is_written_elsewhere(name: str, tmp_path: Path) -> None:
    """Even if it has the key."""
    with pytest.raises(BadArchive, match="no plain file"):
        unpack(_signed(tarfile.TarInfo(name)), KEY, NAMED, tmp_path / "there")
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_no_links(kind: bytes, tmp_path: Path) -> None:
    entry = tarfile.TarInfo("fxgraph/x")
    entry.type, entry.linkname = kind, "/etc/passwd"
    with pytest.raises(BadArchive, match="no plain file"):
        unpack(_signed(entry), KEY, NAMED, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_too_much_is_not_packed(tmp_path: Path) -> None:
    here = written(tmp_path / "here", FILES)
    assert pack(cached_files(here).items(), KEY, NAMED, most_bytes=4000) is None


def test_a_file_that_is_gone_meanwhile(tmp_path: Path) -> None:
    files = cached_files(written(tmp_path / "here", FILES))
    (tmp_path / "here" / "q2" / "cq2rb.main.so").unlink()
    archive = pack(files.items(), KEY, NAMED)
    assert archive is not None
    assert "q2/cq2rb.main.so" not in unpack(archive, KEY, NAMED, tmp_path / "there")


def _signed(entry: tarfile.TarInfo) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.addfile(entry, io.BytesIO(b""))
    content = made.getvalue()
    words = f"headway compiled 1\0{NAMED}\0".encode()
    return hmac.new(KEY, words + content, hashlib.sha256).digest() + content
