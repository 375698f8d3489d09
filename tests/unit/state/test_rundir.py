"""The run directory: made, opened, refused; who holds it; lines that survive a crash."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.clock import SystemClock
from headway.errors import BadInput, Exit, NotFound, StillRunning
from headway.state.rundir import JsonLines, RunDirectory, write_whole
from support.waiting import wait_for


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "runs" / "it", SystemClock())


def test_what_is_made_can_be_opened(directory: RunDirectory) -> None:
    assert RunDirectory.open(directory.path).name == "it"
    before = (directory.path / "run.json").read_text()
    assert RunDirectory.create(directory.path, SystemClock()).path == directory.path
    assert (directory.path / "run.json").read_text() == before, "a second start makes nothing anew"
    assert directory.events.all() == directory.logs() == []


def test_no_run_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        RunDirectory.open(tmp_path / "nowhere")
    assert (caught.value.exit_code, caught.value.hint) == (
        Exit.NOT_FOUND,
        "headway list shows what there is",
    )


def test_a_run_of_another_version(directory: RunDirectory) -> None:
    record = json.loads((directory.path / "run.json").read_text())
    (directory.path / "run.json").write_text(json.dumps({**record, "version": 2}))
    with pytest.raises(BadInput, match="has run directory version 2, and this headway knows 1"):
        RunDirectory.open(directory.path)
    with pytest.raises(BadInput):
        RunDirectory.create(directory.path, SystemClock())


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"3"])
def test_a_damaged_record(directory: RunDirectory, content: bytes) -> None:
    (directory.path / "run.json").write_bytes(content)
    with pytest.raises(BadInput, match=r"run\.json is damaged"):
        RunDirectory.open(directory.path)


def test_a_missing_or_damaged_spec(directory: RunDirectory) -> None:
    with pytest.raises(NotFound, match="run it was never started"):
        directory.read_spec()
    (directory.path / "spec.json").write_text('{"version": 1}')
    with pytest.raises(BadInput, match=r"spec\.json is damaged"):
        directory.read_spec()


def test_logs_in_order(directory: RunDirectory) -> None:
    for node, rank in ((1, 0), (0, 1), (0, 0)):
        directory.log(node, rank).touch()
    assert [log.name for log in directory.logs()] == [
        "node-0.rank-0.log",
        "node-0.rank-1.log",
        "node-1.rank-0.log",
    ]


# --- the lock

HOLDER = """\
import sys
from pathlib import Path
from headway.state.rundir import RunDirectory
with RunDirectory(Path(sys.argv[1])).held():
    print("held", flush=True)
    sys.stdin.read()
"""


def start_holder(directory: RunDirectory) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_one_process_runs_it_and_others_see_that(directory: RunDirectory) -> None:
    assert not directory.is_running()
    with start_holder(directory) as holder:
        assert directory.is_running()
        with pytest.raises(StillRunning, match="run it is going on already") as caught:
            directory.held().__enter__()
        assert (caught.value.exit_code, caught.value.hint) == (5, "headway status it")
        assert directory.is_running(), "to be refused does not end it"
        holder.communicate("")
    assert not directory.is_running()
    with directory.held():
        assert RunDirectory(directory.path).is_running()


def test_a_holder_that_is_killed_lets_go(directory: RunDirectory) -> None:
    with start_holder(directory) as holder:
        holder.kill()
    assert not directory.is_running()
    with directory.held():
        pass


def test_looking_writes_nothing(directory: RunDirectory) -> None:
    before = sorted(directory.path.rglob("*"))
    directory.is_running()
    directory.events.all()
    directory.metrics.last()
    assert sorted(directory.path.rglob("*")) == before


# --- lines


@pytest.fixture
def lines(tmp_path: Path) -> JsonLines:
    return JsonLines(tmp_path / "lines.jsonl")


def test_no_file_is_no_lines(lines: JsonLines) -> None:
    assert (lines.all(), lines.last(), lines.read(7)) == ([], None, ([], 7))
    lines.rewind(3)
    assert not lines.path.exists()


def test_a_reader_follows_by_offset(lines: JsonLines) -> None:
    lines.append({"step": 1})
    records, offset = lines.read()
    assert records == [{"step": 1}]
    assert lines.read(offset) == ([], offset)
    lines.append({"step": 2})
    assert lines.read(offset)[0] == [{"step": 2}]


def test_half_a_line_waits_for_its_rest(lines: JsonLines) -> None:
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
    lines: JsonLines, torn: bytes
) -> None:
    lines.append({"step": 1})
    with lines.path.open("ab") as file:
        file.write(torn)
    lines.append({"step": 2})
    lines.append({"step": 3})
    assert [record["step"] for record in lines.all()] == [1, 2, 3]
    assert lines.last() == {"step": 3}
    lines.rewind(2)
    assert lines.path.read_bytes() == b'{"step":1}\n{"step":2}\n'


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    block_bytes=st.integers(1, 100),
    torn=st.binary(max_size=5).filter(lambda data: b"\n" not in data and b"\r" not in data),
)
def test_the_last_line_whatever_the_block(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], block_bytes: int, torn: bytes
) -> None:
    lines = JsonLines(tmp_path_factory.mktemp("lines") / "lines.jsonl")
    for step, size in enumerate(sizes):
        lines.append({"step": step, "words": "x" * size})
    with lines.path.open("ab") as file:
        file.write(torn)
    assert lines.last(block_bytes) == lines.all()[-1] == {"step": step, "words": "x" * size}


@given(steps=st.lists(st.integers(0, 50)), step=st.integers(0, 50))
def test_rewinding_keeps_what_is_not_done_again(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], step: int
) -> None:
    lines = JsonLines(tmp_path_factory.mktemp("lines") / "lines.jsonl")
    for known in steps:
        lines.append({"step": known})
    lines.rewind(step)
    assert [record["step"] for record in lines.all()] == [s for s in steps if s <= step]
    lines.append({"step": step + 1})
    assert lines.last() == {"step": step + 1}


WRITER = """\
import sys
from pathlib import Path
from headway.state.rundir import JsonLines
lines = JsonLines(Path(sys.argv[1]))
for number in range(300):
    lines.append({"writer": sys.argv[2], "number": number, "words": "x" * number})
"""


def test_lines_of_two_processes_never_mix(lines: JsonLines) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(lines.path), name]) for name in "ab"
    ]
    seen: list[dict[str, Any]] = []
    offset = 0

    def look() -> bool:
        nonlocal offset
        found, offset = lines.read(offset)
        seen.extend(found)
        return all(writer.poll() is not None for writer in writers)

    wait_for("both writers", look)
    look()
    for name in "ab":
        assert [line["number"] for line in seen if line["writer"] == name] == list(range(300))


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_whole(path, "old")
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert [item.name for item in tmp_path.iterdir()] == ["file.json"]
