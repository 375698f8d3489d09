"""Both sides of a connection, without sockets."""

from __future__ import annotations

import pytest

from headway.member.protocol.handshake import CoordinatorSide, WorkerSide
from headway.member.protocol.messages import Go, ProtocolError
from headway.member.protocol.wire import Received
from support.fuzz import ANSWERS, KEY, MESSAGES, RUN, WORKER, shake_hands

SAID = list(MESSAGES.values())
ANSWERED = list(ANSWERS.values())


def opened() -> tuple[WorkerSide, CoordinatorSide]:
    worker, coordinator = WorkerSide(KEY, RUN, WORKER), CoordinatorSide(KEY, RUN, 3)
    shake_hands(worker, coordinator)
    return worker, coordinator


def refused(side: WorkerSide | CoordinatorSide, data: bytes) -> ProtocolError:
    """The error that `data` ends the connection with."""
    received = side.receive(data)
    assert received.error is not None
    assert received.messages == []
    assert not side.is_open
    return received.error


def assert_dead(side: WorkerSide | CoordinatorSide, *honest: bytes) -> None:
    assert side.error is not None
    for frame in honest:
        assert side.receive(frame) == Received([], b"", side.error)
    with pytest.raises(ProtocolError):
        side.send(Go(1))
    assert not side._buffer
