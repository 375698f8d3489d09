"""Blocks of a set in a store: kept within bounds, shared, never half; a store or a disk that fails
costs time and not training."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.clock import SystemClock
from headway.data.reading.block_cache import DIGEST_BYTES, BlockCache
from headway.data.reading.block_fetcher import Block, BlockContent, BlockMemory
from headway.data.reading.block_stream import BlockStream
from headway.data.reading.fetcher import NUM_THREADS, Fetcher
from headway.data.reading.look_ahead import BatchShare
from headway.data.reading.token_set import ReadOptions, TokenSet
from headway.data.retry import READ_SECONDS
from headway.errors import BadInput, RunFailed
from headway.state.store import Store
from support.clock import Patient
from support.fake_s3 import FakeS3, fake_s3
from support.full_disk import full_disk
from support.token_sets import as_version_2, copy_to, write_set
from support.waiting import wait_for

LENGTH = 50
BLOCK_TOKENS = 1000
NUM_BLOCKS = 32
BLOCK_FILE = 2 * (BLOCK_TOKENS + 1) + DIGEST_BYTES
SAMPLES = NUM_BLOCKS * BLOCK_TOKENS // LENGTH
TOKENS = np.arange(NUM_BLOCKS * BLOCK_TOKENS + 1) % 997


class Requests:
    """What is asked of the fake store, in order; `trouble` is raised instead of an answer."""

    def __init__(self, s3: type[FakeS3]) -> None:
        self.ranges: list[tuple[str, int]] = []
        self.trouble: Callable[[int], Exception | None] = lambda number: None
        read = s3.cat_file

        def answer(fs: object, path: str, start: Any = None, end: Any = None, **how: Any) -> bytes:
            if start is not None:
                self.ranges.append((path.rsplit("/", 1)[-1], start))
                if trouble := self.trouble(len(self.ranges)):
                    raise trouble
            return bytes(read(fs, path, start=start, end=end, **how))

        s3.cat_file = answer  # type: ignore[method-assign, assignment]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blocks of 1,000 tokens in shards that no block divides, mixed over four at a time. Of version
    2, which has no pages: what is asked for is blocks alone. `test_pages.py` has the others."""
    place = tmp_path_factory.mktemp("set")
    write_set(
        place,
        [(TOKENS.tolist(), None)],
        vocab_size=1000,
        shard_tokens=3333,
        block_tokens=BLOCK_TOKENS,
        window_blocks=4,
    )
    as_version_2(place)
    return place


@pytest.fixture
def requests(folder: Path) -> Iterator[Requests]:
    with fake_s3() as s3:
        copy_to("s3://bucket/set", folder)
        yield Requests(s3)


def opened(cache: Path, **how: Any) -> TokenSet:
    return TokenSet.open(Store("s3://bucket/set"), ReadOptions(cache=cache, **how))


