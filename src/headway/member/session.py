"""A worker's session with the coordinator: a thread that training never waits for.

The thread connects, beats once a second, and follows the newest coordinator. Training reads `view`,
which is always there and never blocks; says what it does by `enter`, `healed` and so on; and asks
the store that process groups are formed by. While the coordinator is away all of this goes on, and
`view.error` says what is wrong.

A process that is started again in the same pod is another pod for the coordinator: the name of a
session has a random part. So nobody takes one that holds nothing for one that held the run's state.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from headway.errors import HeadwayError
from headway.member.channel import Channel, Interrupted, Sleeper, connect, place_of
from headway.member.events import Status
from headway.member.follow import Follower
from headway.member.generation import Domain, Generation
from headway.member.messages import (
    MAX_REQUESTS,
    Beat,
    Change,
    Farewell,
    FromCoordinator,
    Go,
    Goodbye,
    ProtocolError,
    StoreAnswer,
    StoreCheck,
    StoreFailed,
    StoreGet,
    StoreNumber,
    StoreRequest,
    StoreSet,
    StoreValue,
    Welcome,
    apply,
)
from headway.member.session_view import (
    PATIENCE,
    Denied,
    Forked,
    GenerationOver,
    Late,
    Patience,
    SessionClosed,
    SessionError,
    Unanswered,
    View,
)
from headway.member.wire import Packed, WorkerSide, pack

CLOSE_SECONDS = 5.0
"""The thread ends within milliseconds, unless it is resolving the coordinator's name."""


class _Request:
    """One to the store. It stays in the list until it is answered or the connection ends, for so
    long it counts at the coordinator."""

    __slots__ = ("again", "answer", "is_given_up", "is_lost", "is_sent", "packed")

    def __init__(self, message: StoreRequest) -> None:
        self.packed: Packed = pack(message)
        self.again = isinstance(message, StoreSet | StoreGet | StoreCheck)
        """To be asked twice does no harm."""
        self.answer: StoreAnswer | None = None
        self.is_sent = self.is_lost = self.is_given_up = False


