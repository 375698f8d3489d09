"""`make bench-compare`: Headway beside torchrun's elastic agent and torchft, FAULTS=5 of each kind.

In every round each tool trains the same model on NODES=3 workers and meets every fault once, so
that other load on the machine affects all of them. A loss is measured from the fault to the first
step that all survivors have committed without the lost worker; a planned leave, a join and a lost
coordinator by the longest time that a survivor went without a step. TOOLS=headway and
KINDS=kill,stop choose some; `restart` is Headway with `elastic: restart`, `tuned` is torchft with
shorter timeouts. torchft has its own environment, in COMPARE_ENV.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.compare.environment import ENVIRONMENT, make_environment, versions
from bench.compare.tools import (
    NODES,
    Agents,
    Headway,
    HeadwayRestart,
    Lines,
    Strike,
    Torchft,
    TorchftTuned,
    Torchrun,
)

FAULTS, SEED = int(os.environ.get("FAULTS", "5")), int(os.environ.get("SEED", "1"))
DEADLINE_SECONDS = float(os.environ.get("DEADLINE", "120"))
SETTLE_SECONDS = 2 * DEADLINE_SECONDS
LOSSES = ("kill", "kill first", "kill two", "stop", "machine")
KINDS = ("kill", "kill first", "kill two", "stop", "leave", "join", "machine", "coordinator")
TOOLS: dict[str, type[Agents] | type[Headway]] = {
    "headway": Headway,
    "restart": HeadwayRestart,
    "torchrun": Torchrun,
    "torchft": Torchft,
    "tuned": TorchftTuned,
}
PYTHONS = dict.fromkeys(("headway", "restart", "torchrun"), Path(sys.executable))
PYTHONS |= dict.fromkeys(("torchft", "tuned"), ENVIRONMENT / "bin" / "python")
Result = dict[str, Any]


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    kinds = [kind for kind in KINDS if kind in os.environ.get("KINDS", kind).split(",")]
    tools = [tool for tool in TOOLS if tool in os.environ.get("TOOLS", tool).split(",")]
    if {PYTHONS[tool] for tool in tools} != {Path(sys.executable)}:
        make_environment()
    found: dict[str, dict[str, list[Result]]] = {t: {k: [] for k in kinds} for t in tools}
    steps: dict[str, list[float]] = {tool: [] for tool in tools}
    for _ in range(FAULTS):
        for tool in tools:
            one_round(tool, found[tool], steps[tool])
    spread = {
        tool: {kind: summary(results) for kind, results in by_kind.items()}
        for tool, by_kind in found.items()
    }
    ours = [one["median"] for one in spread.get(tools[0], {}).values()]
    line = {
        "name": "compare",
        "figure": max((one for one in ours if one is not None), default=None),
        "target": None,
        "pass": bool(ours) and None not in ours,
        "spread": spread,
        "step_seconds": {tool: round(statistics.median(all_), 3) for tool, all_ in steps.items()},
        "versions": {"date": str(datetime.now(UTC).date())}
        | {t: versions(PYTHONS[t]) for t in tools},
    }
    print(json.dumps(line))
    return 0


def one_round(tool: str, found: dict[str, list[Result]], steps: list[float]) -> None:
    run = begin(tool)
    try:
        for kind in found:
            chance = random.Random(f"{SEED}/{kind}/{len(found[kind])}")
            world = NODES - 1 if kind == "join" else NODES
            while not settle(run, world):
                say(f"{tool}: not {world} workers within {SETTLE_SECONDS:.0f} s; begun anew")
                run.end()
                run = begin(tool)
            newest = next(iter(run.lines().values()))[-5:]
            steps += [after["time"] - before["time"] for before, after in pairwise(newest)]
            found[kind].append(measure(run, kind, chance))
            say(f"{tool}: {kind} {len(found[kind])}/{FAULTS}: {found[kind][-1]}")
    finally:
        run.end()


def begin(tool: str) -> Agents | Headway:
    folder = Path(tempfile.mkdtemp(prefix=f"headway-compare-{tool}-"))  # its logs are kept
    return TOOLS[tool](folder, PYTHONS[tool].parent)


def settle(run: Agents | Headway, world: int) -> bool:
    """Until so many have trained together for five steps, and there is a checkpoint."""
    deadline = time.monotonic() + SETTLE_SECONDS
    run.complete() if world == NODES else run.shrink()
    while time.monotonic() < deadline:
        lines = run.lines()
        newest = [own[-5:] for own in lines.values() if own and time.time() - own[-1]["time"] < 3]
        worlds = [{(one["world"], one["generation"]) for one in own} for own in newest]
        if len(newest) == min(world, len(lines)) and all(
            len(own) == 5 and len(of) == 1 and own[0]["world"] == world and own[0]["step"] > 10
            for own, of in zip(newest, worlds, strict=True)
        ):
            return True
        time.sleep(0.25)
    return False


def measure(run: Agents | Headway, kind: str, chance: random.Random) -> Result:
    time.sleep(chance.random() * 0.2)  # any point of a step
    strike, result, undone, note = run.strike(kind, chance), None, False, {}
    while (passed := time.time() - strike.at) < DEADLINE_SECONDS:
        if not undone and passed >= strike.undo_seconds:
            if run.has_ended(strike.lost):
                note = {"note": "all agents had ended, and were started again from outside"}
            strike.undo()
            undone = True
        result = result or judge(run.lines(), strike, kind)
        if undone and (result or run.has_ended(strike.lost)):
            break
        time.sleep(0.2)
    ended = "the run ended" if run.has_ended(strike.lost) else "not within the deadline"
    return result | note if result else {"seconds": None, "steps_lost": None, "note": ended}


def judge(lines: dict[int, Lines], strike: Strike, kind: str) -> Result | None:
    """What the fault cost, once every survivor has committed a step after it.

    After a loss that is a step in another generation, or two steps on: who is lost can have had a
    part in the step in flight only.
    """
    reached = max(one["step"] for own in lines.values() for one in own if one["time"] <= strike.at)
    firsts, pauses, lost = [], [], 0
    for own in (own for node, own in lines.items() if node not in strike.lost):
        start = max(index for index, one in enumerate(own) if one["time"] <= strike.at)

        def is_over(one: Result, before: Result = own[start]) -> bool:
            if kind == "coordinator":  # back since ten seconds, if it comes back
                return bool(one["time"] > strike.at + 20)
            changed = one["generation"] != before["generation"]
            if kind in LOSSES:
                return changed or one["step"] >= reached + 2
            return changed and (kind == "leave" or one["world"] == NODES)

        end = next((i for i in range(start + 1, len(own)) if is_over(own[i])), None)
        if end is None:
            return None
        firsts.append(own[end]["time"] - strike.at)
        for before, after in pairwise(own[start : end + 1]):
            pauses.append(after["time"] - before["time"])
            lost = max(lost, before["step"] + 1 - after["step"])
    seconds = max(firsts) if kind in LOSSES else max(pauses)
    result = {"seconds": round(seconds, 3), "steps_lost": lost}
    return result | ({"joined_after": round(max(firsts), 3)} if kind == "join" else {})


def summary(results: list[Result]) -> Result:
    """Without an end within the deadline is longer than any other."""
    seconds = sorted(
        (one["seconds"] for one in results), key=lambda s: math.inf if s is None else s
    )
    return {
        "median": seconds[len(seconds) // 2],
        "longest": seconds[-1],
        "all": seconds,
        "steps_lost": [one["steps_lost"] for one in results],
        "joined_after": [one["joined_after"] for one in results if "joined_after" in one],
        "notes": [one["note"] for one in results if "note" in one],
    }


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