def announce(tokens: TokenSet, first: int, count: int) -> None:
    """A machine that reads whole batches has reached the one at `first`."""
    tokens.prefetch(3, LENGTH, first // count, BatchShare(count, 0, count, 1.0))


def check(tokens: TokenSet, samples: np.ndarray) -> None:
    rows = tokens.read(samples, LENGTH).tokens
    starts = samples[:, None] * LENGTH
    assert np.array_equal(rows, TOKENS[starts + np.arange(LENGTH + 1)])


def blocks_in(cache: Path) -> list[Path]:
    return [path for path in (cache / "blocks").glob("*/*") if path.parent.name != "readers"]


def fetchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fetcher"]


# --- reading


def test_a_block_is_asked_for_once_and_no_more_than_it(requests: Requests, tmp_path: Path) -> None:
    tokens = opened(tmp_path)
    in_one_block = np.arange(20, 40)
    check(tokens, in_one_block)
    check(tokens, in_one_block)
    assert requests.ranges == [("00000.tokens", 2000)], "the last sample needs no second block"
    check(tokens, np.arange(60, 80))
    assert requests.ranges[1:] == [("00000.tokens", 6000), ("00001.tokens", 0)], "over a border"
    tokens.close()


def test_what_is_in_the_cache_is_not_asked_for_by_the_next(
    requests: Requests, tmp_path: Path
) -> None:
    for _ in range(2):
        tokens = opened(tmp_path)
        check(tokens, np.arange(SAMPLES))
        tokens.close()
    assert len(set(requests.ranges)) == len(requests.ranges)
    assert len(blocks_in(tmp_path)) == NUM_BLOCKS


def test_windows_are_fetched_before_they_are_needed(requests: Requests, tmp_path: Path) -> None:
    tokens = opened(tmp_path)
    order = tokens.order(3, LENGTH)
    announce(tokens, 0, 8)
    wait_for("two windows", lambda: len(blocks_in(tmp_path)) == 8)
    asked = len(requests.ranges)
    check(tokens, order.at(0, 160)[1])
    announce(tokens, 40, 8)
    assert len(requests.ranges) == asked, "all was there"
    announce(tokens, 80, 8)
    wait_for("the third window", lambda: len(blocks_in(tmp_path)) == 12)
    tokens.close()


def test_a_batch_larger_than_a_window_is_fetched_with_the_window_after_it(
    requests: Requests, tmp_path: Path
) -> None:
    tokens = opened(tmp_path)
    announce(tokens, 0, 100)
    wait_for("three windows", lambda: len(blocks_in(tmp_path)) == 12)
    tokens.close()


def test_processes_of_a_machine_start_at_different_positions(
    requests: Requests, tmp_path: Path
) -> None:
    begins = []
    for rank in range(8):
        stream = opened(tmp_path, rank=rank)._stream
        assert isinstance(stream, BlockStream)
        row = [Block(stream, number, 11, None) for number in range(64)]
        rotated = stream._rotated(row)
        assert set(rotated) == set(row)
        begins.append(rotated[0].begin)
    between = np.diff(sorted([*begins, begins[0] + 64]))
    assert between.min() >= 3, "each has something to itself before it meets the next"


def test_two_processes_share_what_they_fetch(folder: Path, tmp_path: Path) -> None:
    """Real ones, at the same time; each counts its requests."""
    script = (
        "import sys, time, numpy as np\nfrom pathlib import Path\n"
        "sys.path[:0] = sys.argv[4:]\n"
        "from headway.data.reading.token_set import ReadOptions, TokenSet\n"
        "from headway.state.store import Store\n"
        "from support.fake_s3 import fake_s3\nfrom support.token_sets import copy_to\n"
        "with fake_s3() as s3:\n"
        "    copy_to('s3://bucket/set', Path(sys.argv[1]))\n"
        "    read, asked = s3.cat_file, []\n"
        "    def answer(*args, **how):\n"
        "        if how.get('start') is not None:\n"
        "            asked.append(1)\n"
        "            time.sleep(0.05)\n"
        "        return read(*args, **how)\n"
        "    s3.cat_file = answer\n"
        "    reading = ReadOptions(cache=Path(sys.argv[2]), rank=int(sys.argv[3]))\n"
        "    tokens = TokenSet.open(Store('s3://bucket/set'), reading)\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    rows = tokens.read(np.arange(640), 50).tokens\n"
        "    tokens.close()\n"
        "    print(len(asked), int(rows.sum()))\n"
    )
    command = [sys.executable, "-c", script, str(folder), str(tmp_path)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60)[0].split() for process in processes]
    alone = NUM_BLOCKS + 9  # nine blocks lie in two shards
    assert sum(int(asked) for asked, _ in answers) < 1.6 * alone
    expected = sum(int(TOKENS[i * LENGTH : i * LENGTH + LENGTH + 1].sum()) for i in range(SAMPLES))
    assert [int(total) for _, total in answers] == [expected] * 2


# --- the cache's bounds


