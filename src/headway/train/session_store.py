"""Process groups over the worker's session: a torch store, one that gives gloo all addresses of a
group in one answer, and a gloo group for each generation.

How long forming a group takes at most, and how one is dropped (measured with torch 2.15 and gloo):

- gloo first reads every member's address from the store, one by one, then connects to one member
  after the other. Here the first read brings the addresses of all, in one answer when the last is
  set. That ends at once when the generation is broken.
- Each address came with a number for each of the others, the square of the group in all. With the
  rank in place of these numbers an address has the same size in every group.
- Of two members one connects and the other waits to be connected to. A connection to a dead process
  is refused in a millisecond; a wait for one continues, and nothing interrupts it. gloo gives it
  *five times* the group's timeout, so that a timeout of 2 s held everyone for 10. The group is
  therefore made with a fifth of the time that is left, in a thread of its own: the caller
  continues when the generation is broken, and the thread ends by itself.
- A collective that waits for a live member is not ended by gloo's `abort`, nor by dropping the
  group: the group's destructor waits for it, up to the timeout (2.9 s of 3 s). When the connections
  are shut down it ends in 2 ms, here and at the other end. Neither torch nor gloo offer that, so it
  is done to the sockets themselves, found by the addresses that went through the store.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroupGloo, Store  # type: ignore[attr-defined]

from headway.errors import HeadwayError, PeerLost, RunFailed
from headway.member.worker.session import Session
from headway.member.worker.session_keys import NotAllSet, SessionKeys
from headway.member.worker.session_view import GenerationOver, Late, SessionError
from headway.train.file_limit import raise_file_limit
from headway.train.lost_peer_signs import is_loss_while_forming, why_not_formed
from headway.train.world import COLLECTIVE_TIMEOUT

FORM_SECONDS = 2.0
"""For a group to form..."""
FORM_SECONDS_EACH = 0.02
"""... and for each member: gloo connects to one after the other."""
MAX_PATIENCE = 8
"""Times as long it may take after groups that failed: it doubles with each in a row. On cores that
have much else to do, a time that many cannot keep would fail them again and again."""
WAITS_SECONDS = 0.5
"""After which this worker says that it waits: those that are silent are found sooner."""
FEW_MEMBERS = 16
"""One in so many that have no address yet are named; if more, the coordinator or all are slow."""
ANSWER_SECONDS = 0.25
"""For the answer that says whose address is missing, of the time for a group."""
CONNECT_FACTOR = 5
"""By which gloo multiplies a group's timeout when it waits for a connection."""
LOOK_SECONDS = 0.005


class GroupFailed(PeerLost):
    """The group could not be formed. `ranks`: those that had not joined, if known."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks
        self.workers: tuple[str, ...] = ()
        """Names of these ranks' workers, if known."""


