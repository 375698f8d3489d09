"""Records by lines: nothing lost, nothing doubled, order kept, whatever the disk or store does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.state.log_lines import encoded
from headway.state.record_log import PIECE_BYTES, FileLog, RememberedLog, SegmentLog, open_log
from headway.state.store import Store
from support.fake_s3 import FakeS3, Trouble, fake_s3
from support.full_disk import full_disk
from support.waiting import wait_for


@pytest.fixture
def lines(tmp_path: Path) -> FileLog:
    return FileLog(tmp_path / "lines.jsonl")


def test_no_file_is_no_lines(lines: FileLog) -> None:
    assert (lines.read(), lines.last(), lines.read(7)) == (([], 0), None, ([], 7))
    lines.flush()
    assert not lines.path.exists(), "looking and flushing write nothing"


def test_a_reader_follows_by_position(lines: FileLog) -> None:
    lines.append({"step": 1})
    records, position = lines.read()
    assert records == [{"step": 1}]
    assert lines.read(position) == ([], position)
    lines.append({"step": 2})
    assert lines.read(position)[0] == [{"step": 2}]


@pytest.mark.parametrize("piece_bytes", [1, 7, 30, 10_000])
def test_a_log_is_read_in_pieces_of_any_size(lines: FileLog, piece_bytes: int) -> None:
    records = [{"step": step, "words": "x" * (step % 40)} for step in range(60)]
    lines.append(*records)
    with lines.path.open("ab") as file:
        file.write(b'{"step": 2')
    for position in (0, lines.path.read_bytes().index(b"\n") + 1):
        found, end = [], position
        for some, end in lines.pieces(position, piece_bytes=piece_bytes):
            assert lines.read(end)[0] == records[len(records) - len(lines.read(end)[0]) :]
            found += some
        assert (found, end) == lines.read(position)
    assert lines.read()[0] == records


def test_a_long_log_is_never_in_memory_as_a_whole(lines: FileLog) -> None:
    words = "x" * 10_000
    lines.append(*({"step": step, "words": words} for step in range(3000)))
    size = lines.path.stat().st_size
    assert size > 6 * PIECE_BYTES
    tracemalloc.start()
    found, _ = RememberedLog(lines, ["step"]).read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [{"step": step} for step in range(3000)]
    assert peak < size


def test_half_a_line_waits_for_its_rest(lines: FileLog) -> None:
    lines.append({"step": 1})
    whole = lines.path.read_bytes()
    lines.path.write_bytes(whole + b'{"step":')
    assert lines.read() == ([{"step": 1}], len(whole))
    assert lines.last() == {"step": 1}
    with lines.path.open("ab") as file:
        file.write(b"2}\n")
    assert lines.read(len(whole))[0] == [{"step": 2}]


@pytest.mark.parametrize("torn", [b'{"step":', b'{"step":2,"loss', b"\x00\x00\x00", b'{"a":"\xc3'])
def test_half_a_line_of_a_machine_that_went_down_harms_no_other(
    lines: FileLog, torn: bytes
) -> None:
    lines.append({"step": 1})
    with lines.path.open("ab") as file:
        file.write(torn)
    again = FileLog(lines.path)
    again.append({"step": 2})
    again.append({"step": 3})
    assert [record["step"] for record in again.read()[0]] == [1, 2, 3]
    assert again.last() == {"step": 3}
    whole = [encoded({"step": step}) for step in (1, 2, 3)]
    assert again.path.read_bytes() == whole[0] + torn + b"\n" + whole[1] + whole[2]
    assert again.num_damaged == 1


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    block_bytes=st.integers(1, 100),
    # Half a line lacks its closing brace.
    torn=st.binary(max_size=5).filter(lambda data: not {*data} & {*b"\n\r}"}),
)
def test_the_last_line_whatever_the_block(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], block_bytes: int, torn: bytes
) -> None:
    lines = FileLog(tmp_path_factory.mktemp("lines") / "lines.jsonl")
    for step, size in enumerate(sizes):
        lines.append({"step": step, "words": "x" * size, "inner": {"a": {}}})
    with lines.path.open("ab") as file:
        file.write(torn)
    newest = {"step": step, "words": "x" * size, "inner": {"a": {}}}
    assert lines.last(block_bytes) == lines.read()[0][-1] == newest


WRITER = """\
import sys
from pathlib import Path
from headway.state.record_log import FileLog
lines = FileLog(Path(sys.argv[1]))
for number in range(300):
    lines.append({"writer": sys.argv[2], "number": number, "words": "x" * number})
