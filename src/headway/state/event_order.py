"""The order of a run's events: by launch, and not by the clocks of the machines that noted them.

Each launch has a first generation. An event belongs to the newest launch that its generation is not
before, whoever notes it and whenever: so what a launcher notes after it was replaced comes before
its successor's launch. Within a launch each log keeps its order, and times merge the logs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

from headway.state.rewinds import Record


def in_order(*logs: Sequence[Record]) -> list[Record]:
    """`logs`: the launcher's first."""
    begun: dict[int, str] = {}
    """Time of each launch, by its first generation."""
    for log in logs:
        for event in log:
            if event["event"] == "launched" and "generation" in event:
                begun.setdefault(event["generation"], event["time"])
    launches = sorted(begun)
    keyed = []
    for log in logs:
        latest = {index: begun[first] for index, first in enumerate(launches, start=1)}
        numbers = [event["generation"] for event in log if "generation" in event]
        launch = bisect_right(launches, numbers[0]) if numbers else len(launches)
        for event in log:
            if "generation" in event:  # else as the one before it
                launch = bisect_right(launches, event["generation"])
            latest[launch] = time = max(event["time"], latest.get(launch, ""))
            keyed.append(((launch, time), event))
    keyed.sort(key=itemgetter(0))
    return [event for _, event in keyed]
