"""A worker's session, over real sockets on this machine, with a coordinator that does as told."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from headway.errors import BadInput
from headway.member.coordinator.rules import Rules
from headway.member.protocol.generation import Domain, Generation
from headway.member.protocol.messages import (
    MAX_REQUESTS,
    Alive,
    Farewell,
    GenerationChange,
    Go,
    ProtocolError,
    StoreAdd,
    StoreFailed,
    StoreGet,
    StoreNumber,
    StoreRequest,
    StoreSet,
    StoreValue,
)
from headway.member.worker.session import CLOSE_SECONDS, Session
from headway.member.worker.session_view import (
    Denied,
    Forked,
    GenerationOver,
    Late,
    SessionClosed,
    SessionTimeouts,
    Unanswered,
    View,
)
from support.small_coordinator import KEY, RUN, SmallCoordinator
from support.stolen_time import Stopwatch
from support.waiting import wait_for

# A loaded machine is slow, not wrong: what has to happen is waited for this long. That something
# happens at once is shown by making much longer what would bring it about otherwise.
LONG = 20.0
NEVER = 10 * LONG


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Threads and descriptors are as many after each test as before it."""
    threads, descriptors = threading.active_count(), len(os.listdir("/dev/fd"))
    yield
    wait_for("threads to end", lambda: threading.active_count() <= threads, 5.0)
    assert len(os.listdir("/dev/fd")) <= descriptors


def open_session(address: str, key: bytes = KEY, run: str = RUN, **timeouts: float) -> Session:
    return Session(address, key, run, "pod-0", timeouts=SessionTimeouts(**timeouts))


def connected(session: Session) -> View:
    return session.wait_for("a connection", lambda view: view.connected, LONG)


