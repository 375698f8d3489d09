"""The collectives of one group: what they come to, and that a lost peer is told from a mistake."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from headway.errors import Exit, PeerLost, RunFailed
from headway.train import collectives
from headway.train.collectives import WorkerGroup, forming_group, is_lost_peer
from headway.train.world import WorldShape, form_world
from support.stolen_time import Stopwatch
from support.together import Died, outcomes, together


def test_what_the_collectives_come_to() -> None:
    def work(group: WorkerGroup) -> tuple[list[float], list[list[int]], list[int]]:
        first, second = torch.tensor([1.0, group.rank]), torch.tensor([2.0])
        pending = [group.start_all_reduce(first), group.start_all_reduce(second)]
        for one in pending:
            one.wait()
        gathered = [part.tolist() for part in group.all_gather(torch.tensor([group.rank, 7]))]
        sent = torch.full((2,), group.rank)
        group.broadcast(sent, source=2)
        return [*first.tolist(), *second.tolist()], gathered, sent.tolist()

    expected = ([3.0, 3.0, 6.0], [[0, 7], [1, 7], [2, 7]], [2, 2])
    assert together(3, work) == [expected] * 3


def test_a_peer_that_dies_is_lost_in_whatever_one_waits_for() -> None:
    tried: dict[int, str] = {}

    def work(group: WorkerGroup) -> None:
        tensor = torch.ones(4)
        if group.rank == 2:
            raise Died
        if group.rank == 0:
            tried[0] = "gather"
            group.all_gather(tensor)
        tried[1] = "broadcast"
        group.broadcast(tensor, source=2)

    first, second, _ = outcomes(3, work)
    assert isinstance(first, PeerLost), tried
    assert isinstance(second, PeerLost), tried


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_peer_that_hangs_is_lost_after_the_timeout(order: tuple[int, int]) -> None:
    """Several sums may be on their way, and fail in other words each."""
    is_over = threading.Event()

    def work(group: WorkerGroup) -> list[str]:
        if group.rank == 1:
            is_over.wait(20)
            return []
        pending = [group.start_all_reduce(torch.ones(4)) for _ in range(2)]
        lost = []
        for index in order:
            try:
                pending[index].wait()
            except PeerLost as error:
                lost.append(error.message)
        is_over.set()
        return lost

    found, _ = outcomes(2, work, timedelta(seconds=0.3))
    assert isinstance(found, list), found
    assert len(found) == 2
    assert all(message.startswith("another worker was lost: ") for message in found)


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (PeerLost("another worker went away"), True),
        (dist.DistBackendError("NCCL error"), True),
        (dist.DistNetworkError("The client socket has timed out"), True),
        (RuntimeError("[/gloo/transport/tcp/pair.cc:545] Connection reset by peer [::1]:5"), True),
        (RuntimeError("Application timeout caused pair closure"), True),
        (RuntimeError("Wait timeout"), True),  # torch's FileStore
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), False),
        (ValueError("Connection reset by peer"), False),  # of the data's store
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_a_lost_peer_is_distinguished_from_an_error(error: BaseException, is_lost: bool) -> None:
    assert is_lost_peer(error) == is_lost


NCCL = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, "
OWN_WORDS = [
    f"{NCCL}unhandled system error, NCCL version 2.27.7\nncclSystemError: System call (e.g. "
    "socket, malloc) or external library call failed or device error.\nLast error:\n"
    "Error while creating shared memory segment /dev/shm/nccl-a1 (size 33030528), error: "
    "No space left on device (28)",
    f"{NCCL}invalid usage, NCCL version 2.27.7\nncclInvalidUsage: This usually reflects invalid "
    "usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA "
    "device 4000",
    f"{NCCL}internal error\nLast error:\nFailed to load libibverbs: libibverbs.so.1: cannot open "
    "shared object file\nException raised from throwTimeoutError at socket.cpp:12",
]
LOSS_WORDS = [
    f"{NCCL}remote process exited or there was a network error, NCCL version 2.27.7\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
    "prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer 10.0.0.7<40711>",
    f"{NCCL}unhandled system error\nLast error:\nsocketPollConnect: connect to 10.0.0.7<40711> "
    "returned Connection refused, exceeded error retry count after 35 attempts",
    "wait timeout after 180000ms, keys: /default_pg/0//cuda//1",
    "Gloo connectFullMesh failed with [/gloo/transport/tcp/pair.cc:150] no error",
]


@pytest.mark.parametrize("words", OWN_WORDS)
def test_a_group_that_cannot_form_here_fails_the_run_with_its_words(words: str) -> None:
    """A start each would fail in the same way: three of them only cost minutes of all nodes."""
    with pytest.raises(RunFailed) as caught, forming_group():
        raise dist.DistBackendError(words)
    assert caught.value.exit_code == Exit.RUN_FAILED
    told = words.partition("\nException raised from")[0]
    assert caught.value.message == f"the workers cannot form their group: {told}"


@pytest.mark.parametrize("words", LOSS_WORDS)
def test_a_peer_that_is_gone_while_a_group_forms_is_lost(words: str) -> None:
    with pytest.raises(PeerLost, match="another worker was lost"), forming_group():
        raise dist.DistBackendError(words)


def test_an_interface_that_is_missing_fails_a_world_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gloo's own error, of this machine's settings."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    with pytest.raises(RunFailed, match="Unable to find address for: nosuch0") as caught:
        form_world(
            rank=0,
            shape=WorldShape(2, 1, None),
            device=torch.device("cpu"),
            store=tmp_path / "store",
            generation=1,
        )
    assert not isinstance(caught.value, PeerLost)


class Over:
    """The monitor of a group that was dropped."""

    is_over = True

    def wait_begins(self) -> None:
        pass

    wait_ends = wait_begins


@pytest.mark.parametrize("is_over", [False, True])
def test_in_a_group_that_is_over_every_failure_is_a_lost_peer(is_over: bool) -> None:
    """What it fails with then is of no interest; before, it is a mistake that must be seen."""

    def work(group: WorkerGroup) -> PeerLost | RuntimeError | None:
        watched = WorkerGroup(group._group, Over() if is_over else None)
        assert watched.is_over == is_over
        try:
            watched.broadcast(torch.ones(2), source=5)
        except (PeerLost, RuntimeError) as error:
            return error.with_traceback(None)
        return None

    (error,) = outcomes(1, work)
    assert isinstance(error, PeerLost if is_over else RuntimeError)


class Slow:
    """Work that takes its time; or for ever, as gloo's now and then in a process that was stopped
    while its peers shut their connections."""

    def __init__(self, seconds: float) -> None:
        self._ends_at = time.monotonic() + seconds

    def is_completed(self) -> bool:
        return time.monotonic() >= self._ends_at

    def wait(self, timeout: timedelta) -> None:
        left = self._ends_at - time.monotonic()
        time.sleep(max(0.0, min(left, timeout.total_seconds())))
        if not self.is_completed():
            raise RuntimeError("torch's words for it, whatever they are")


class GroupOf:
    def __init__(self, work: Slow) -> None:
        self._work = work

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def broadcast(self, tensor: torch.Tensor, source: int) -> Slow:
        return self._work


def test_what_never_ends_in_a_group_that_is_over_is_abandoned_and_kept() -> None:
    """To free it would be to wait for its end."""
    group: Any = GroupOf(Slow(3600.0))
    kept = weakref.ref(group)
    watch = Stopwatch()
    with pytest.raises(PeerLost, match="the generation is over"):
        WorkerGroup(group, Over()).broadcast(torch.ones(2), source=1)
    assert watch.seconds < 60
    del group
    gc.collect()
    assert kept() is not None


def test_what_takes_long_in_a_group_that_works_is_waited_for() -> None:
    monitor = SimpleNamespace(is_over=False, wait_begins=lambda: None, wait_ends=lambda: None)
    slow: Any = GroupOf(Slow(1.2))
    WorkerGroup(slow, monitor).broadcast(torch.ones(2), source=1)


class JustInTime(Slow):
    """It ends between the end of a wait and the look at whether it has."""

    def __init__(self, error: str | None) -> None:
        super().__init__(0.0)
        self._error = error
        self._num_waits = 0

    def wait(self, timeout: timedelta | None = None) -> None:
        self._num_waits += 1
        if self._num_waits == 1:
            raise RuntimeError("Operation timed out!")
        if self._error is not None:
            raise RuntimeError(self._error)


def test_what_ends_in_the_moment_after_a_wait_has_ended() -> None:
    """Once in thousands of sums on a busy machine; it must not end a worker."""
    monitor = SimpleNamespace(is_over=False, wait_begins=lambda: None, wait_ends=lambda: None)
    well: Any = GroupOf(JustInTime(None))
    WorkerGroup(well, monitor).broadcast(torch.ones(2), source=1)
    badly: Any = GroupOf(JustInTime("[/gloo/transport/tcp/pair.cc:561] Connection closed"))
    with pytest.raises(PeerLost, match="Connection closed"):
        WorkerGroup(badly, monitor).broadcast(torch.ones(2), source=1)


class Unfinished:
    """Work that takes until its timeout."""

    def __init__(self) -> None:
        self.has_ended = False

    def is_completed(self) -> bool:
        return self.has_ended


class Tracked:
    """A group, as far as it matters that it lives."""


def test_the_group_of_abandoned_work_lives_until_that_has_ended() -> None:
    """And no longer: a long run loses many."""
    group, work = Tracked(), Unfinished()
    lives = weakref.ref(group)
    collectives._abandon(cast(Any, group), work, torch.ones(1))
    del group
    together(2, lambda group: group.all_reduce(torch.ones(1)))
    assert lives() is not None
    work.has_ended = True
    together(2, lambda group: group.all_reduce(torch.ones(1)))
    assert lives() is None
