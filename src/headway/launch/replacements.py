"""Lost nodes, until a replacement has joined the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from headway.clock import seconds_of
from headway.launch.pod_decisions import PodFacts
from headway.state.rewinds import Record


@dataclass(frozen=True)
class Replacement:
    node: int
    pod: str
    seconds: float
    """Time from the loss until it joined."""


class Replacements:
    def __init__(self) -> None:
        self._lost: dict[int, tuple[str | None, float]] = {}
        """By node: its pod, if this keeper lost it, and when."""

    def remember(self, events: Iterable[Record]) -> None:
        """`events`: the launcher's, so that a new keeper knows what the one before has lost."""
        for event in events:
            match event["event"]:
                case "launched":
                    self.clear()
                case "lost":
                    self._lost[event["node"]] = (None, seconds_of(event["time"]))
                case "replaced":
                    self._lost.pop(event["node"], None)
                case "scaled":
                    self.scale(event["nodes"])

    def clear(self) -> None:
        """All workers are started anew."""
        self._lost.clear()

    def lose(self, node: int, pod: str, now: float) -> None:
        first = self._lost.get(node, (None, now))[1]
        self._lost[node] = (pod, first)

    def scale(self, nodes: int) -> None:
        """Nodes above are not wanted any more."""
        self._lost = {node: lost for node, lost in self._lost.items() if node < nodes}

    def look(self, pods: Sequence[PodFacts], members: Set[str], now: float) -> list[Replacement]:
        """Replacements that have joined since the last look."""
        joined = [
            Replacement(pod.index, pod.name, now - self._lost[pod.index][1])
            for pod in pods
            if pod.name in members
            and pod.index in self._lost
            and pod.name != self._lost[pod.index][0]
            and not pod.has_ended
        ]
        for one in joined:
            self._lost.pop(one.node, None)
        return joined