def test_the_bound_is_held_and_the_windows_in_use_stay(requests: Requests, tmp_path: Path) -> None:
    bound = 10 * BLOCK_FILE
    tokens = opened(tmp_path, cache_bytes=bound)
    order = tokens.order(3, LENGTH)
    announce(tokens, 0, 8)
    wait_for("two windows", lambda: len(blocks_in(tmp_path)) == 8)
    in_use = set(blocks_in(tmp_path))
    other = opened(tmp_path, cache_bytes=bound)
    for first in range(0, SAMPLES, 20):
        check(other, np.arange(first, first + 20))
        assert sum(path.stat().st_size for path in blocks_in(tmp_path)) <= bound
        assert in_use <= set(blocks_in(tmp_path)), "a window of the first reader was removed"
    asked = len(requests.ranges)
    check(tokens, order.at(0, 160)[1])
    assert len(requests.ranges) == asked
    other.close()
    tokens.close()


def test_the_least_recently_used_is_evicted_first(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 4 * (100 + DIGEST_BYTES))
    for number in range(4):
        assert cache.put(f"set/{number}", bytes(100))
        os.utime(tmp_path / "set" / str(number), (number, number))
    assert cache.find("set/0", 100) is not None
    assert cache.put("set/4", bytes(100))
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ["0", "3", "4"], (
        "the two oldest: room is made for a little more than is asked for"
    )
    cache.close()


def test_what_a_dead_process_used_may_be_evicted(tmp_path: Path) -> None:
    bound = 2 * (100 + DIGEST_BYTES)
    dead, living = BlockCache(tmp_path, bound), BlockCache(tmp_path, bound)
    for name in ("set/0", "set/1"):
        assert dead.put(name, bytes(100))
    dead.protect(["set/0", "set/1"])
    assert not living.put("set/2", bytes(100)), "no room that nobody needs"
    assert dead._lease is not None
    fcntl.flock(dead._lease, fcntl.LOCK_UN)  # as the kernel does when a process ends
    assert living.put("set/2", bytes(100))
    living.close()
    assert os.listdir(tmp_path / "readers") == []


def test_a_cache_too_small_for_two_windows_is_reported_once_and_training_continues(
    requests: Requests, tmp_path: Path
) -> None:
    said: list[str] = []
    tokens = opened(tmp_path, cache_bytes=3 * BLOCK_FILE, warn=said.append)
    order = tokens.order(3, LENGTH)
    for first in range(0, SAMPLES, 40):
        announce(tokens, first, 40)
        check(tokens, order.at(first, 40)[1])
        # Counted, not measured: the fetching thread may remove one between its name and its size.
        # A listing may show both names of a file that is renamed meanwhile, but not three times.
        assert min(len(blocks_in(tmp_path)) for _ in range(3)) <= 3
    (words,) = said
    assert "blocks of s3://bucket/set are kept in memory" in words
    assert f"blocks in use fill the cache of {3 * BLOCK_FILE} bytes" in words
    tokens.close()


# --- never half


def test_a_process_killed_while_writing_leaves_no_partial_file(
    requests: Requests, tmp_path: Path
) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\n"
        "from headway.data.reading.block_cache import BlockCache\n"
        "Path.replace = lambda *_: os._exit(9)\n"
        "BlockCache(Path(sys.argv[1]), 10**6).put('set/1', b'half')\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)])
    assert killed.returncode == 9
    assert [path.name[:2] for path in (tmp_path / "set").iterdir()] == [".1"]
    cache = BlockCache(tmp_path, 4 + DIGEST_BYTES)
    assert cache.find("set/1", 4) is None
    assert cache.put("set/1", b"full"), "what it had reserved is free again"
    found = cache.find("set/1", 4)
    assert found is not None
    assert found.tobytes() == b"full"
    assert os.listdir(tmp_path / "set") == ["1"]
    cache.close()