class SessionStore(Store):
    """The keys of one generation as a torch store. Every wait has a deadline: `timeout`, as with
    all of torch's stores, unless the call has its own."""

    def __init__(self, session: Session, generation: int, prefix: str = "") -> None:
        super().__init__()
        self.session, self.generation, self.prefix = session, generation, prefix
        self.keys = SessionKeys(session, generation, prefix)
        self._clones: list[SessionStore] = []

    def set(self, key: str, value: str | bytes) -> None:
        self.keys.set(key, _bytes(value))

    def get(self, key: str) -> bytes:
        return self.keys.get(key, self._patience().total_seconds())

    def add(self, key: str, amount: int) -> int:
        return self.keys.add(key, amount)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return self.keys.compare_set(key, _bytes(expected), _bytes(desired))

    def check(self, keys: Sequence[str]) -> bool:
        return not self.keys.missing(keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        seconds = (timeout or self._patience()).total_seconds()
        missing = self.keys.missing(keys, seconds)
        if missing:
            some = ", ".join(missing[:4]) + (" ..." if len(missing) > 4 else "")
            raise Late(f"waited {seconds:.3g} s for one of {some} to be set")

    def delete_key(self, key: str) -> bool:
        return self.keys.delete(key)

    def num_keys(self) -> int:
        raise NotImplementedError("the coordinator's store does not count its keys")

    # The names that torch's C++ side uses.
    deleteKey = delete_key
    getNumKeys = num_keys

    def clone(self) -> SessionStore:
        clone = SessionStore(self.session, self.generation, self.prefix)
        clone.set_timeout(self._patience())
        # C++ alone would keep the object, but not the Python half of it that answers.
        self._clones.append(clone)
        return clone

    def _patience(self) -> timedelta:
        return self.timeout  # type: ignore[attr-defined]


class GroupStore(SessionStore):
    """The store as gloo uses it. Each member of a group sets its address at a key that ends with
    its rank, and waits for those of all, one by one: here the first wait brings all of them in one
    answer. `sizes`: of the groups that this worker forms, in their order."""

    def __init__(
        self, session: Session, generation: int, sizes: Iterable[int], prefix: str = ""
    ) -> None:
        super().__init__(session, generation, prefix)
        self._next_sizes = iter(sizes)
        self._sizes: dict[str, int] = {}
        """By what the keys of a group begin with."""
        self.values: dict[str, bytes] = {}
        """All addresses exchanged: those of the members, and its own."""

    def set(self, key: str, value: str | bytes) -> None:
        begin = _beginning(key)
        if begin and begin not in self._sizes:
            self._sizes[begin] = next(self._next_sizes, 0)
        self.values[key] = _bytes(value)
        self.keys.set(key, _bytes(value), self._patience().total_seconds())

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        # Not with gloo's own timeout: that is for collectives, or shorter for another reason.
        for key in keys:
            begin = _beginning(key)
            size = self._sizes.get(begin, 0)
            if not size:  # a group that was not foreseen: right, but a request for each key
                super().wait([key], timeout)
            elif key not in self.values:
                addresses = self.keys.gather(begin, size, self._patience().total_seconds())
                self.values |= {f"{begin}{rank}": one for rank, one in enumerate(addresses)}

    def get(self, key: str) -> bytes:
        if not self._sizes.get(_beginning(key)):
            return super().get(key)
        self.wait([key])
        return self.values[key]


class _FormingStore(GroupStore):
    """For one group, until one deadline."""

    def __init__(self, store: SessionStore, name: str, size: int, seconds: float) -> None:
        prefix = f"{store.prefix}{name}/"
        super().__init__(store.session, store.generation, (size,), prefix)
        self._deadline = time.monotonic() + seconds
        self.is_abandoned = False

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def set(self, key: str, value: str | bytes) -> None:
        self._check(key)
        super().set(key, value)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._check(keys[0])
        super().wait(keys, timeout)

    def _patience(self) -> timedelta:
        return timedelta(seconds=max(0.0, self.seconds_left - ANSWER_SECONDS))

    def _check(self, key: str) -> None:
        if self.is_abandoned:
            raise Late(f"the group that {key} is for was abandoned")


class Group:
    """One generation's process group. Not reused: the next generation forms its own."""

    def __init__(self, process_group: dist.ProcessGroup, store: _FormingStore, rank: int) -> None:
        self.process_group: dist.ProcessGroup | None = process_group
        """For the functions of torch.distributed. Neither it nor its work may be kept after
        `drop`."""
        self.rank, self.size = rank, process_group.size()
        self.generation = store.generation
        self.addresses = store.values
        """What gloo says of each member, by its key."""

    def drop(self) -> None:
        """Ends collectives that wait in the group, here and on its other members, and frees it."""
        if self.process_group is not None:
            shut_connections(self.addresses, self.rank)
            self.process_group = None


def form_group(
    store: SessionStore,
    rank: int,
    size: int,
    timeout: timedelta = COLLECTIVE_TIMEOUT,
    name: str = "group",
    failures: int = 0,
) -> Group:
    """COLLECTIVE. A gloo group of all members of the store's generation. Raises GroupFailed, or
    RunFailed if something is wrong here that another try would not change, or
    GenerationOver as soon as the generation is broken; each is final, for the addresses of a try
    stay in the store: the next one is the next generation's. `timeout` is for the collectives,
    `name` tells groups of the same generation apart, `failures` are the groups before it, in a row,
    that did not form."""
    raise_file_limit(size, size)
    seconds = form_seconds(size, failures)
    attempt = _Attempt(_FormingStore(store, name, size, seconds), rank, size, timeout)
    attempt.start()
    is_waiting = False
    while not attempt.is_done.wait(min(LOOK_SECONDS, max(0.0, attempt.store.seconds_left))):
        if not is_waiting and attempt.store.seconds_left < seconds - WAITS_SECONDS:
            is_waiting = True
            with suppress(SessionError):
                store.session.start_waiting()
        view = store.session.view
        if view.generation.breaks(store.generation):
            attempt.abandon()
            raise GenerationOver(
                f"generation {view.generation.number} has replaced {store.generation} "
                f"while its group formed: {view.generation.reason}"
            )
        if not attempt.store.seconds_left:
            break
    if is_waiting:
        with suppress(SessionError):
            store.session.stop_waiting()
    return attempt.result(seconds)


def form_seconds(size: int, failures: int = 0) -> float:
    """For a group of that size to form, after so many that did not."""
    return min(2**failures, MAX_PATIENCE) * (FORM_SECONDS + size * FORM_SECONDS_EACH)


class _Attempt:
    """One group being formed, in a thread that runs to its end even when the group is abandoned.
    Not a daemon thread: the interpreter must not end under a thread that returns from gloo."""

    def __init__(self, store: _FormingStore, rank: int, size: int, timeout: timedelta) -> None:
        self.store = store
        self.is_done = threading.Event()
        self._rank, self._size, self._timeout = rank, size, timeout
        self._lock = threading.Lock()
        self._group: Group | None = None
        self._error: Exception | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="headway-form-group").start()

    def abandon(self) -> None:
        with self._lock:
            self.store.is_abandoned = True
            group, self._group = self._group, None
        if group is not None:
            group.drop()

    def result(self, seconds: float) -> Group:
        with self._lock:
            group, self._group = self._group, None
            self.store.is_abandoned = group is None
        if group is not None:
            return group
        what = f"the group of generation {self.store.generation}"
        error = self._error
        missing = error.numbers if isinstance(error, NotAllSet) else ()
        if len(missing) > max(1, self._size // FEW_MEMBERS):
            missing = ()
        if isinstance(error, GenerationOver):
            raise error
        if error is None or isinstance(error, Late):
            raise GroupFailed(f"{what} did not form within {seconds:g} s", missing) from error
        if not isinstance(error, HeadwayError) and not is_loss_while_forming(str(error)):
            raise RunFailed(why_not_formed(str(error))) from error
        raise GroupFailed(f"{what} did not form: {error}", missing) from error

    def _run(self) -> None:
        try:
            group = self._form()
        except (RuntimeError, HeadwayError) as error:
            self._error = error
        else:
            with self._lock:
                is_wanted = not self.store.is_abandoned
                if is_wanted:
                    self._group = group
            if not is_wanted:
                group.drop()
        finally:
            self.is_done.set()

    def _form(self) -> Group:
        connect = timedelta(seconds=max(0.001, self.store.seconds_left) / CONNECT_FACTOR)
        group = gloo_group(self.store, self._rank, self._size, connect, self._timeout)
        return Group(group, self.store, self._rank)


def gloo_group(
    store: Store, rank: int, size: int, connect: timedelta, timeout: timedelta
) -> dist.ProcessGroup:
    """COLLECTIVE. `connect` is for the connections, `timeout` for the collectives."""
    backend = ProcessGroupGloo(store, rank, size, connect)
    backend.set_timeout(timeout)
    group = dist.ProcessGroup(store, rank, size)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    return group


def shut_connections(values: dict[str, bytes], rank: int) -> None:
    """Shuts the connections of one group. A connection of gloo has the listening address of one of
    its two ends at that end, and every group listens at an address of its own."""
    try:
        addresses = {key: _address(value) for key, value in values.items()}
    except (ValueError, struct.error):
        return  # a format that is not known: `leaving_groups` has found out before the run began
    own = addresses.pop(f"0/{rank}", None)
    others = set(addresses.values())
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # closed meanwhile, or not connected
            descriptor = int(name)
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as copy:
                # gloo ends the process when its listening socket fails.
                if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.getsockopt(
                    socket.SOL_SOCKET, socket.SO_ACCEPTCONN
                ):
                    continue
                if copy.getsockname()[:2] == own or copy.getpeername()[:2] in others:
                    copy.shutdown(socket.SHUT_RDWR)


def _address(value: bytes) -> tuple[str, int]:
    """Parsed from what gloo publishes of a member: length and name of its host, length of its
    address and the address, a sockaddr_storage first."""
    (begin,) = struct.unpack_from("@N", value)
    begin += struct.calcsize("@N") * 2
    family, port = struct.unpack_from("@H", value, begin)[0], value[begin + 2 : begin + 4]
    packed = value[begin + 4 : begin + 8]
    if family == socket.AF_INET6:
        packed = value[begin + 8 : begin + 24]
    return socket.inet_ntop(family, packed), int.from_bytes(port, "big")


def _beginning(key: str) -> str:
    """What the keys of a group begin with, if this one ends with a rank."""
    begin, slash, rank = key.rpartition("/")
    return begin + slash if rank.isdigit() else ""


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
