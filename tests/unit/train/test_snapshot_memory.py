"""Parts of snapshots in a node's memory, and how another node reads them."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.launch.folder_in_memory import folder_in_memory
from headway.memory_limits import Memory
from headway.train import snapshot_server
from headway.train.snapshot_memory import NoRoom, PartFacts, PartFile, SnapshotMemory
from headway.train.snapshot_server import (
    MOST_UNPROVEN,
    REQUEST,
    PartMissing,
    PartReader,
    PartStore,
    SnapshotServer,
    reachable_host,
    yield_to_training,
)
from support.waiting import wait_for

TOKEN = b"0123456789abcdef"


class Roomy(Memory):
    def __init__(self, free: int = 2**40, limit: int = 0) -> None:
        super().__init__()
        self._free, self._limit = free, limit

    def available_bytes(self) -> int:
        return self._free

    def limit_bytes(self) -> int:
        return self._limit


def facts(step: int, part: int = 0) -> PartFacts:
    return PartFacts((step, 2), part, 2, "{}", {"step": step})


def filled(
    memory: SnapshotMemory, step: int, content: bytes, needed: int | None = None
) -> PartFile:
    file = memory.replaceable("own", None if needed is None else (needed, 2))
    file.resize(len(content), memory.memory)
    file.mapped()[:] = content
    file.complete(facts(step))
    return file


@pytest.fixture
def memory(tmp_path: Path) -> SnapshotMemory:
    return SnapshotMemory(tmp_path / "node", Roomy())


def test_a_successor_finds_what_is_complete(memory: SnapshotMemory, tmp_path: Path) -> None:
    filled(memory, 10, b"ten")
    filled(memory, 20, b"twenty", needed=10)
    assert {one.name for one in memory.held()} == {(10, 2), (20, 2)}
    begun = memory.replaceable("own", (20, 2))  # and its process dies
    assert begun.path.read_bytes() == b"ten", "the older one is replaced"
    after = SnapshotMemory(tmp_path / "node", Roomy())
    assert [one.name for one in after.held()] == [(20, 2)]
    found = after.find((20, 2), 0)
    assert found is not None
    assert found.path.read_bytes() == b"twenty"
    assert found.facts == facts(20)


def test_one_that_was_cut_off_while_it_was_described_is_none(tmp_path: Path) -> None:
    memory = SnapshotMemory(tmp_path, Roomy())
    file = filled(memory, 10, b"ten")
    record = file.path.with_suffix(".json")
    record.write_bytes(record.read_bytes()[:-5])
    assert SnapshotMemory(tmp_path, Roomy()).held() == []


def test_too_little_memory_is_refused_with_the_bytes(tmp_path: Path) -> None:
    memory = SnapshotMemory(tmp_path, Roomy(free=2**20))
    file = memory.replaceable("own", None)
    with pytest.raises(NoRoom, match=r"3\.0 MiB more in .* are needed and 1\.0 MiB are free"):
        file.resize(3 * 2**20, memory.memory)
    assert file.size == 0
    file.resize(2**20, memory.memory)
    assert os.stat(file.path).st_blocks * 512 >= 2**20, "reserved, not only promised"


def test_some_memory_is_left_to_everything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a pod's limit, or the worker would be killed; and of /dev/shm, which NCCL uses, too."""
    file = SnapshotMemory(tmp_path / "node").replaceable("own", None)
    wanted = 100 * 2**20
    with pytest.raises(NoRoom, match=r"97\.6 MiB are free besides 102\.4 MiB that are left alone"):
        file.resize(wanted, Roomy(free=200 * 2**20, limit=2**30))
    filesystem = SimpleNamespace(f_frsize=2**20, f_bavail=200, f_blocks=2**10)
    monkeypatch.setattr(os, "statvfs", lambda _: filesystem)
    with pytest.raises(NoRoom, match=r"97\.6 MiB are free besides 102\.4 MiB that are left alone"):
        file.resize(wanted, Roomy())
    filesystem.f_bavail, filesystem.f_blocks = 2**20 + 50, 2**20
    with pytest.raises(NoRoom, match=r"90\.0 MiB are free besides 110\.0 MiB"):
        file.resize(wanted, Roomy(free=200 * 2**20, limit=100 * 2**20), spare=100 * 2**20)
    file.resize(wanted, Roomy(free=2**40, limit=2**42))


