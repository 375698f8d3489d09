"""The thread of a session: it connects, sends heartbeats, and follows the newest coordinator."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from msgspec.structs import replace

from headway import __version__
from headway.errors import HeadwayError
from headway.member.protocol.generation import Generation
from headway.member.protocol.handshake import HandshakeRefused, WorkerSide
from headway.member.protocol.messages import (
    Farewell,
    FromCoordinator,
    GenerationChange,
    Go,
    Goodbye,
    Heartbeat,
    ProtocolError,
    StoreFailed,
    StoreNumber,
    StoreValue,
    StoreValues,
    Welcome,
    apply,
)
from headway.member.protocol.status import WorkerStatus
from headway.member.worker.channel import Channel, CoordinatorAddress, Interrupted, connect
from headway.member.worker.session_state import SessionState
from headway.member.worker.session_view import SessionClosed, SessionError, SessionTimeouts


class SessionThread:
    def __init__(
        self,
        state: SessionState,
        address: CoordinatorAddress,
        key: bytes,
        run: str,
        timeouts: SessionTimeouts,
        log: Callable[[str], None],
    ) -> None:
        self._state = state
        self._address = address
        self._key, self._run = key, run
        self._timeouts = timeouts
        self._log = log
        self._logged: set[str] = set()
        """Reasons that were logged since there was a connection."""
        self._disconnected_at = time.monotonic()
        self._random = random.Random()  # the shared one belongs to training, which repeats itself

    def run(self) -> None:
        state = self._state
        try:
            self._keep_connected()
        except Interrupted:
            pass
        except BaseException as error:
            state.error = SessionError(f"the session's thread failed: {error!r}")
            raise
        finally:
            with state.changed:
                state.has_ended = True
                state.is_connected = False
                state.sleeper.close()
                state.show()

    def _keep_connected(self) -> None:
        back_off, attempt = self._timeouts.first_back_off_seconds, 0
        while True:
            try:
                self._converse(attempt)
                error: Exception = SessionClosed("said goodbye")
            except (OSError, ProtocolError) as problem:
                error = problem
            was_connected = self._disconnected(error)
            if self._state.goodbye is not None:
                return
            if was_connected:
                back_off = self._timeouts.first_back_off_seconds
            # Spread out: thousands lose their connection at the same moment.
            until = time.monotonic() + back_off * (0.5 + self._random.random() / 2)
            while time.monotonic() < until and self._state.goodbye is None:
                self._state.sleeper.sleep(until)
            back_off = min(2 * back_off, self._timeouts.longest_back_off_seconds)
            attempt += 1

    def _disconnected(self, error: Exception) -> bool:
        """The connection is over. Whether there was one."""
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        hint = None
        if isinstance(error, HeadwayError):
            why, hint = error.message, error.hint
        state = self._state
        with state.changed:
            was_connected, state.is_connected = state.is_connected, False
            state.error = SessionError(f"coordinator at {self._address}: {why}", hint)
            state.requests_disconnected()
            state.show()
        now = time.monotonic()
        if was_connected:
            self._disconnected_at = now
            self._logged.clear()
        waited = now - self._disconnected_at
        is_late = waited >= self._timeouts.said_seconds and state.goodbye is None
        if (is_late or isinstance(error, HandshakeRefused)) and why not in self._logged:
            # It retries, and training waits meanwhile: nobody else says why.
            self._logged.add(why)
            self._log(str(state.error))
        return was_connected

    def _converse(self, attempt: int) -> None:
        """One connection, from its beginning to its end: an error, or our goodbye."""
        state, until = self._state, time.monotonic() + self._timeouts.connect_seconds
        channel = connect(self._address, attempt, state.sleeper, until)
        try:
            side = WorkerSide(
                self._key,
                self._run,
                state.follower.name,
                newest_incarnation=state.follower.incarnation,
            )
            _Conversation(state, channel, side, self._timeouts).hold()
        finally:
            channel.close()


class _Conversation:
    """One connection of a session, after it was made."""

    def __init__(
        self, state: SessionState, channel: Channel, side: WorkerSide, timeouts: SessionTimeouts
    ) -> None:
        self._state, self._channel, self._side = state, channel, side
        self._timeouts = timeouts
        self._sent: WorkerStatus | None = None
        self._heartbeat_at = self._heard_at = time.monotonic()
        self._began = self._heard_at
        self._is_leaving = self._has_ended_writing = False

    def hold(self) -> None:
        state, channel = self._state, self._channel
        channel.queue(self._side.hello)
        while True:
            if self._side.is_open:
                self._send(time.monotonic())
            channel.flush()
            if state.goodbye is not None and self._has_left():
                return
            # Read before any silence is judged: this thread itself may have slept.
            if channel.sleep(state.sleeper, self._wake_at()):
                self._read()
            self._check_silence(time.monotonic())

    def _send(self, now: float) -> None:
        """Sends what is due, a Heartbeat first. It carries the whole status: one that cannot be
        sent yet is not queued, and the newest is sent when there is room."""
        state, channel = self._state, self._channel
        with state.changed:
            status = state.follower.status
            requests = state.take_unsent()
        is_first = self._sent is None
        is_due = status != self._sent or now >= self._heartbeat_at
        if is_first or (is_due and not channel.has_unsent):
            told = status
            if is_first:
                seen = 0 if state.wants_all else status.seen
                told = replace(status, seen=seen, headway=__version__)
            channel.queue(self._side.send(Heartbeat(told)))
            self._sent, self._heartbeat_at = status, now + self._timeouts.heartbeat_seconds
        for request in requests:
            channel.queue(self._side.seal(request.packed))
        if state.goodbye is not None and not self._is_leaving:
            self._is_leaving = True
            channel.queue(self._side.send(Goodbye(state.goodbye)))

    def _has_left(self) -> bool:
        """Whether the goodbye is over: there is nobody to say it to, or it was said and the
        coordinator has closed (which ends the conversation elsewhere) or takes too long to."""
        if not self._side.is_open or time.monotonic() >= self._state.goodbye_by:
            return True
        if not self._is_leaving:
            return False  # it was asked for a moment ago: said in the next round, at once
        if not self._channel.has_unsent and not self._has_ended_writing:
            self._has_ended_writing = True
            self._channel.end_writing()
        return False

    def _wake_at(self) -> float:
        until = self._heard_at + self._timeouts.deaf_seconds
        if not self._state.is_connected:
            until = min(until, self._began + self._timeouts.handshake_seconds)
        if self._side.is_open and not self._channel.has_unsent:
            until = min(until, self._heartbeat_at)
        if self._state.goodbye is not None:
            until = min(until, self._state.goodbye_by)
        return until

    def _check_silence(self, now: float) -> None:
        if now - self._heard_at >= self._timeouts.deaf_seconds:
            raise TimeoutError(f"heard nothing for {self._timeouts.deaf_seconds:g} s")
        waited = now - self._began
        if not self._state.is_connected and waited >= self._timeouts.handshake_seconds:
            raise TimeoutError(f"no answer within {self._timeouts.handshake_seconds:g} s")

    def _read(self) -> None:
        if data := self._channel.receive():
            self._heard_at = time.monotonic()
            received = self._side.receive(data)
            self._channel.queue(received.reply)
            for message in received.messages:
                self._hear(message)
            if received.error is not None:
                raise received.error

    def _hear(self, message: FromCoordinator) -> None:
        state, follower = self._state, self._state.follower
        with state.changed:
            match message:
                case Welcome():
                    if not follower.meet(message.incarnation):
                        raise ProtocolError(
                            f"this is coordinator {message.incarnation}, which coordinator "
                            f"{follower.incarnation} has replaced"
                        )
                    follower.hear(self._generation(message.change), message.went)
                    state.is_connected, state.error = True, None
                case GenerationChange():
                    follower.hear(self._generation(message))
                case Go():
                    follower.hear_go(message.generation)
                case Farewell():
                    # Instead of a Welcome it is a refusal, which nobody else says.
                    kind = ProtocolError if state.is_connected else HandshakeRefused
                    raise kind(f"ended the session: {message.reason}")
                case StoreValue() | StoreNumber() | StoreFailed() | StoreValues():
                    state.answered(message)
                    return
                case _:
                    return
            state.show()

    def _generation(self, change: GenerationChange | None) -> Generation:
        state = self._state
        if change is None:
            return state.follower.newest
        try:
            generation = apply(change, state.follower.newest)
        except ProtocolError:
            state.wants_all = True
            raise
        state.wants_all = False
        return generation
