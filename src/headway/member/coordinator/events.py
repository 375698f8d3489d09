"""What happens, and what is decided: the events and decisions of `Membership`.

A worker sends its whole status at each change and with each heartbeat. Nothing has to be repeated
or acknowledged: a message that is lost, doubled or late makes no difference after the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.member.protocol.generation import Generation
from headway.member.protocol.status import WorkerStatus


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A worker that has proven the run's key has sent its first heartbeat. A newer session replaces
    an older one."""

    worker: str
    session: int
    status: WorkerStatus


@dataclass(frozen=True, slots=True)
class StatusReceived:
    worker: str
    session: int
    status: WorkerStatus


@dataclass(frozen=True, slots=True)
class GoodbyeReceived:
    """The worker itself says that its process ends now."""

    worker: str
    session: int


@dataclass(frozen=True, slots=True)
class SessionEnded:
    worker: str
    session: int


@dataclass(frozen=True, slots=True)
class WorkerDismissed:
    """The launcher says that the worker has ended, or that another has replaced it."""

    worker: str


@dataclass(frozen=True, slots=True)
class GenerationWritten:
    """The generation is in the record: it may be published."""

    number: int


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """The record was changed by another coordinator, which has replaced this one."""

    number: int


Event = (
    SessionOpened
    | StatusReceived
    | GoodbyeReceived
    | SessionEnded
    | WorkerDismissed
    | GenerationWritten
    | WriteRefused
)


@dataclass(frozen=True, slots=True)
class WriteGeneration:
    """Into the record, by compare-and-swap, after the generation before it."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class PublishGeneration:
    """To every session."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class PublishGo:
    """To every session: all have entered, form the group now."""

    generation: int


@dataclass(frozen=True, slots=True)
class UpdateSession:
    """To one session: the current generation, and whether all have entered it."""

    session: int


@dataclass(frozen=True, slots=True)
class CloseSession:
    session: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepDown:
    """This coordinator must stop: another has replaced it, or its record is not to be trusted."""

    reason: str


Decision = WriteGeneration | PublishGeneration | PublishGo | UpdateSession | CloseSession | StepDown