def test_memory_is_reserved_again_after_a_worker_that_died_while_it_reserved_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor would be ended by the first page that is missing."""

    def die(*_: int) -> None:
        raise SystemExit

    file = SnapshotMemory(tmp_path / "node", Roomy()).replaceable("own", None)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", die)
        with pytest.raises(SystemExit):
            file.resize(2**20, Roomy())
    after = SnapshotMemory(tmp_path / "node", Roomy()).replaceable("own", None)
    with pytest.raises(NoRoom):
        after.resize(2**20, Roomy(free=1000))
    after.resize(2**20, Roomy())
    assert os.stat(after.path).st_blocks * 512 >= 2**20
    after.resize(2**10, Roomy(free=0, limit=2**30))
    assert after.size == 2**10, "smaller again"


def test_ranks_of_a_node_do_not_reserve_the_same_memory_twice(tmp_path: Path) -> None:
    size, both_look = 2**20, threading.Barrier(2)

    class OneFits(Roomy):
        def available_bytes(self) -> int:
            used = sum(file.stat().st_size for file in tmp_path.glob("*/*.safetensors"))
            with suppress(threading.BrokenBarrierError):
                both_look.wait(0.5)
            return size - used

    refused = []

    def reserve(rank: int) -> None:
        memory = SnapshotMemory(tmp_path / f"rank-{rank}", OneFits())
        try:
            memory.replaceable("own", None).resize(size, memory.memory)
        except NoRoom as error:
            refused.append(error)

    ranks = [threading.Thread(target=reserve, args=(rank,)) for rank in range(2)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    assert len(refused) == 1


def test_memory_that_is_left_below_the_limit_of_a_pod(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:  8000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/pod\n")
    group = tmp_path / "sys/fs/cgroup/pod"
    group.mkdir(parents=True)
    assert Memory(tmp_path).available_bytes() == 8000 * 1024
    for name, text in {
        "memory.max": "5000000\n",
        "memory.current": "3000000\n",
        "memory.stat": "anon 1\ninactive_file 500000\n",
    }.items():
        (group / name).write_text(text)
    assert Memory(tmp_path).available_bytes() == 2_500_000
    (group / "memory.max").write_text("max\n")
    assert Memory(tmp_path).available_bytes() == 8000 * 1024


def test_a_part_is_read_from_another_node(memory: SnapshotMemory) -> None:
    content = os.urandom(3_000_000)
    filled(memory, 10, content)
    server = SnapshotServer("127.0.0.1", memory.find)
    server.token = TOKEN
    reader = PartReader(server.address, TOKEN)
    assert reader.facts((10, 2), 0) == facts(10)
    first, second = bytearray(1_000_000), bytearray(500_000)
    assert reader.read_into((10, 2), 0, 7, [memoryview(first), memoryview(second)]) == 1_500_000
    assert first + second == content[7:1_500_007]
    end = bytearray(100)
    assert reader.read_into((10, 2), 0, len(content) - 40, [memoryview(end)]) == 40
    assert bytes(end[:40]) == content[-40:]
    for name, part in (((20, 2), 0), ((10, 1), 0), ((10, 2), 1)):
        with pytest.raises(PartMissing, match=f"part {part} of step {name[0]}"):
            reader.facts(name, part)
    assert reader.facts((10, 2), 0) == facts(10), "the connection lasts"
    server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority")
def test_threads_of_snapshots_leave_the_cores_to_training() -> None:
    found = []

    def look() -> None:
        yield_to_training()
        found.append(os.sched_getscheduler(threading.get_native_id()))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [os.SCHED_IDLE]
    assert os.sched_getscheduler(0) != os.SCHED_IDLE, "training's own are as they were"


def test_nobody_without_the_token_reads_anything(memory: SnapshotMemory) -> None:
    filled(memory, 10, b"ten")
    server = SnapshotServer("127.0.0.1", memory.find)
    for token in (bytes(16), TOKEN):  # before the workers have agreed on one
        with pytest.raises(ConnectionError):
            PartReader(server.address, token).facts((10, 2), 0)
    server.token = TOKEN
    with pytest.raises(ConnectionError):
        PartReader(server.address, bytes(16)).facts((10, 2), 0)
    server.close()


def test_a_server_outlives_an_error_of_a_connection(
    memory: SnapshotMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(memory, 10, b"ten")
    accept, failures = socket.socket.accept, iter(range(2))

    def fail_twice(self: socket.socket) -> tuple[socket.socket, object]:
        if next(failures, None) is not None:
            raise OSError(errno.EMFILE, "too many open files")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", fail_twice)
    server = SnapshotServer("127.0.0.1", memory.find)
    server.token = TOKEN
    assert PartReader(server.address, TOKEN).facts((10, 2), 0) == facts(10)
    server.close()


def test_connections_without_the_token_take_few_threads(memory: SnapshotMemory) -> None:
    filled(memory, 10, b"ten")
    before = threading.active_count()
    server = SnapshotServer("127.0.0.1", memory.find)
    server.token = TOKEN
    readers = [PartReader(server.address, TOKEN) for _ in range(MOST_UNPROVEN)]
    for reader in readers:
        reader.facts((10, 2), 0)
    idle = [socket.create_connection(server.address) for _ in range(MOST_UNPROVEN + 20)]
    for reader in readers:
        assert reader.facts((10, 2), 0) == facts(10), "those that have shown it are not held up"
    assert threading.active_count() - before <= 1 + len(readers) + MOST_UNPROVEN
    for connection in idle:
        connection.close()
    assert PartReader(server.address, TOKEN).facts((10, 2), 0) == facts(10)
    server.close()


def test_a_node_that_is_gone_is_a_part_that_cannot_be_read(memory: SnapshotMemory) -> None:
    server = SnapshotServer("127.0.0.1", memory.find)
    server.close()
    store = PartStore((10, 2), memory.find, (server.address,), TOKEN)
    with pytest.raises(OSError, match="refused") as error:
        store.read_into("any/rank-0.safetensors", 0, [memoryview(bytearray(3))])
    assert error.value.errno == 5
    filled(memory, 10, b"ten")
    place = bytearray(3)
    assert store.read_into("any/rank-0.safetensors", 0, [memoryview(place)]) == 3, "read here"
    assert place == b"ten"


def test_a_node_that_says_nothing_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot_server, "IDLE_SECONDS", 1.0)
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, pytest.raises(TimeoutError, match="nothing came for 1 s"):
        PartReader(silent.getsockname(), TOKEN).facts((10, 2), 0)


def test_a_reader_that_takes_nothing_is_left(
    memory: SnapshotMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_server, "IDLE_SECONDS", 1.0)
    filled(memory, 10, bytes(64_000_000))
    server = SnapshotServer("127.0.0.1", memory.find)
    server.token = TOKEN
    before = threading.active_count()
    with socket.create_connection(server.address) as stuck:
        stuck.sendall(REQUEST.pack(TOKEN, 10, 2, 0, 0, 64_000_000))
        wait_for("its thread", lambda: threading.active_count() > before, 30)
        wait_for("its end", lambda: threading.active_count() == before, 30)
    server.close()


def test_the_address_of_a_machine_is_the_one_that_reaches_the_coordinator() -> None:
    assert reachable_host(None) == "127.0.0.1"
    assert reachable_host("127.0.0.1:7700") == "127.0.0.1"


def test_a_launcher_removes_its_folder_and_that_of_one_that_was_killed(tmp_path: Path) -> None:
    with folder_in_memory("runs/it", tmp_path) as folder:
        assert folder is not None
        (folder / "node-0").mkdir()
        with folder_in_memory("runs/other", tmp_path) as other:
            assert other != folder
        with folder_in_memory("runs/it", tmp_path) as again:  # after a SIGKILL
            assert again == folder
            assert list(folder.iterdir()) == []
    assert list(tmp_path.iterdir()) == []
    with folder_in_memory("runs/it", tmp_path / "none") as nothing:
        assert nothing is None
