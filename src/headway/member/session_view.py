"""What training sees of its session with the coordinator: a view, and errors by name.

SessionError            what the session could not do, or the newest reason it has no connection
├── Late                a deadline has passed; says what was waited for
├── GenerationOver      what was asked for belongs to a generation that is broken
├── Unanswered          the connection broke, and asking again could do the thing twice
├── Denied              the coordinator's store refused
├── SessionClosed       close() or goodbye() was called
└── Forked              a forked child cannot use its parent's session
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import HeadwayError
from headway.member.events import Status
from headway.member.generation import Domain, Generation
from headway.member.wire import DEAF_SECONDS, HANDSHAKE_SECONDS


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
class Patience:
    """How long the session waits for what. What a coordinator expects is in `Rules`."""

    beat_seconds: float = 1.0
    connect_seconds: float = 2.0
    """For the connection, and TLS. The machine behind an address may have vanished."""
    handshake_seconds: float = HANDSHAKE_SECONDS
    """From the connection to the Welcome."""
    deaf_seconds: float = DEAF_SECONDS
    first_back_off_seconds: float = 0.05
    longest_back_off_seconds: float = 1.0


PATIENCE = Patience()


@dataclass(frozen=True)
class View:
    """What is known at one moment. It never changes: a newer one takes its place."""

    generation: Generation
    """The newest one; number 0: none yet."""
    status: Status
    """What the coordinator is told."""
    domain: Domain | None
    """Its own in the newest generation; None: it is not in it."""
    may_form: bool
    """All others of the generation that it entered have done so too."""
    must_drop: bool
    """The generation it works in is broken: the step cannot be finished."""
    connected: bool
    """A coordinator has welcomed it, and the connection is open."""
    incarnation: int
    """Of the newest coordinator it has met."""
    error: SessionError | None
    """Why there is no connection, if it was tried. It is tried again and again."""
