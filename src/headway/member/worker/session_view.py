"""What training sees of its session with the coordinator: a view, and named errors.

SessionError            what the session could not do, or why it has no connection
├── Late                a deadline has passed; names what was waited for
├── GenerationOver      the request belongs to a generation that has lost a member
├── Unanswered          the connection broke, and a retry could do the thing twice
├── Denied              the coordinator's store refused
├── SessionClosed       close() or goodbye() was called
└── Forked              a forked child cannot use its parent's session
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import HeadwayError
from headway.member.protocol.generation import Domain, Generation
from headway.member.protocol.handshake import HANDSHAKE_SECONDS
from headway.member.protocol.status import WorkerStatus
from headway.member.protocol.wire import DEAF_SECONDS, HEARTBEAT_SECONDS


class SessionError(HeadwayError):
    pass


class Late(SessionError):
    pass


class GenerationOver(SessionError):
    pass


class Unanswered(SessionError):
    pass


class Denied(SessionError):
    pass


class SessionClosed(SessionError):
    pass


class Forked(SessionError):
    pass


@dataclass(frozen=True)
class SessionTimeouts:
    """Deadlines of a session. Those of the coordinator are in `Rules`."""

    heartbeat_seconds: float = HEARTBEAT_SECONDS
    connect_seconds: float = 2.0
    """Time for the connection. The machine behind an address may have vanished."""
    handshake_seconds: float = HANDSHAKE_SECONDS
    """Time from the connection to the Welcome."""
    deaf_seconds: float = DEAF_SECONDS
    first_back_off_seconds: float = 0.05
    longest_back_off_seconds: float = 1.0
    said_seconds: float = 10.0
    """Time without a coordinator after which the log says why. One that is replaced is back
    sooner."""


TIMEOUTS = SessionTimeouts()


@dataclass(frozen=True)
class View:
    """What is known at one moment. It never changes: a newer view replaces it."""

    generation: Generation
    """Newest generation; number 0: none yet."""
    status: WorkerStatus
    """Status that is reported to the coordinator."""
    domain: Domain | None
    """Its own domain in the newest generation; None: it is not a member."""
    may_form: bool
    """Whether all others have entered the generation that it entered."""
    must_drop: bool
    """Whether the step cannot be finished: its generation has lost a member."""
    connected: bool
    """Whether a coordinator has welcomed it, and the connection is open."""
    incarnation: int
    """Incarnation of the newest coordinator it has met."""
    error: SessionError | None
    """Why there is no connection, after an attempt. It keeps retrying."""
