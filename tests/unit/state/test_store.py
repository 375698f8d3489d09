"""Files under one root, in a folder and in an object store: whole or not there."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from headway.errors import BadInput
from headway.state.store import NUM_REQUESTS, Store, is_refusal
from support.fake_s3 import fake_s3
from support.full_disk import full_disk
from support.half_written import write_half


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "folder":
        yield Store(tmp_path / "run")
    else:
        with fake_s3():
            yield Store("s3://bucket/runs/it/")


def test_what_is_written_is_read(store: Store) -> None:
    store.write("a.json", b"old")
    store.write("a.json", b"new")
    store.write("deep/er/b", b"")
    assert (store.read("a.json"), store.read("deep/er/b")) == (b"new", b"")
    assert (store.size("a.json"), store.size("deep/er/b"), store.size("c")) == (3, 0, None)
    assert store.size("a.json/below") is None, "a file is no folder"
    assert store.names("") == ["a.json", "deep/er/b"]
    with pytest.raises(FileNotFoundError):
        store.read("c")


def test_a_range_is_read_as_far_as_the_file_goes(store: Store) -> None:
    store.write("digits", b"0123456789")
    assert store.read_range("digits", 0, 4) == b"0123"
    assert store.read_range("digits", 7, 2) == b"78"
    assert store.read_range("digits", 8, 100) == b"89"


def test_a_file_is_made_only_if_it_is_not_there(store: Store) -> None:
    assert store.create("generations/1", b"mine")
    assert not store.create("generations/1", b"theirs")
    assert store.read("generations/1") == b"mine"
    assert store.names("") == ["generations/1"]


def test_of_many_that_make_the_same_file_one_does(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: store.create("it", b"%d" % n * 10_000), range(8)))
    assert made.count(True) == 1
    assert store.read("it") == b"%d" % made.index(True) * 10_000
    assert [item.name for item in tmp_path.iterdir()] == ["it"]


def test_a_large_file_piece_by_piece(store: Store) -> None:
    with store.writing("checkpoints/x") as file:
        file.write(b"one ")
        file.write(b"two")
    assert store.read("checkpoints/x") == b"one two"


def test_names_of_a_folder_and_of_what_lies_one_below(store: Store) -> None:
    for name in ("b/run.json", "a/run.json", "a/deep/run.json", "ab/x", "run.json"):
        store.write(name, b"x")
    assert store.names("a") == ["a/deep/run.json", "a/run.json"]
    assert store.names("nothing") == []
    assert store.names_one_below("run.json") == ["a/run.json", "b/run.json"]


def test_removing_a_file_a_folder_and_nothing(store: Store) -> None:
    for name in ("step-1/x", "step-1/deep/y", "step-10/x", "z"):
        store.write(name, b"x")
    store.remove("step-1")
    store.remove("z")
    store.remove("never was")
    assert store.names("") == ["step-10/x"]


def test_words_for_where_it_is(tmp_path: Path) -> None:
    assert Store(f"{tmp_path}/").location("a/b") == f"{tmp_path}/a/b"
    assert Store(tmp_path).path("a") == tmp_path / "a"
    with fake_s3():
        remote = Store("s3://bucket/it/")
        assert (remote.location(), remote.location("a")) == ("s3://bucket/it", "s3://bucket/it/a")


# --- whole or not there


@pytest.mark.parametrize("how", ["write", "create"])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, how: str) -> None:
    with full_disk(tmp_path / "disk", free_bytes=64 * 1024) as disk:
        store = Store(disk)
        store.write("spec.json", b"old")
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is looked at
            getattr(store, how)("spec.json" if how == "write" else "new", b"x" * 10**6)
        assert caught.value.errno == errno.ENOSPC
        assert store.read("spec.json") == b"old"
        assert os.listdir(disk) == ["spec.json"], "nothing goes on filling the disk"
        store.write("spec.json", b"y" * 32 * 1024)


def test_a_large_file_that_fills_the_disk_is_let_go(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk", free_bytes=64 * 1024) as disk:
        store = Store(disk)
        with pytest.raises(OSError, match="No space left"), store.writing("checkpoints/x") as file:
            file.writelines(b"x" * 4096 for _ in range(100))
        assert store.size("checkpoints/x") is None


def test_a_writer_that_stops_halfway_leaves_the_file_of_another(store: Store) -> None:
    """Two preparations of one set, of which the second is interrupted: the first has told in its
    record that the file is whole."""
    with store.writing("shards/x") as file:
        file.write(b"whole")
    write_half(store, "shards/x", b"half")
    assert store.read("shards/x") == b"whole"
    write_half(store, "shards/y", b"half")
    assert store.names("") == ["shards/x"]


def test_a_writer_killed_halfway_leaves_the_file_of_another(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write("shards/x", b"whole")
    script = (
        "import os, sys\nfrom headway.state.store import Store\n"
        "with Store(sys.argv[1]).writing('shards/x') as file:\n"
        "    file.write(b'half')\n    file.flush()\n    os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)]).returncode == 9
    assert (store.read("shards/x"), store.names("")) == (b"whole", ["shards/x"])
    store.remove_partial("shards")
    assert os.listdir(tmp_path / "shards") == ["x"]


def test_of_two_that_write_a_large_file_at_once_the_last_has_written_all_of_it(
    store: Store,
) -> None:
    with store.writing("x") as one:
        one.write(b"one " * 1000)
        with store.writing("x") as other:
            other.write(b"other")
            one.flush()
        assert store.read("x") == b"other"
        one.write(b"end")
    assert store.read("x") == b"one " * 1000 + b"end"
    assert store.names("") == ["x"]


def test_what_a_killed_writer_left_is_no_file(tmp_path: Path) -> None:
    """A kill between writing and renaming: nothing may take the remains for a file."""
    store = Store(tmp_path)
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom headway.state.store import Store\n"
        "Path.replace = lambda *_: os._exit(9)\n"
        "Store(sys.argv[1]).write('model/config.json', b'half')\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)])
    assert killed.returncode == 9
    assert list(tmp_path.rglob("*partial*"))
    assert store.names("") == []
    store.write("model/config.json", b"whole")
    assert store.names("model") == ["model/config.json"]


# --- an object store's own ways


def test_a_write_whose_answer_was_lost_is_still_ours() -> None:
    with fake_s3() as s3:
        store = Store("s3://bucket/it")
        s3.troubles[:] = ["answer lost"]
        with pytest.raises(OSError, match="before the answer"):
            store.create("ledger/1", b"lines")
        assert store.create("ledger/1", b"lines"), "sent again: it is our own file that is there"
        assert not store.create("ledger/1", b"other lines")


class Refused(Exception):
    """As botocore has it, of a store that does not name the condition in its answer."""

    response = {"Error": {"Code": "PreconditionFailed", "Message": "no"}}


def test_a_store_that_does_not_say_which_condition_failed() -> None:
    with fake_s3() as s3:
        store = Store("s3://bucket/it")
        store.write("x", b"theirs")

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EINVAL, "no") from Refused()

        s3.pipe_file = refuse  # type: ignore[method-assign, assignment]
        assert not store.create("x", b"ours")


def test_a_file_that_is_deleted_while_another_is_made_in_its_place() -> None:
    with fake_s3() as s3:
        store = Store("s3://bucket/it")
        store.write("x", b"theirs")
        real = s3.pipe_file

        def refuse(*_: object, **__: object) -> None:
            store.remove("x")
            raise OSError(errno.EINVAL, "no") from Refused()

        s3.pipe_file = refuse  # type: ignore[method-assign, assignment]
        assert not store.create("x", b"ours"), "somebody else had it, and it is gone"
        s3.pipe_file = real  # type: ignore[method-assign]
        assert store.create("x", b"ours")


class Conflict(Exception):
    response = {"Error": {"Code": "ConditionalRequestConflict", "Message": "try again"}}


@pytest.mark.parametrize(("conflicts", "is_made"), [(3, True), (4, False)])
def test_a_conditional_write_beside_a_deletion_is_sent_again(conflicts: int, is_made: bool) -> None:
    with fake_s3() as s3:
        store, real, answers = Store("s3://bucket/it"), s3.pipe_file, iter(range(conflicts))

        def pipe_file(*arguments: Any, **options: Any) -> None:
            if next(answers, None) is not None:
                raise OSError(errno.EIO, "conflict") from Conflict()
            real(*arguments, **options)

        s3.pipe_file = pipe_file  # type: ignore[method-assign, assignment]
        if is_made:
            assert store.create("x", b"ours")
        else:
            with pytest.raises(OSError, match="conflict"):
                store.create("x", b"ours")


@pytest.mark.parametrize("module", ["botocore.exceptions", "aiohttp.client", "gcsfs.retry"])
def test_errors_of_the_libraries_are_os_errors(module: str) -> None:
    trouble = type("HttpError", (Exception,), {"__module__": module})

    def fail(*_: object, **__: object) -> None:
        raise trouble("503 slow down")

    with fake_s3() as s3:
        s3.cat_file = s3.pipe_file = s3.info = fail  # type: ignore[method-assign, assignment]
        store = Store("s3://bucket/it")
        for call in (
            lambda: store.read("x"),
            lambda: store.write("x", b""),
            lambda: store.create("x", b""),
            lambda: store.size("x"),
        ):
            with pytest.raises(OSError, match="HttpError: 503 slow down"):
                call()


@pytest.mark.parametrize(("scheme", "extra"), [("s3", "s3"), ("gs", "gcs")])
def test_a_store_whose_library_is_not_installed(scheme: str, extra: str) -> None:
    script = (
        "import sys\nsys.modules['s3fs'] = sys.modules['gcsfs'] = None\n"
        "from headway.errors import BadInput\nfrom headway.state.store import Store\n"
        "try:\n    Store(sys.argv[1])\nexcept BadInput as error:\n    print(error)\n"
    )
    root = f"{scheme}://bucket/it"
    said = subprocess.check_output([sys.executable, "-c", script, root], text=True)
    assert said == f"{root} needs the {extra} extra\nhint: pip install 'headway[{extra}]'\n"


@pytest.mark.parametrize("root", ["memory://x", "hdfs://x/y", "http://x", "S4://x"])
def test_a_storage_nobody_knows(root: str) -> None:
    with pytest.raises(BadInput) as caught:
        Store(root)
    assert "is not supported" in caught.value.message
    assert caught.value.hint == "use s3:// or gs://"


def test_a_range_in_pieces_is_in_order(store: Store) -> None:
    content = bytes(number % 251 for number in range(10_000))
    store.write("large", content)
    for start, length, each in [(0, 10_000, 300), (7, 9_000, 1_000), (5, 3, 10), (4, 0, 10)]:
        pieces = list(store.read_ranges("large", start, length, each))
        assert b"".join(pieces) == content[start : start + length]
        assert all(len(piece) == each for piece in pieces[:-1])


def test_a_piece_that_cannot_be_read_is_an_error(store: Store) -> None:
    with pytest.raises(FileNotFoundError):
        list(store.read_ranges("missing", 0, 100, 10))


def test_a_reader_that_stops_early_reads_no_further() -> None:
    with fake_s3():
        store = Store("s3://bucket/runs/it/")
        store.write("large", bytes(10_000))
        read: list[int] = []

        class Noting(Store):
            def read_range(self, name: str, start: int, length: int) -> bytes:
                read.append(start)
                return super().read_range(name, start, length)

        pieces = Noting("s3://bucket/runs/it/").read_ranges("large", 0, 10_000, 10)
        next(pieces)
        pieces.close()  # type: ignore[attr-defined]
        assert len(read) <= 2 * NUM_REQUESTS


@pytest.mark.parametrize(
    ("code", "is_final"), [("AccessDenied", True), ("RequestTimeTooSkewed", False)]
)
def test_a_refusal_of_the_moment_may_pass(code: str, is_final: bool) -> None:
    """A machine that has just started may not have the time yet; a token is renewed."""
    error = PermissionError("403")
    error.__cause__ = ClientError({"Error": {"Code": code}}, "GetObject")
    assert is_refusal(error) is is_final