@pytest.mark.parametrize("content", [bytes(BLOCK_FILE), b"", b"x" * 7])
def test_what_a_power_cut_left_is_fetched_again(
    requests: Requests, tmp_path: Path, content: bytes
) -> None:
    tokens = opened(tmp_path)
    check(tokens, np.arange(20))
    tokens.close()
    (block,) = blocks_in(tmp_path)
    block.write_bytes(content)
    tokens = opened(tmp_path)
    check(tokens, np.arange(20))
    tokens.close()
    assert len(requests.ranges) == 2


def test_a_lost_usage_count_is_rebuilt(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 3 * (100 + DIGEST_BYTES))
    for number in range(9):
        if number % 2:
            (tmp_path / "usage").write_text("")
        assert cache.put(f"set/{number}", bytes(100))
        assert len(os.listdir(tmp_path / "set")) <= 3
    cache.close()


# --- a disk that fails


def test_a_full_disk_costs_memory_and_not_training(requests: Requests, tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk", free_bytes=64 * 1024) as disk:
        (disk / "others").write_bytes(bytes(60 * 1024))
        said: list[str] = []
        tokens = opened(disk, warn=said.append)
        check(tokens, np.arange(SAMPLES))
        check(tokens, np.arange(SAMPLES))
        assert len(requests.ranges) == len(set(requests.ranges)), "memory holds them"
        assert len(said) == 1
        tokens.close()


def test_some_of_the_disk_is_left_to_others(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk", free_bytes=2**20) as disk:
        cache = BlockCache(disk, 2**40)
        for number in range(100):
            assert cache.put(f"set/{number}", bytes(40_000)), "older ones go"
        state = os.statvfs(disk)
        assert state.f_bavail * state.f_frsize >= 2**20 // 20
        cache.close()


def test_a_folder_that_cannot_be_created(requests: Requests, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is where the folder should be")
    said: list[str] = []
    tokens = opened(tmp_path / "cache", warn=said.append)
    announce(tokens, 0, 8)
    check(tokens, np.arange(SAMPLES))
    assert len(said) == 1
    assert "are kept in memory" in said[0]
    tokens.close()


def test_memory_is_bounded_too(requests: Requests, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is where the folder should be")
    tokens = opened(tmp_path / "cache", memory_bytes=5 * BLOCK_FILE, warn=lambda words: None)
    order = tokens.order(3, LENGTH)
    for first in range(0, SAMPLES, 40):
        announce(tokens, first, 40)
        check(tokens, order.at(first, 40)[1])
    tokens.close()


def test_prefetches_do_not_evict_what_is_needed(requests: Requests, tmp_path: Path) -> None:
    held = BlockMemory(max_maps=10, max_bytes=300)
    stream = opened(tmp_path)._stream
    assert isinstance(stream, BlockStream)
    block = [Block(stream, number, 11, None) for number in range(9)]
    held.need_only(block[:4])
    full = BlockContent(np.zeros(40, np.uint16), np.zeros(20, np.uint8))
    assert held.keep(block[8], full, is_prefetch=False)
    assert all(held.keep(b, full, is_prefetch=True) for b in block[:3]), "what nobody needs goes"
    assert held.get(block[8]) is None
    assert not held.keep(block[3], full, is_prefetch=True)
    assert held.keep(block[4], full, is_prefetch=False), "what is waited for has its place"
    assert [held.get(b) is not None for b in block[:5]] == [False, True, True, False, True]


# --- a store that fails


def test_a_store_that_is_unavailable_for_a_while_costs_only_time(
    requests: Requests, tmp_path: Path
) -> None:
    clock = Patient()
    tokens = opened(tmp_path, clock=clock)
    requests.trouble = lambda number: OSError("503 slow down") if number <= 60 else None
    check(tokens, np.arange(SAMPLES))
    assert 0 < clock.passed < 60
    tokens.close()


def test_failed_prefetches_are_retried(requests: Requests, tmp_path: Path) -> None:
    tokens = opened(tmp_path)
    requests.trouble = lambda number: OSError("503 slow down") if number <= 3 else None
    announce(tokens, 0, 8)
    wait_for("two windows", lambda: len(blocks_in(tmp_path)) == 8)
    tokens.close()


def test_a_store_that_stays_unavailable_is_named_with_the_reason(
    requests: Requests, tmp_path: Path
) -> None:
    clock = Patient()
    tokens = opened(tmp_path, clock=clock)
    requests.trouble = lambda number: OSError("503 slow down")
    with pytest.raises(RunFailed, match=r"s3://bucket/set could not be read for \d+ s: 503") as e:
        check(tokens, np.arange(20))
    assert READ_SECONDS - 10 < clock.passed <= READ_SECONDS
    assert e.value.hint
    tokens.close()


@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        (PermissionError("Access Denied"), "s3://bucket/set cannot be read: Access Denied"),
        (FileNotFoundError("no key"), "s3://bucket/set/shards/00000.tokens is missing"),
    ],
)
def test_what_will_not_get_better_is_not_waited_for(
    requests: Requests, tmp_path: Path, trouble: Exception, says: str
) -> None:
    clock = Patient()
    tokens = opened(tmp_path, clock=clock)
    requests.trouble = lambda number: trouble
    with pytest.raises(BadInput, match=says):
        check(tokens, np.arange(20))
    assert clock.passed == 0
    tokens.close()


def test_a_file_that_has_become_shorter_is_named(requests: Requests, tmp_path: Path) -> None:
    tokens = opened(tmp_path)
    Store("s3://bucket/set").write("shards/00000.tokens", bytes(100))
    with pytest.raises(BadInput, match=r"00000\.tokens ends before byte 2002"):
        check(tokens, np.arange(20))
    tokens.close()


def test_our_own_mistakes_are_not_swallowed(requests: Requests, tmp_path: Path) -> None:
    tokens = opened(tmp_path)
    requests.trouble = lambda number: ZeroDivisionError("ours")
    announce(tokens, 0, 8)
    with pytest.raises(ZeroDivisionError, match="ours"):
        check(tokens, np.arange(20))
    tokens.close()


# --- threads


def test_no_thread_is_left_after_closing(requests: Requests, tmp_path: Path) -> None:
    before = len(fetchers())
    tokens = opened(tmp_path)
    assert len(fetchers()) == before, "opening starts none"
    announce(tokens, 0, 8)
    check(tokens, np.arange(20))
    assert len(fetchers()) > before
    assert all(thread.daemon for thread in fetchers()), "none keeps a process from ending"
    tokens.close()
    assert len(fetchers()) == before
    assert os.listdir(tmp_path / "blocks" / "readers") == []


def test_closing_ends_the_wait_of_others(requests: Requests, tmp_path: Path) -> None:
    tokens = opened(tmp_path)
    requests.trouble = lambda number: OSError("503 slow down")
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            tokens.read(np.arange(20), LENGTH)
        except RunFailed as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_for("a request", lambda: requests.ranges)
    tokens.close()
    waiting.join(timeout=5)
    assert not waiting.is_alive()
    assert len(ended) == 1


def test_what_is_waited_for_comes_before_what_is_prefetched() -> None:
    gate = threading.Event()
    brought: list[int] = []

    def fetch(item: int, is_prefetch: bool) -> bool:
        brought.append(item)
        gate.wait(10)
        return True

    fetcher: Fetcher[int] = Fetcher(fetch, SystemClock())
    fetcher.prefetch(range(100))
    wait_for("as many as can be on their way", lambda: len(brought) == NUM_THREADS)
    waiting = threading.Thread(target=fetcher.wait_for, args=([999],))
    waiting.start()
    wait_for("the wait", lambda: 999 in fetcher._pending)
    gate.set()
    waiting.join(timeout=10)
    assert brought.index(999) == NUM_THREADS, "right after those that were on their way"
    fetcher.close()
