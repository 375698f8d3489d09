"""What a worker tells the coordinator of itself, in every heartbeat."""

from __future__ import annotations

from msgspec import Struct


class WorkerStatus(Struct, frozen=True):
    """Generations are numbers; 0: none."""

    seen: int = 0
    """Newest generation it knows."""
    entered: int = 0
    """Newest generation for which it has left all earlier ones; it waits for the others."""
    went: int = 0
    """Newest generation that, as it knows, all have entered."""
    healed: int = 0
    """Newest generation whose group works, and in which it has the run's state."""
    trouble: int = 0
    """Newest generation whose group could not be formed, or in which a collective failed or
    hangs."""
    peers: tuple[str, ...] = ()
    """Peers it could not reach there, if known. Not those that left the group: a worker in trouble
    leaves it, and the others see that."""
    waits: int = 0
    """Generation in which its collective takes long. Not a complaint: a step may be long. But from
    now on a silent peer costs time."""
    ready: bool = False
    """Whether imports are done and the model is built: it could train now."""
    leaving: bool = False
    """Whether its machine is wanted back; it continues to the end of a step."""
    step_seconds: int = 0
    """Median time of its recent steps, rounded up. 0: none yet."""
    headway: str = ""
    """Version of Headway it runs; in the first heartbeat of a session."""
