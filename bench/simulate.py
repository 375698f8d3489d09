"""`make simulate HISTORIES=100000`: random histories of the membership on all cores, every
fourth of a run whose workers restart, and how soon they find each of a list of planted defects.
Ends with one line of JSON. REMEMBER=1 keeps the seeds that found the defects for the gate."""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from support.membership.history import mixed_history, shrunk
from support.membership.judge import failure, story
from support.membership.mutations import MUTATIONS as LIVE_MUTATIONS
from support.membership.mutations import SEEDS, Catch, first_catch
from support.membership.restart_mutations import RESTART_MUTATIONS

MUTATIONS = [*LIVE_MUTATIONS, *RESTART_MUTATIONS]
CHUNK = 500
MOST_HISTORIES = 20_000


def failing(first: int, last: int) -> list[int]:
    return [seed for seed in range(first, last) if failure(mixed_history(seed)) is not None]


def catch(number: int) -> tuple[Catch | None, float]:
    """First catch of a mutation, and the seconds it took."""
    began = time.perf_counter()
    return first_catch(MUTATIONS[number], MOST_HISTORIES), time.perf_counter() - began


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
    for mutation, (caught, took) in zip(MUTATIONS, catches, strict=True):
        count, what = (caught.seed + 1, caught.what) if caught else ("missed", "")
        print(f"{count:>7} {took:6.1f} s  {mutation.name}: {what}", file=sys.stderr)
    if bad:
        smallest = shrunk(mixed_history(bad[0]), lambda one: failure(one) is not None)
        print(story(smallest), file=sys.stderr)
    seeds = {
        mutation.name: caught.seed
        for mutation, (caught, _) in zip(MUTATIONS, catches, strict=True)
        if caught is not None
    }
    if os.environ.get("REMEMBER"):
        SEEDS.write_text(json.dumps(seeds, indent=1) + "\n")
    print(
        json.dumps(
            {
                "name": "simulate",
                "figure": {
                    "histories": histories,
                    "failed": len(bad),
                    "mutations": len(MUTATIONS),
                    "caught": len(seeds),
                },
                "target": {"failed": 0, "mutations": 15, "caught": len(MUTATIONS)},
                "pass": not bad and len(seeds) == len(MUTATIONS) >= 15,
                "spread": {
                    "seconds": round(seconds, 1),
                    "failing_seeds": bad[:10],
                    "histories_to_first_catch": sorted(seed + 1 for seed in seeds.values()),
                },
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