"""


def test_a_last_line_that_lacks_only_its_end_is_the_last(lines: FileLog) -> None:
    """The next one to append ends it: whoever asks before must know that it is there."""
    lines.append({"step": 1})
    lines.append({"step": 2})
    os.truncate(lines.path, lines.path.stat().st_size - 1)
    assert lines.last() == {"step": 2}
    lines.append({"step": 3})
    assert [line["step"] for line in lines.read()[0]] == [1, 2, 3]


def test_lines_of_two_processes_never_mix(lines: FileLog) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(lines.path), name]) for name in "ab"
    ]
    seen: list[dict[str, Any]] = []
    position = 0

    def look() -> bool:
        nonlocal position
        found, position = lines.read(position)
        seen.extend(found)
        return all(writer.poll() is not None for writer in writers)

    wait_for("both writers", look)
    look()
    for name in "ab":
        assert [line["number"] for line in seen if line["writer"] == name] == list(range(300))


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_threads")
@pytest.mark.parametrize("where", ["folder", "s3"])
def test_two_threads_append_while_a_third_flushes(tmp_path: Path, where: str) -> None:
    """Training notes evaluations and the saver notes saves, in the same log."""
    with fake_s3():
        store = Store(tmp_path / "run" if where == "folder" else "s3://bucket/run")
        log = open_log(store, tmp_path / "here", "events")
        done = threading.Event()

        def note(name: str) -> None:
            for number in range(400):
                log.append({"by": name, "number": number})

        def flush() -> None:
            while not done.is_set():
                log.flush()

        noting = [threading.Thread(target=note, args=(name,)) for name in "ab"]
        flushing = [threading.Thread(target=flush) for _ in range(2)]
        for thread in (*noting, *flushing):
            thread.start()
        for thread in noting:
            thread.join()
        done.set()
        for thread in flushing:
            thread.join()
        log.flush()
        records = log.read()[0]
    assert len(records) == 800
    for name in "ab":
        assert [r["number"] for r in records if r["by"] == name] == list(range(400))


def test_a_full_disk_keeps_lines_until_there_is_room(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk", free_bytes=64 * 1024) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * 48 * 1024)
        lines = FileLog(disk / "lines.jsonl")
        for step in range(40):
            lines.append({"step": step, "words": "x" * 1000})  # never fails
        on_disk = [record["step"] for record in lines.read()[0]]
        assert on_disk == list(range(len(on_disk)))
        assert len(on_disk) < 40
        assert lines.path.read_bytes().endswith(b"\n"), "what the disk took of a line is cut off"
        with pytest.raises(OSError, match=r"No space left|bytes were written"):
            lines.flush()
        ballast.unlink()
        lines.flush()
        assert [record["step"] for record in lines.read()[0]] == list(range(40))
        lines.append({"step": 40})
        assert lines.last() == {"step": 40}


def test_what_is_forgotten_is_not_written_when_there_is_room(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk", free_bytes=64 * 1024) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * 60 * 1024)
        lines = FileLog(disk / "lines.jsonl")
        for step in range(20):
            lines.append({"step": step, "words": "x" * 1000})
        last = lines.last()
        lines.forget()
        ballast.unlink()
        lines.append({"step": 99})
        before, after = lines.read()[0][-2:] if last else (None, lines.read()[0][-1])
        assert (before, after) == (last, {"step": 99})


# --- rewinds


@pytest.fixture
def s3() -> Iterator[type[FakeS3]]:
    with fake_s3() as fake:
        yield fake


def segments(tmp_path: Path) -> SegmentLog:
    log = open_log(Store("s3://bucket/run"), tmp_path / "here", "ledger")
    assert isinstance(log, SegmentLog)
    return log


@pytest.mark.usefixtures("s3")
def test_a_log_in_segments(tmp_path: Path) -> None:
    log = segments(tmp_path)
    assert (log.read(), log.last()) == (([], 0), None)
    log.append({"step": 1})
    assert log.read() == ([], 0), "not sent yet"
    assert log.here.read()[0] == [{"step": 1}], "but to be followed on this machine"
    log.flush()
    log.flush()
    assert log.store.names("") == ["ledger/000000/00000001.jsonl"], "nothing to send is no segment"
    records, position = log.read()
    assert (records, position) == ([{"step": 1}], 1)
    log.append({"step": 2})
    log.append({"step": 3})
    log.flush()
    assert log.read(position) == ([{"step": 2}, {"step": 3}], 2)
    assert log.last() == {"step": 3}


@pytest.mark.parametrize("where", ["folder", "s3"])
def test_lines_that_are_appended_together_stay_together(
    tmp_path: Path, where: str, s3: type[FakeS3]
) -> None:
    store = Store(tmp_path / "run" if where == "folder" else "s3://bucket/run")
    old, new = (open_log(store, tmp_path / "here", "ledger") for _ in range(2))
    old.append({"step": 1}, {"step": 2})
    new.append({"step": 3}, {"step": 4})
    new.append()
    new.flush()
    old.flush()
    steps = [record["step"] for record in new.read()[0]]
    assert steps in ([1, 2, 3, 4], [3, 4, 1, 2])


@pytest.mark.usefixtures("s3")
def test_a_new_start_goes_on_after_the_segments_there_are(tmp_path: Path) -> None:
    for step in range(1, 13):
        log = segments(tmp_path)
        log.append({"step": step})
        log.flush()
    assert [record["step"] for record in log.read()[0]] == list(range(1, 13))
    assert log.store.names("ledger")[-1] == "ledger/000000/00000012.jsonl"


@pytest.mark.usefixtures("s3")
def test_a_writer_that_was_thought_dead_takes_no_number_from_another(tmp_path: Path) -> None:
    old, new = segments(tmp_path), segments(tmp_path)
    for log, step in ((old, 1), (new, 2), (old, 3), (new, 4)):
        log.append({"step": step})
        log.flush()
    assert [record["step"] for record in new.read()[0]] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("trouble", "sent"), [(None, [1, 3]), ("refused", [1, 3]), ("answer lost", [1, 2, 3])]
)
def test_what_is_forgotten_is_never_sent_unless_it_has_arrived(
    tmp_path: Path, s3: type[FakeS3], trouble: Trouble | None, sent: list[int]
) -> None:
    """By one who has it elsewhere, and looks at what is there before it writes it again."""
    log = segments(tmp_path)
    log.append({"step": 1})
    log.flush()
    log.append({"step": 2})
    if trouble is not None:
        s3.troubles.append(trouble)
        with pytest.raises(OSError, match="the"):
            log.flush()
    log.forget()
    assert log.last() == {"step": sent[-2]}
    log.append({"step": 3})
    log.flush()
    assert [record["step"] for record in log.read()[0]] == sent


def test_two_flushes_at_once_lose_no_line(tmp_path: Path, s3: type[FakeS3]) -> None:
    """The minute's and a save's: the second begins while the first is still on its way, and is
    refused when the first has just arrived."""
    log = segments(tmp_path)
    write, go_on, calls = s3.pipe_file, threading.Event(), []
    first = threading.Thread(target=log.flush)

    def pipe_file(self: FakeS3, path: str, value: bytes, **how: str) -> None:
        calls.append(value)
        if len(calls) == 1:
            go_on.wait(0.3)  # in vain, if the second one waits for this
        elif b'"step":2' in value and not go_on.is_set():
            go_on.set()
            first.join(10)
            raise OSError("the store does not answer")
        write(self, path, value, **how)

    s3.pipe_file = pipe_file  # type: ignore[method-assign, assignment]
    log.append({"step": 1})
    first.start()
    wait_for("the first request", lambda: calls)
    log.append({"step": 2})
    with pytest.raises(OSError, match="does not answer"):
        log.flush()
    log.flush()
    assert log.read() == ([{"step": 1}, {"step": 2}], 2)


TROUBLES: list[Trouble | None] = [None, "refused", "answer lost"]


@settings(deadline=None)
@given(
    batches=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    troubles=st.lists(st.sampled_from(TROUBLES), max_size=16),
)
def test_a_store_that_fails_for_a_while(
    tmp_path_factory: pytest.TempPathFactory, batches: list[int], troubles: list[Trouble | None]
) -> None:
    with fake_s3() as s3:
        s3.troubles.extend(troubles)
        log = segments(tmp_path_factory.mktemp("run"))
        appended = 0
        for count in batches:
            for _ in range(count):
                appended += 1
                log.append({"step": appended})
            try:
                log.flush()
            except OSError:
                seen = [record["step"] for record in log.read()[0]]
                assert seen == list(range(1, len(seen) + 1)), "no gap and no repeat in between"
            else:
                assert len(log.read()[0]) == appended, "flushed is in the store"
        s3.troubles.clear()
        log.flush()
        assert [record["step"] for record in log.read()[0]] == list(range(1, appended + 1))
        assert [record["step"] for record in log.here.read()[0]] == list(range(1, appended + 1))
