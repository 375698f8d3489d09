"""What a session's thread and the threads of training share. `changed` guards all of it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from headway.member.protocol.generation import Domain, Generation
from headway.member.protocol.messages import (
    MAX_REQUESTS,
    StoreAnswer,
    StoreCheck,
    StoreGather,
    StoreGet,
    StoreRequest,
    StoreSet,
)
from headway.member.protocol.wire import PackedMessage, pack
from headway.member.worker.channel import Sleeper
from headway.member.worker.follower import Follower
from headway.member.worker.session_view import (
    GenerationOver,
    Late,
    SessionClosed,
    SessionError,
    View,
)

REPEATABLE = (StoreSet, StoreGet, StoreCheck, StoreGather)


class OpenRequest:
    """A request to the store. It stays in the list until it is answered or the connection ends:
    for so long the coordinator counts it."""

    __slots__ = ("answer", "is_given_up", "is_lost", "is_repeatable", "is_sent", "number", "packed")

    def __init__(self, number: int, message: StoreRequest) -> None:
        self.number = number
        self.packed: PackedMessage = pack(message)
        self.is_repeatable = isinstance(message, REPEATABLE)
        """Asked twice it does no harm."""
        self.answer: StoreAnswer | None = None
        self.is_sent = self.is_lost = self.is_given_up = False


class SessionState:
    def __init__(self, name: str) -> None:
        self.changed = threading.Condition()
        """Notified of every new view."""
        self.sleeper = Sleeper()
        self.follower = Follower(name)
        self.error: SessionError | None = None
        self.is_connected = False
        self.has_ended = False
        self.wants_all = False
        """The next connection asks for the whole list of members."""
        self.goodbye: str | None = None
        """Reason of the goodbye that is to be said."""
        self.goodbye_by = 0.0
        self._requests: dict[int, OpenRequest] = {}
        self._to_send: deque[OpenRequest] = deque()
        self._num_requests = 0
        self._domain_of: tuple[Generation | None, Domain | None] = (None, None)
        with self.changed:
            self.show()

    def show(self) -> None:
        """Makes what has changed visible to all."""
        follower = self.follower
        if self._domain_of[0] is not follower.newest:
            self._domain_of = (follower.newest, follower.domain)
        self.view = View(
            generation=follower.newest,
            status=follower.status,
            domain=self._domain_of[1],
            may_form=follower.may_form,
            must_drop=follower.must_drop(),
            connected=self.is_connected,
            incarnation=follower.incarnation,
            error=self.error,
        )
        self.changed.notify_all()

    def check_open(self) -> None:
        if self.has_ended:
            why = "" if self.error is None else f"; before that, {self.error.message}"
            raise SessionClosed(f"the session with the coordinator is closed{why}")

    def check_generation(self, generation: int, what: str) -> None:
        newest = self.view.generation
        if newest.breaks(generation):
            raise GenerationOver(
                f"generation {newest.number} has replaced {generation} during {what}: "
                f"{newest.reason}"
            )

    def late(self, what: str, seconds: float) -> Late:
        why = "" if self.error is None else f"; {self.error.message}"
        return Late(f"waited {seconds:.3g} s for {what}{why}")

    # Requests to the store

    @property
    def has_room(self) -> bool:
        return len(self._requests) < MAX_REQUESTS

    def add(self, make: Callable[[int], StoreRequest]) -> OpenRequest:
        self._num_requests += 1
        request = OpenRequest(self._num_requests, make(self._num_requests))
        self._requests[request.number] = request
        self._to_send.append(request)
        self.sleeper.wake()
        return request

    def take_unsent(self) -> list[OpenRequest]:
        """To be sent now."""
        taken = list(self._to_send)
        self._to_send.clear()
        for request in taken:
            request.is_sent = True
        return taken

    def answered(self, answer: StoreAnswer) -> None:
        request = self._requests.pop(answer.request, None)
        if request is not None:
            request.answer = answer
            self.changed.notify_all()

    def give_up(self, request: OpenRequest) -> None:
        if request.is_sent:
            request.is_given_up = True
        else:
            del self._requests[request.number]
            self._to_send.remove(request)

    def requests_disconnected(self) -> None:
        """Those that can be repeated are sent again by the next connection."""
        self._to_send.clear()
        for request in list(self._requests.values()):
            if request.is_given_up or (request.is_sent and not request.is_repeatable):
                request.is_lost = True
                del self._requests[request.number]
            else:
                request.is_sent = False
                self._to_send.append(request)