class Session:
    def __init__(
        self,
        address: str,
        key: bytes,
        run: str,
        pod: str,
        *,
        authority: Path | None = None,
        patience: Patience = PATIENCE,
    ) -> None:
        """`authority`: a file of certificates, one of which has signed the coordinator's; without
        it there is no TLS."""
        self.pod = f"{pod}.{secrets.token_hex(8)}"
        self._place = place_of(address, authority)
        self._key, self._run = key, run
        WorkerSide(key, run, self.pod)  # names that do not fit are refused here
        self._patience = patience
        self._random = random.Random()  # the shared one belongs to training, which repeats itself
        self._process = os.getpid()
        self._follower = Follower(self.pod)
        self._error: SessionError | None = None
        self._is_connected = self._wants_all = self._has_ended = False
        self._goodbye: str | None = None
        self._goodbye_by = 0.0
        self._requests: dict[int, _Request] = {}
        self._to_ask: deque[int] = deque()
        self._num_requests = 0
        self._sleeper = Sleeper()
        self._changed = threading.Condition()
        """Guards all of the above, and is notified of every new view."""
        self._domain_of: tuple[Generation | None, Domain | None] = (None, None)
        with self._changed:
            self._show()
        _sessions.add(self)
        self._thread = threading.Thread(target=self._live, name="headway-session", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # What training reads. Never blocks.

    @property
    def view(self) -> View:
        self._check_process()
        return self._view

    def must_drop(self) -> bool:
        return self.view.must_drop

    # What training says. Sent at once, and with every beat.

    def be_ready(self) -> None:
        """Imports are done and the model is built: it could train now. To be said again after it
        was taken out of the run."""
        self._say(self._follower.be_ready)

    def leave(self) -> None:
        """Its machine is wanted back. It works on until a generation without it is there."""
        self._say(self._follower.leave)

    def enter(self, number: int | None = None) -> Generation:
        """Lets go of all before, and waits for the others of the newest generation, which is
        returned. With a number, only if that is still the newest."""

        def change() -> None:
            if number in (None, self._follower.newest.number):
                self._follower.enter()

        return self._say(change)

    def healed(self) -> None:
        self._say(self._follower.healed)

    def complain(self, peers: tuple[str, ...] = ()) -> None:
        """The group could not be formed, or a collective failed or hangs."""
        self._say(lambda: self._follower.complain(peers))

    def withdraw(self) -> None:
        """What hung goes on after all."""
        self._say(self._follower.withdraw)

    def be_waiting(self) -> None:
        """A collective takes long. That alone changes nothing: only whoever is silent as well is
        waited for less patiently. It holds until `go_on` or `enter`."""
        self._say(self._follower.be_waiting)

    def go_on(self) -> None:
        """The collective has ended: it waits no longer."""
        self._say(self._follower.go_on)

    def take_steps_of(self, seconds: int) -> None:
        """So long, each: whoever waits for this worker at the end of one knows for how long."""
        if seconds != self._view.status.step_seconds:
            self._say(lambda: self._follower.take_steps_of(seconds))

    def wait_for(self, what: str, condition: Callable[[View], bool], seconds: float) -> View:
        """The first view for which the condition holds. `what` is for the error if none does."""
        self._check_process()
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or condition(self._view), seconds)
            if condition(self._view):
                return self._view
            self._check_open()
            raise self._late(what, seconds)

    def ask(
        self, generation: int, make: Callable[[int], StoreRequest], seconds: float, what: str
    ) -> StoreAnswer:
        """The store's answer to the request that `make` makes of a number. Ends with an error as
        soon as the generation is broken, or when the time is over."""
        self._check_process()
        deadline = time.monotonic() + seconds
        with self._changed:

            def is_over() -> bool:
                return self._has_ended or self._view.generation.breaks(generation)

            def wait(condition: Callable[[], bool]) -> None:
                left = max(0.0, deadline - time.monotonic())
                self._changed.wait_for(lambda: condition() or is_over(), left)

            wait(lambda: len(self._requests) < MAX_REQUESTS)
            self._check_open()
            self._check_generation(generation, what)
            if len(self._requests) >= MAX_REQUESTS:
                raise self._late(f"room for {what}: {MAX_REQUESTS} requests are open", seconds)
            self._num_requests += 1
            number = self._num_requests
            request = _Request(make(number))
            self._requests[number] = request
            self._to_ask.append(number)
            self._sleeper.wake()
            wait(lambda: request.answer is not None or request.is_lost)
            if request.answer is None and not request.is_lost:
                self._give_up(number, request)
                self._check_open()
                self._check_generation(generation, what)
                raise self._late(what, seconds)
        if request.answer is None:
            raise Unanswered(f"the connection to the coordinator broke during {what}")
        if isinstance(request.answer, StoreFailed):
            raise _denied(request.answer, what)
        return request.answer

    def goodbye(self, reason: str = "", seconds: float = 1.0) -> None:
        """The process ends now: tells the coordinator, if it can be reached, and closes."""
        self._check_process()
        with self._changed:
            self._goodbye_by = time.monotonic() + seconds
            self._goodbye = reason
            if not self._has_ended:
                self._sleeper.wake()
        self._thread.join(seconds)
        self.close()

    def close(self) -> None:
        """Without a goodbye: to the coordinator it looks as if the process had died."""
        if os.getpid() != self._process:
            return  # the child's copies of the sockets are closed since the fork
        with self._changed:
            if not self._has_ended:
                self._sleeper.stop()
        self._thread.join(CLOSE_SECONDS)

    # Inside, any thread

    def _say(self, change: Callable[[], object]) -> Generation:
        self._check_process()
        with self._changed:
            self._check_open()
            change()
            self._show()
            self._sleeper.wake()
            return self._view.generation

    def _show(self) -> None:
        """Makes what has changed visible to all."""
        follower = self._follower
        if self._domain_of[0] is not follower.newest:
            self._domain_of = (follower.newest, follower.domain)
        self._view = View(
            generation=follower.newest,
            status=follower.status,
            domain=self._domain_of[1],
            may_form=follower.may_form,
            must_drop=follower.must_drop(),
            connected=self._is_connected,
            incarnation=follower.incarnation,
            error=self._error,
        )
        self._changed.notify_all()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise Forked(
                "this session belongs to the process that started it, not to a forked child",
                "start such processes by spawn, or before the session",
            )

    def _check_open(self) -> None:
        if self._has_ended:
            why = "" if self._error is None else f"; before that, {self._error.message}"
            raise SessionClosed(f"the session with the coordinator is closed{why}")

    def _check_generation(self, generation: int, what: str) -> None:
        newest = self._view.generation
        if newest.breaks(generation):
            raise GenerationOver(
                f"generation {newest.number} has taken the place of {generation} during {what}: "
                f"{newest.reason}"
            )

    def _late(self, what: str, seconds: float) -> Late:
        why = "" if self._error is None else f"; {self._error.message}"
        return Late(f"waited {seconds:.3g} s for {what}{why}")

    def _give_up(self, number: int, request: _Request) -> None:
        if request.is_sent:
            request.is_given_up = True
        else:
            del self._requests[number]
            self._to_ask.remove(number)

    # The thread

    def _live(self) -> None:
        try:
            self._keep_connected()
        except Interrupted:
            pass
        except BaseException as error:
            self._error = SessionError(f"the session's thread failed: {error!r}")
            raise
        finally:
            with self._changed:
                self._has_ended = True
                self._is_connected = False
                self._sleeper.close()
                self._show()

    def _keep_connected(self) -> None:
        back_off, attempt = self._patience.first_back_off_seconds, 0
        while True:
            try:
                self._converse(attempt)
                error: Exception = SessionClosed("said goodbye")
            except (OSError, ProtocolError) as problem:
                error = problem
            was_connected = self._lose(error)
            if self._goodbye is not None:
                return
            if was_connected:
                back_off = self._patience.first_back_off_seconds
            # Thousands lose their connection at the same moment.
            until = time.monotonic() + back_off * (0.5 + self._random.random() / 2)
            while time.monotonic() < until and self._goodbye is None:
                self._sleeper.sleep(until)
            back_off = min(2 * back_off, self._patience.longest_back_off_seconds)
            attempt += 1

    def _lose(self, error: Exception) -> bool:
        """The connection is over. Whether there was one."""
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        hint = None
        if isinstance(error, HeadwayError):
            why, hint = error.message, error.hint
        with self._changed:
            was_connected, self._is_connected = self._is_connected, False
            self._error = SessionError(f"coordinator at {self._place}: {why}", hint)
            self._to_ask.clear()
            for number, request in list(self._requests.items()):
                if request.is_given_up or (request.is_sent and not request.again):
                    request.is_lost = True
                    del self._requests[number]
                else:
                    request.is_sent = False
                    self._to_ask.append(number)
            self._show()
            return was_connected

    def _converse(self, attempt: int) -> None:
        """One connection, from its beginning to its end: an error, or our goodbye."""
        began = time.monotonic()
        channel = connect(
            self._place, attempt, self._sleeper, began + self._patience.connect_seconds
        )
        try:
            side = WorkerSide(
                self._key,
                self._run,
                self.pod,
                newest_incarnation=self._follower.incarnation,
                binding=channel.binding,
            )
            _Conversation(self, channel, side).hold()
        finally:
            channel.close()

    def _hear(self, message: FromCoordinator) -> None:
        follower = self._follower
        with self._changed:
            match message:
                case Welcome():
                    if not follower.meet(message.incarnation):
                        raise ProtocolError(
                            f"this is coordinator {message.incarnation}, and "
                            f"{follower.incarnation} has taken its place"
                        )
                    follower.hear(self._generation(message.change), message.went)
                    self._is_connected, self._error = True, None
                case Change():
                    follower.hear(self._generation(message))
                case Go():
                    follower.hear_go(message.generation)
                case Farewell():
                    raise ProtocolError(f"it ended the session: {message.reason}")
                case StoreValue() | StoreNumber() | StoreFailed():
                    request = self._requests.pop(message.request, None)
                    if request is not None:
                        request.answer = message
                        self._changed.notify_all()
                    return
                case _:
                    return
            self._show()

    def _generation(self, change: Change | None) -> Generation:
        if change is None:
            return self._follower.newest
        try:
            generation = apply(change, self._follower.newest)
        except ProtocolError:
            self._wants_all = True
            raise
        self._wants_all = False
        return generation


