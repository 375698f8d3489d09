"""`make simulate HISTORIES=100000`: random histories of the membership on all cores, every
fourth of a run whose workers restart, and how soon they find each of a list of planted defects.
Ends with one line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from support.membership.history import mixed_history, shrunk
from support.membership.judge import failure, story
from support.membership.mutations import MUTATIONS as LIVE_MUTATIONS
from support.membership.mutations import first_catch
from support.membership.restart_mutations import RESTART_MUTATIONS

MUTATIONS = [*LIVE_MUTATIONS, *RESTART_MUTATIONS]
CHUNK = 500
MOST_HISTORIES = 20_000


def failing(first: int, last: int) -> list[int]:
    return [seed for seed in range(first, last) if failure(mixed_history(seed)) is not None]


def catch(number: int) -> tuple[int | None, float, str]:
    """Histories and seconds to the first catch of a mutation, and what it showed."""
    began = time.perf_counter()
    caught = first_catch(MUTATIONS[number], MOST_HISTORIES)
    seconds = time.perf_counter() - began
    return (None, seconds, "missed") if caught is None else (caught[0], seconds, caught[2])


def main() -> int:
    histories = int(os.environ.get("HISTORIES", "100000"))
    first = int(os.environ.get("SEED", "0"))
    began = time.perf_counter()
    bad: list[int] = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        ends = [
            (begin, min(begin + CHUNK, first + histories))
            for begin in range(first, first + histories, CHUNK)
        ]
        for number, found in enumerate(pool.map(failing, *zip(*ends, strict=True))):
            bad += found
            for seed in found:
                print(f"history {seed} failed", file=sys.stderr)
            if (number + 1) % 20 == 0:
                print(f"{(number + 1) * CHUNK} histories, {len(bad)} failed", file=sys.stderr)
        seconds = time.perf_counter() - began
        catches = list(pool.map(catch, range(len(MUTATIONS))))
    for mutation, (count, took, what) in zip(MUTATIONS, catches, strict=True):
        print(f"{count or 'missed':>7} {took:6.1f} s  {mutation.name}: {what}", file=sys.stderr)
    if bad:
        smallest = shrunk(mixed_history(bad[0]), lambda one: failure(one) is not None)
        print(story(smallest), file=sys.stderr)
    counts = [count for count, _, _ in catches if count is not None]
    print(
        json.dumps(
            {
                "name": "simulate",
                "figure": {
                    "histories": histories,
                    "failed": len(bad),
                    "mutations": len(MUTATIONS),
                    "caught": len(counts),
                },
                "target": {"failed": 0, "mutations": 15, "caught": len(MUTATIONS)},
                "pass": not bad and len(counts) == len(MUTATIONS) >= 15,
                "spread": {
                    "seconds": round(seconds, 1),
                    "failing_seeds": bad[:10],
                    "histories_to_first_catch": sorted(counts),
                },
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
