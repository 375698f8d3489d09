"""What the machine is told, and what it answers.

A pod says all of its state whenever that changes, and once a beat. So nothing has to be repeated or
acknowledged: a message that is lost, doubled or late makes no difference after the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from headway.member.generation import Generation


class Status(Struct, frozen=True):
    """A pod's side of the membership. Generations are numbers; 0: none."""

    seen: int = 0
    """The newest one it knows."""
    entered: int = 0
    """The newest one for which it has let go of all before; it waits for the others."""
    went: int = 0
    """The newest one it knows all to have entered."""
    healed: int = 0
    """The newest one whose group works, and in which it has the run's state."""
    trouble: int = 0
    """The newest one whose group could not be formed, or in which a collective failed or hangs."""
    peers: tuple[str, ...] = ()
    """Whom it could not reach there, if it knows. Not those who let go of the group: whoever has
    trouble does so, and the others see it."""
    waits: int = 0
    """The one in which a collective of it takes long. No complaint: a step may be long. But now it
    costs something if somebody is silent."""
    ready: bool = False
    """Imports are done and the model is built: it could train now."""
    leaving: bool = False
    """Its machine is wanted back; it works on to the end of a step."""
    step_seconds: int = 0
    """Median time of its recent steps, rounded up. 0: it has not taken one yet."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A session of a pod that has proven the run's key. A newer one replaces an older one."""

    pod: str
    session: int
    status: Status


@dataclass(frozen=True, slots=True)
class Told:
    pod: str
    session: int
    status: Status


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The process ends now, and says so itself."""

    pod: str
    session: int


@dataclass(frozen=True, slots=True)
class Closed:
    pod: str
    session: int


@dataclass(frozen=True, slots=True)
class Dismissed:
    """Whoever looks after the pods says that it is no more, or that another takes its place."""

    pod: str


@dataclass(frozen=True, slots=True)
class Written:
    """The generation is in the record: it may be announced."""

    number: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The record has changed under us: somebody else is the coordinator now."""

    number: int


Event = Opened | Told | Goodbye | Closed | Dismissed | Written | Refused


@dataclass(frozen=True, slots=True)
class Write:
    """Into the record, by compare-and-swap, over the generation before it."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Publish:
    """To every session."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Go:
    """To every session: all have entered, form the group now."""

    generation: int


@dataclass(frozen=True, slots=True)
class Tell:
    """To one session: the current generation, and whether all have entered it."""

    session: int


@dataclass(frozen=True, slots=True)
class Close:
    session: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepDown:
    """This coordinator must not go on."""

    reason: str


Decision = Write | Publish | Go | Tell | Close | StepDown