class _Conversation:
    """One connection of a session, after it was made."""

    def __init__(self, session: Session, channel: Channel, side: WorkerSide) -> None:
        self._session, self._channel, self._side = session, channel, side
        self._patience = session._patience
        self._said: Status | None = None
        self._beat_at = self._heard_at = time.monotonic()
        self._began = self._heard_at
        self._is_leaving = self._has_ended_writing = False

    def hold(self) -> None:
        session, channel = self._session, self._channel
        channel.queue(self._side.hello)
        while True:
            if self._side.is_open:
                self._speak(time.monotonic())
            channel.flush()
            if session._goodbye is not None and self._has_left():
                return
            # Read before any silence is judged: this thread itself may have slept.
            if channel.sleep(session._sleeper, self._wake_at()):
                self._read()
            self._judge(time.monotonic())

    def _speak(self, now: float) -> None:
        """All there is to say, a Beat first. It carries everything, so one that cannot be sent yet
        is not queued: the newest goes when there is room."""
        session, channel = self._session, self._channel
        with session._changed:
            status = session._follower.status
            asked = [session._requests[number] for number in session._to_ask]
            session._to_ask.clear()
            for request in asked:
                request.is_sent = True
        is_first = self._said is None
        is_due = status != self._said or now >= self._beat_at
        if is_first or (is_due and not channel.has_unsent):
            told = replace(status, seen=0) if is_first and session._wants_all else status
            channel.queue(self._side.send(Beat(told)))
            self._said, self._beat_at = status, now + self._patience.beat_seconds
        for request in asked:
            channel.queue(self._side.seal(request.packed))
        if session._goodbye is not None and not self._is_leaving:
            self._is_leaving = True
            channel.queue(self._side.send(Goodbye(session._goodbye)))

    def _has_left(self) -> bool:
        """Whether the goodbye is over: there is nobody to say it to, or it was said and the
        coordinator has closed (which ends the conversation elsewhere) or takes too long to."""
        if not self._side.is_open or time.monotonic() >= self._session._goodbye_by:
            return True
        if not self._is_leaving:
            return False  # it was asked for a moment ago: said in the next round, at once
        if not self._channel.has_unsent and not self._has_ended_writing:
            self._has_ended_writing = True
            self._channel.end_writing()
        return False

    def _wake_at(self) -> float:
        until = self._heard_at + self._patience.deaf_seconds
        if not self._session._is_connected:
            until = min(until, self._began + self._patience.handshake_seconds)
        if self._side.is_open and not self._channel.has_unsent:
            until = min(until, self._beat_at)
        if self._session._goodbye is not None:
            until = min(until, self._session._goodbye_by)
        return until

    def _read(self) -> None:
        while data := self._channel.receive():
            self._heard_at = time.monotonic()
            received = self._side.receive(data)
            self._channel.queue(received.reply)
            for message in received.messages:
                self._session._hear(message)
            if received.error is not None:
                raise received.error
            if not self._channel.has_more:
                return

    def _judge(self, now: float) -> None:
        if now - self._heard_at >= self._patience.deaf_seconds:
            raise TimeoutError(f"nothing was heard of it for {self._patience.deaf_seconds:g} s")
        waited = now - self._began
        if not self._session._is_connected and waited >= self._patience.handshake_seconds:
            raise TimeoutError(f"it gave no answer within {self._patience.handshake_seconds:g} s")


def _denied(failed: StoreFailed, what: str) -> SessionError:
    why = failed.reason or failed.why
    match failed.why:
        case "late":
            return Late(f"{what}: {why}")
        case "generation":
            return GenerationOver(f"{what}: {why}")
    return Denied(f"{what}: {why}")


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _close_all_inherited() -> None:
    for session in list(_sessions):
        session._sleeper.close_inherited()
    _sessions.clear()


os.register_at_fork(after_in_child=_close_all_inherited)
