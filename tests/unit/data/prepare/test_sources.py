"""Sources name their files in one order everywhere, and nothing is left out silently."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from headway.data.prepare.sources import (
    SAMPLE_BYTES,
    SAMPLES,
    WHOLE_BYTES,
    find_sources,
    fingerprint,
    readable_files,
    require_web_source,
)
from headway.errors import BadInput, NotFound
from support.fake_s3 import fake_s3


def names(sources: list[str], beside: Path) -> list[str]:
    return [file.name for file in find_sources(sources, beside).files]


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"text of {name}")


def test_files_globs_and_folders_come_sorted(tmp_path: Path) -> None:
    folder = tmp_path / "run [1]"
    touch(folder, "b/2.txt", "b/1.TXT", "b/deep/0.jsonl.gz", "b/.hidden", "b/.dir/1.txt")
    touch(folder, "c3.txt", "c1.txt", "z.txt")
    assert names(["z.txt", "c*.txt", "b"], folder) == [
        "z.txt",
        *("c1.txt", "c3.txt"),
        *("b/1.TXT", "b/2.txt", "b/deep/0.jsonl.gz"),
    ]
    assert names(["**/2.txt"], folder) == ["b/2.txt"]
    touch(folder, "odd[1].txt")
    assert names(["odd[1].txt"], folder) == ["odd[1].txt"], "a file before a pattern"


@pytest.mark.parametrize("written", ["a.txt", "./a.txt", "deep/../a.txt", "{absolute}/a.txt"])
def test_a_file_has_one_name_however_it_is_written(tmp_path: Path, written: str) -> None:
    touch(tmp_path, "a.txt", "deep/b.txt")
    assert names([written.format(absolute=tmp_path)], tmp_path) == ["a.txt"]


def test_a_file_outside_the_folder_has_its_whole_path(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt", "deep/b.txt")
    assert names(["../a.txt"], tmp_path / "deep") == [str(tmp_path / "a.txt")]


def test_a_link_is_read_under_its_own_name(tmp_path: Path) -> None:
    """Caches of hubs keep files under their digests, without a suffix, and link to them."""
    touch(tmp_path, "blobs/3f2a", "blobs/77b1")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "a.txt").symlink_to("../blobs/3f2a")
    (tmp_path / "snapshot" / "b.jsonl").symlink_to("../blobs/77b1")
    assert names(["snapshot/a.txt"], tmp_path) == ["snapshot/a.txt"]
    found = find_sources(["snapshot"], tmp_path)
    assert [file.name for file in found.files] == ["snapshot/a.txt", "snapshot/b.jsonl"]
    assert found.problems == []


@pytest.mark.parametrize("source", ["data", "data/*"])
def test_a_link_to_a_folder_or_a_broken_link_is_left_out_and_reported(
    tmp_path: Path, source: str
) -> None:
    touch(tmp_path, "elsewhere/a.txt", "data/b.txt")
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "round").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "gone.txt").symlink_to(tmp_path / "gone.txt")
    found = find_sources([source], tmp_path)
    assert "data/b.txt" in [file.name for file in found.files]
    left_out = {(problem.kind, problem.file) for problem in found.problems}
    assert left_out >= {("not a file", "data/linked"), ("not a file", "data/gone.txt")}


@pytest.mark.parametrize("source", ["nowhere.txt", "nothing-*.txt"])
def test_a_source_that_does_not_exist_is_named(tmp_path: Path, source: str) -> None:
    with pytest.raises(NotFound, match=r"does not exist|no file matches") as caught:
        find_sources([source], tmp_path)
    assert source in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("source", ["*", "."])
def test_files_that_cannot_be_read_are_reported(tmp_path: Path, source: str) -> None:
    touch(tmp_path, "a.txt", "notes.pdf", "noise.gz")
    found = find_sources([source], tmp_path)
    assert [file.name for file in found.files] == ["a.txt"]
    assert [(one.kind, one.file, one.line) for one in found.problems] == [
        ("unknown suffix", "noise.gz", None),
        ("unknown suffix", "notes.pdf", None),
    ]
    assert ".jsonl" in found.problems[0].message


@pytest.mark.parametrize("source", ["notes.pdf", "./notes.pdf"])
def test_a_file_that_is_asked_for_and_cannot_be_read_is_refused(
    tmp_path: Path, source: str
) -> None:
    touch(tmp_path, "a.txt", "notes.pdf")
    with pytest.raises(BadInput, match=r"notes\.pdf has an unsupported suffix") as caught:
        find_sources(["a.txt", source], tmp_path)
    assert ".txt, .jsonl" in (caught.value.hint or "")


@pytest.mark.parametrize("source", ["set", "set.bin", "set.idx", "s*", "."])
def test_a_set_of_megatron_is_both_its_files_however_it_is_named(
    tmp_path: Path, source: str
) -> None:
    folder = tmp_path / "made"
    both = ["set.bin", "set.idx"]
    touch(folder, *both)
    assert names([source], folder) == both
    with fake_s3() as s3:
        for name in both:
            s3().pipe_file(f"s3://bucket/made/{name}", b"set")
        address = f"s3://bucket/made/{source}".removesuffix("/.")
        assert names([address], tmp_path) == [f"s3://bucket/made/{name}" for name in both]


@pytest.mark.parametrize(("alone", "other"), [("set.bin", "set.idx"), ("set.idx", "set.bin")])
def test_a_set_of_megatron_without_its_other_file(tmp_path: Path, alone: str, other: str) -> None:
    touch(tmp_path, alone, "a.txt")
    with pytest.raises(NotFound, match=f"{other} does not exist"):
        find_sources(["a.txt", alone], tmp_path)
    found = find_sources(["."], tmp_path)
    assert [file.name for file in found.files] == ["a.txt"]
    assert [(problem.kind, problem.file) for problem in found.problems] == [("no partner", alone)]


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a b.TGZ"])
def test_an_archive_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    touch(tmp_path, name, "b.txt")
    way_out = f"tar -xf {shlex.quote(name)} -C text"
    for refuse in (lambda: find_sources([name], tmp_path), lambda: readable_files(name, tmp_path)):
        with pytest.raises(BadInput) as caught:
            refuse()
        assert caught.value.message == f"{name} is an archive"
        assert way_out in (caught.value.hint or "")
    found = find_sources(["."], tmp_path)
    assert [file.name for file in found.files] == ["b.txt"]
    assert way_out in found.problems[0].message
    with pytest.raises(BadInput, match=r"^https://example\.org/a/b\.tgz is an archive\n") as caught:
        require_web_source("https://example.org/a/b.tgz")
    assert "tar -xf b.tgz -C text" in (caught.value.hint or "")


def test_a_folder_without_anything_readable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is empty"):
        find_sources(["."], tmp_path)
    touch(tmp_path, "notes.pdf")
    with pytest.raises(BadInput, match=r"no supported file in \."):
        find_sources(["."], tmp_path)


def test_the_same_file_twice_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt")
    with pytest.raises(BadInput, match=r"a\.txt is named by more than one source"):
        find_sources(["a.txt", "*.txt"], tmp_path)


def test_a_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = find_sources(["a.txt"], tmp_path).files
    os.utime(path, (1, 1))
    assert find_sources(["a.txt"], tmp_path).files == before
    path.write_text("two")
    assert find_sources(["a.txt"], tmp_path).files != before


def test_a_large_file_is_fingerprinted_by_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.touch()
    size = WHOLE_BYTES + 1
    os.truncate(path, size)  # of zeros that take no room
    seen = [fingerprint(path)]
    sampled = (size - SAMPLE_BYTES) * 8 // (SAMPLES - 1)
    for place in (0, sampled, size - 1):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        seen.append(fingerprint(path))
    assert len(set(seen)) == 4


def test_sources_in_a_store(tmp_path: Path) -> None:
    with fake_s3() as s3:
        store = s3()
        for name in ("b/2.txt", "b/1.jsonl", "b/deep/0.txt", "b/.hidden.txt", "b/notes.pdf"):
            store.pipe_file(f"s3://bucket/{name}", b"text")
        at = "s3://bucket/b"
        found = find_sources([at], tmp_path)
        assert [file.name for file in found.files] == [
            f"{at}/1.jsonl",
            f"{at}/2.txt",
            f"{at}/deep/0.txt",
        ]
        assert [problem.file for problem in found.problems] == [f"{at}/notes.pdf"]
        assert {file.size for file in found.files} == {4}
        assert names([f"{at}/*.txt"], tmp_path) == [f"{at}/2.txt"], "as in a folder"
        assert names([f"{at}/**/*.txt"], tmp_path) == [f"{at}/2.txt", f"{at}/deep/0.txt"]
        assert names([f"{at}/d*/?.txt"], tmp_path) == [f"{at}/deep/0.txt"]
        assert names([f"{at}/2.txt"], tmp_path) == [f"{at}/2.txt"]
        for nothing in (f"{at}/*.csv", "s3://bucket/nowhere"):
            with pytest.raises(NotFound, match="nothing found at"):
                find_sources([nothing], tmp_path)
        with pytest.raises(BadInput, match="suffix"):
            find_sources([f"{at}/notes.pdf"], tmp_path)