def of(number: int, *workers: str, sound: tuple[int, ...] = (), incarnation: int = 1) -> Generation:
    domains = tuple(Domain((worker,), number, holds=True) for worker in workers)
    return Generation(number, incarnation, domains, 0, False, sound, f"test {number}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


# The connection


def test_is_welcomed_and_sends_heartbeats() -> None:
    with SmallCoordinator() as coordinator, open_session(coordinator.address) as session:
        view = connected(session)
        assert view.incarnation == 1
        assert view.error is None
        wait_for("three heartbeats", lambda: len(coordinator.heartbeats) >= 3, LONG)
        first, *_, last = coordinator.heartbeats
        assert (last[0] - first[0]) / (len(coordinator.heartbeats) - 1) > 0.8
        assert {worker for _, worker, _ in coordinator.heartbeats} == {session.name}


def test_a_coordinator_that_is_not_there_for_long_is_logged() -> None:
    """Else a worker would wait in silence, for a name that does not resolve or a blocked port."""
    address, lines = f"127.0.0.1:{free_port()}", list[str]()

    def opened(said_seconds: float) -> Session:
        timeouts = SessionTimeouts(said_seconds=said_seconds)
        return Session(address, KEY, RUN, "pod-0", timeouts=timeouts, log=lines.append)

    with opened(NEVER) as session:
        wait_for("a try", lambda: session.view.error is not None, LONG)
        assert lines == []
    with opened(0.2):
        wait_for("a line", lambda: lines, LONG)
    assert lines == [f"coordinator at {address}: Connection refused"]


def pairs(entries: list) -> list:
    return list(pairwise(entries))


def test_every_process_is_a_worker_of_its_own() -> None:
    address = f"127.0.0.1:{free_port()}"
    with open_session(address) as one, open_session(address) as other:
        assert one.name != other.name
        assert one.name.startswith("pod-0.")


def test_a_change_of_status_is_sent_at_once() -> None:
    with (
        SmallCoordinator() as coordinator,
        open_session(coordinator.address, heartbeat_seconds=NEVER) as session,
    ):
        connected(session)
        session.be_ready()
        session.leave()
        wait_for("it", lambda: coordinator.newest().leaving and coordinator.newest().ready, LONG)


def test_comes_back_when_the_coordinator_hangs_up() -> None:
    with SmallCoordinator() as coordinator, open_session(coordinator.address) as session:
        connected(session)
        watch, began = Stopwatch(), time.monotonic()
        coordinator.hang_up()
        wait_for("another connection", lambda: len(coordinator.connected_at) == 2, LONG)
        seconds = coordinator.connected_at[1] - began - watch.lost_seconds
        assert seconds < Rules().reconnect_seconds, "the coordinator waits no longer"
        connected(session)


@pytest.mark.long("waits for heartbeats and for tries to connect")
def test_tries_ever_more_slowly_to_once_a_second_and_says_why() -> None:
    port = free_port()
    with open_session(f"127.0.0.1:{port}") as session:
        view = session.wait_for("a refusal", lambda view: view.error is not None, LONG)
        assert "refused" in str(view.error)
        assert f"127.0.0.1:{port}" in str(view.error)
        # Refused each time, so that attempts can be counted.
        with SmallCoordinator(port=port, run="another-run") as coordinator:
            wait_for("seven attempts", lambda: len(coordinator.connected_at) >= 7, LONG)
            gaps = [later - earlier for earlier, later in pairs(coordinator.connected_at)]
            assert gaps[-1] > 0.45
            assert "another run" in str(session.view.error)


@pytest.mark.trap(24)
def test_a_name_that_cannot_be_resolved_yet_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Service's name may take a while to be known everywhere."""
    known, resolve = threading.Event(), socket.getaddrinfo

    def late(host: str, *arguments: Any, **options: Any) -> Any:
        if host != "headway-it.ml.svc":
            return resolve(host, *arguments, **options)
        if not known.is_set():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", late)
    port = free_port()
    with SmallCoordinator(1, port), open_session(f"headway-it.ml.svc:{port}") as session:
        view = session.wait_for("an error", lambda view: view.error is not None, LONG)
        assert "Name or service not known" in str(view.error)
        assert "headway-it.ml.svc" in str(view.error)
        known.set()
        assert connected(session).error is None


def test_of_several_addresses_the_one_that_answers_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine of one is lost, and does not even refuse; at another nobody listens."""
    resolve = socket.getaddrinfo
    with socket.socket() as lost, socket.socket() as fills:
        lost.bind(("127.0.0.3", 0))
        lost.listen(0)  # one connection fills it, and others get no answer
        port = lost.getsockname()[1]
        fills.connect(("127.0.0.3", port))

        def several(host: str, *arguments: Any, **options: Any) -> Any:
            if host != "headway-it.ml.svc":
                return resolve(host, *arguments, **options)
            hosts = ("127.0.0.3", "127.0.0.2", "127.0.0.1")
            return [one for host in hosts for one in resolve(host, *arguments, **options)]

        monkeypatch.setattr(socket, "getaddrinfo", several)
        with SmallCoordinator(1, port), open_session(f"headway-it.ml.svc:{port}") as session:
            connected(session)


def test_the_highest_incarnation_is_followed() -> None:
    port = free_port()
    with open_session(f"127.0.0.1:{port}") as session:
        with SmallCoordinator(3, port):
            assert connected(session).incarnation == 3
        with SmallCoordinator(2, port) as old:
            wait_for("an attempt", lambda: len(old.connected_at) >= 2, LONG)
            assert "coordinator 3 has replaced" in str(session.view.error)
            assert not old.heartbeats, "it was told something"
        with SmallCoordinator(4, port):
            view = session.wait_for("the new one", lambda view: view.incarnation == 4, LONG)
            assert view.connected


def test_a_deaf_connection_is_made_anew() -> None:
    with (
        SmallCoordinator() as coordinator,
        open_session(coordinator.address, deaf_seconds=1.0) as session,
    ):
        connected(session)
        coordinator.is_mute = True
        session.wait_for("silence to be noticed", lambda view: not view.connected, LONG)
        assert "heard nothing" in str(session.view.error)
        coordinator.is_mute = False
        connected(session)
        told = [time.monotonic()]
        for _ in range(10):  # words in time keep it
            time.sleep(0.2)
            coordinator.tell(Alive())
            told.append(time.monotonic())
        if max(later - earlier for earlier, later in pairs(told)) < 0.5:  # else the machine stalled
            assert len(coordinator.connected_at) == 2


@pytest.mark.parametrize("says", ["nothing", "hello"])
def test_a_handshake_has_a_deadline(says: str) -> None:
    with SmallCoordinator() as coordinator:
        coordinator.is_welcoming = False
        coordinator.is_mute = says == "nothing"
        with open_session(coordinator.address, handshake_seconds=0.2) as session:
            wait_for("the next attempt", lambda: len(coordinator.connected_at) >= 2, LONG)
            assert "no answer" in str(session.view.error)
            assert not session.view.connected


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"key": bytes(range(1, 33))}, "a different key"),
        ({"run": "another"}, "another run"),
        ({"versions": (7, 9)}, "version"),
    ],
)
def test_who_does_not_belong_to_the_run_is_named(changes: dict, named: str) -> None:
    with SmallCoordinator(**changes) as coordinator, open_session(coordinator.address) as session:
        view = session.wait_for("an error", lambda view: view.error is not None, LONG)
        assert named in str(view.error)
        wait_for("another try", lambda: len(coordinator.connected_at) >= 2, LONG)


def test_a_farewell_is_shown() -> None:
    with SmallCoordinator() as coordinator, open_session(coordinator.address) as session:
        connected(session)
        coordinator.tell(Farewell("it is late"))
        wait_for("another connection", lambda: len(coordinator.connected_at) == 2, LONG)
        connected(session)


def test_names_and_addresses_are_checked_before_anything_starts() -> None:
    with pytest.raises(BadInput, match="HOST:PORT"):
        open_session("somewhere")
    with pytest.raises(BadInput, match="valid host name"):
        open_session("x" * 80 + ".example:80")
    with pytest.raises(BadInput, match="a name has"):
        open_session("127.0.0.1:1", run="two words")


HOLDS_THE_INTERPRETER = """
import ctypes, sys, time
from headway.member.worker.session import Session
session = Session(sys.argv[1], bytes.fromhex(sys.argv[2]), sys.argv[3], "pod-0")
session.wait_for("the connection", lambda view: view.connected, 20.0)
began = time.monotonic()
while time.monotonic() - began < 5.0:
    ctypes.PyDLL(None).usleep(250_000)  # lets no other thread run
session.goodbye()
"""


def test_heartbeats_are_held_while_others_hold_the_interpreter() -> None:
    """Longer, and more often, than imports of torch do: there heartbeats are 0.05 s late. It
    connects before, for each of its steps waits for the interpreter. The coordinator waits 1.5 s
    for a heartbeat when somebody complains."""
    with SmallCoordinator() as coordinator:
        command = [sys.executable, "-c", HOLDS_THE_INTERPRETER, coordinator.address, KEY.hex(), RUN]
        subprocess.run(command, check=True, timeout=LONG)
        assert len(coordinator.gaps) >= 2
        # Each of them would be late; one may be, where the machine itself stalls.
        assert median(coordinator.gaps) < Rules().suspected_seconds
        wait_for("its goodbye", lambda: coordinator.goodbyes == [""], LONG)


def test_a_list_longer_than_one_read_arrives() -> None:
    with SmallCoordinator() as coordinator, open_session(coordinator.address) as session:
        connected(session)
        workers = tuple(f"{'pod':->300}-{number:04}" for number in range(1000))
        coordinator.publish(of(1, session.name, *workers))
        session.wait_for("the list", lambda view: view.generation.number == 1, LONG)


# Generations


def test_follows_generations_and_says_so() -> None:
    with SmallCoordinator() as coordinator, open_session(coordinator.address) as session:
        connected(session)
        coordinator.publish(of(1, session.name, "other"))
        view = session.wait_for("it", lambda view: view.generation.number == 1, LONG)
        assert view.domain == Domain((session.name,), 1, True)
        assert view.must_drop
        assert not view.may_form
        assert session.enter().number == 1
        assert not session.must_drop()
        coordinator.tell(Go(1))
        session.wait_for("the go", lambda view: view.may_form, LONG)
        session.healed()
        wait_for("all of it", lambda: coordinator.newest().healed == 1, LONG)
        status = coordinator.newest()
        assert (status.seen, status.entered, status.went) == (1, 1, 1)
        coordinator.publish(of(2, session.name, "other", "third", sound=(1,)))
        session.wait_for("the next", lambda view: view.generation.number == 2, LONG)
        assert not session.must_drop(), "nobody is lost: the step is finished first"
        coordinator.publish(of(3, session.name))
        session.wait_for("a loss", lambda view: view.must_drop, LONG)
        session.complain(("third",))
        wait_for("the complaint", lambda: coordinator.newest().peers == ("third",), LONG)


def test_that_it_waits_and_goes_on_is_sent_at_once() -> None:
    with (
        SmallCoordinator() as coordinator,
        open_session(coordinator.address, heartbeat_seconds=NEVER) as session,
    ):
        connected(session)
        coordinator.publish(of(1, session.name))
        session.wait_for("it", lambda view: view.generation.number == 1, LONG)
        session.enter()
        for say, waits in ((session.start_waiting, 1), (session.stop_waiting, 0)):
            say()
            wait_for("it", lambda waits=waits: coordinator.newest().waits == waits, LONG)
            assert session.view.status.waits == waits
            assert session.view.status.trouble == 0


def test_asks_for_the_whole_list_when_a_difference_does_not_fit() -> None:
    with SmallCoordinator() as coordinator, open_session(coordinator.address) as session:
        connected(session)
        coordinator.publish(of(1, session.name))
        session.wait_for("it", lambda view: view.generation.number == 1, LONG)
        coordinator.generation = of(6, session.name, "other")
        coordinator.tell(
            GenerationChange(5, 1, 6, 1, (), 0, False, (), "of a base that it does not have")
        )
        view = session.wait_for("the list", lambda view: view.generation.number == 6, LONG)
        assert list(view.generation.workers()) == [session.name, "other"]
        firsts = [status.seen for _, _, status in coordinator.heartbeats]
        assert 0 in firsts[1:], "the first heartbeat of the new connection says that it has none"


def test_training_goes_on_while_the_coordinator_is_away() -> None:
    port = free_port()
    with open_session(f"127.0.0.1:{port}") as session:
        with SmallCoordinator(1, port) as coordinator:
            connected(session)
            coordinator.publish(of(1, session.name))
            session.wait_for("it", lambda view: view.generation.number == 1, LONG)
        session.wait_for("the loss", lambda view: not view.connected, LONG)
        watch = Stopwatch()
        session.enter()
        session.healed()
        for _ in range(1000):
            assert not session.must_drop()
        assert watch.seconds < 10, "none of these waits for the coordinator"
        with SmallCoordinator(2, port) as coordinator:
            coordinator.generation = of(1, session.name)
            wait_for("what was said meanwhile", lambda: coordinator.newest().healed == 1, LONG)


def test_waiting_ends_at_its_deadline_and_says_for_what() -> None:
    with open_session(f"127.0.0.1:{free_port()}") as session:
        watch = Stopwatch()
        with pytest.raises(Late, match=r"waited 0.2 s for the moon.*refused"):
            session.wait_for("the moon", lambda view: False, 0.2)
        assert watch.wall_seconds >= 0.2
        assert watch.seconds < 10


# The store


def get(generation: int = 0, key: str = "key", wait: float = 1.0):
    return lambda number: StoreGet(number, generation, key, wait)


def test_the_store_answers() -> None:
    def answer(request: StoreRequest):
        if isinstance(request, StoreGet):
            return StoreValue(request.request, b"value")
        return StoreFailed(request.request, "full", "no room")

    with (
        SmallCoordinator(answer=answer) as coordinator,
        open_session(coordinator.address) as session,
    ):
        assert session.ask(0, get(), LONG, "key").value == b"value"
        with pytest.raises(Denied, match="a thing: no room"):
            session.ask(0, lambda number: StoreSet(number, 0, "a", b""), LONG, "a thing")
        with pytest.raises(ProtocolError, match="invalid message"):
            session.ask(0, get(key="x" * 600), LONG, "a key that is too long")
        assert session.view.connected


def test_a_request_has_a_deadline() -> None:
    with SmallCoordinator() as coordinator, open_session(coordinator.address) as session:
        watch = Stopwatch()
        with pytest.raises(Late, match=r"waited 0.2 s for its key"):
            session.ask(0, get(), 0.2, "its key")
        assert watch.seconds < 10
        refused = None
        while refused is None or "room for" not in str(refused.value):
            with pytest.raises(Late) as refused:
                session.ask(0, get(), 0.02, "its key")
        if len(coordinator.connected_at) == 1:  # a machine that stalls may lose a connection
            wait_for("all of them", lambda: len(coordinator.requests) >= MAX_REQUESTS, LONG)
            assert len(coordinator.requests) == MAX_REQUESTS, "one more would end the session"
        coordinator.hang_up()
        session.wait_for("the loss", lambda view: not view.connected, LONG)
        connected(session)
        with pytest.raises(Late, match="for its key"):
            session.ask(0, get(), 0.05, "its key")


def test_a_request_ends_with_its_generation() -> None:
    with SmallCoordinator() as coordinator, open_session(coordinator.address) as session:
        connected(session)
        coordinator.publish(of(1, session.name, "other"))
        session.wait_for("it", lambda view: view.generation.number == 1, LONG)
        timer = threading.Timer(0.2, lambda: coordinator.publish(of(2, session.name)))
        timer.start()
        watch = Stopwatch()
        with pytest.raises(GenerationOver, match="2 has replaced 1 during key: test 2"):
            session.ask(1, get(1), NEVER, "key")
        assert watch.seconds < LONG
        timer.join()


def test_only_what_may_be_asked_twice_is_asked_again() -> None:
    is_answering = threading.Event()

    def answer(request: StoreRequest):
        return StoreNumber(request.request, 1) if is_answering.is_set() else None

    with (
        SmallCoordinator(answer=answer) as coordinator,
        open_session(coordinator.address) as session,
    ):
        connected(session)

        def hang_up() -> None:
            wait_for("a request", lambda: coordinator.requests, LONG)
            is_answering.set()
            coordinator.hang_up()

        for make, error in [
            (lambda number: StoreSet(number, 0, "key", b""), None),
            (lambda number: StoreAdd(number, 0, "key", 1), Unanswered),
        ]:
            coordinator.requests.clear()
            is_answering.clear()
            thread = threading.Thread(target=hang_up)
            thread.start()
            if error is None:
                assert session.ask(0, make, LONG, "it") == StoreNumber(1, 1)
                assert len(coordinator.requests) == 2
            else:
                with pytest.raises(error):
                    session.ask(0, make, LONG, "it")
                assert len(coordinator.requests) == 1
            thread.join()
            connected(session)


# The end


def test_says_goodbye() -> None:
    with SmallCoordinator() as coordinator:
        session = open_session(coordinator.address)
        connected(session)
        watch = Stopwatch()
        session.goodbye("all is done")
        assert coordinator.goodbyes == ["all is done"]
        assert watch.seconds < CLOSE_SECONDS, "the coordinator has closed: nothing to wait for"
        assert len(coordinator.connected_at) == 1


def test_closing_without_a_connection_returns_at_once() -> None:
    session = open_session(f"127.0.0.1:{free_port()}")
    watch = Stopwatch()
    session.goodbye()
    assert watch.seconds < CLOSE_SECONDS


def test_after_its_end_everything_says_so() -> None:
    with SmallCoordinator() as coordinator:
        session = open_session(coordinator.address)
        connected(session)
        waiting: list[BaseException] = []

        def ask() -> None:
            try:
                session.ask(0, get(), NEVER, "key")
            except SessionClosed as error:
                waiting.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        wait_for("the request", lambda: coordinator.requests, LONG)
        watch = Stopwatch()
        session.close()
        session.close()
        thread.join()
        assert watch.seconds < LONG
        assert waiting
        with pytest.raises(SessionClosed):
            session.be_ready()
        with pytest.raises(SessionClosed):
            session.wait_for("anything", lambda view: False, LONG)
        assert not session.view.connected


def test_closes_while_it_connects_to_nobody() -> None:
    # A listener whose queue is full does not answer, like a machine that vanished.
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        place = listening.getsockname()
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(place)
            fillers.append(filler)
        session = open_session(f"127.0.0.1:{place[1]}", connect_seconds=0.3)
        view = session.wait_for("a timeout", lambda view: view.error is not None, LONG)
        assert "could not connect" in str(view.error)
        watch = Stopwatch()
        session.close()
        assert watch.seconds < CLOSE_SECONDS
        for filler in fillers:
            filler.close()


def test_a_forked_child_is_refused_and_holds_nothing_open() -> None:
    with SmallCoordinator() as coordinator, open_session(coordinator.address) as session:
        connected(session)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                session.view  # noqa: B018
            except Forked:
                code = 0
            session.close()
            os.write(writing, bytes([code]))
            time.sleep(LONG)
            os._exit(0)
        try:
            assert os.read(reading, 1) == b"\0"
            count = len(coordinator.heartbeats)
            wait_for("heartbeats of the parent", lambda: len(coordinator.heartbeats) > count, LONG)
            session.close()
            wait_for("the end to be noticed", lambda: not coordinator.sides, 2.0)
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
            os.close(reading)
            os.close(writing)
