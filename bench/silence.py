"""`make bench-silence`: how many living members a group of 5,000 loses because they were silent,
with heartbeats as late as `make bench-heartbeats` measured them under load. Ends with one line of
JSON.

Simulated: the members, their delays and the clock. Real: the rule, for HOURS=200 of 5,000 members;
and the whole membership, for SECONDS=720 of them. The longest hundredth of the delays is drawn from
a Pareto law that fits it, so that longer ones than were measured occur; beside it from an
exponential law. And the time in which a machine that vanishes is found.
"""

from __future__ import annotations

import json
import os
import sys
import time

from headway.member.coordinator.rules import Rules
from support.membership.heartbeat_delays import HeartbeatDelays
from support.membership.many_members import ManyMembers, judged_by_rule

MEMBERS = int(os.environ.get("MEMBERS", "5000"))
HOURS = float(os.environ.get("HOURS", "200"))
SECONDS = float(os.environ.get("SECONDS", "720"))
SEED = int(os.environ.get("SEED", "1"))
TARGET = 1.0
"""Wrong evictions in 10,000 hours of a member."""
SIZES = (8, 64, 512)
AS_BEFORE = Rules(small_group=10**9, longest_silence_seconds=Rules.suspected_seconds)


def by_rule(tail: str, hours: float, members: int, rules: Rules) -> dict[str, float]:
    found = judged_by_rule(members, hours, HeartbeatDelays.load(tail), SEED, rules)
    return {
        "member_hours": round(found.member_hours),
        "evicted": found.num_evicted,
        "in_10000_hours": round(found.num_evicted / found.member_hours * 10_000, 3),
        "limit_seconds": round(found.limit, 2),
    }


def found_dead() -> tuple[ManyMembers, float]:
    """A group that trains for long, and then the seconds in which a lost machine of it is found."""
    group = ManyMembers(MEMBERS, HeartbeatDelays.load(), SEED)
    began = time.perf_counter()
    group.play(SECONDS)
    print(f"{SECONDS:.0f} s in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    lost = sorted(group.members)[-1]
    group.dead.add(lost)
    died_at = group.drive.now
    while lost in group.members:
        group.play(0.1)
    return group, group.drive.now - died_at


def main() -> int:
    rules = Rules()
    rows = {
        "pareto": by_rule("pareto", HOURS, MEMBERS, rules),
        "exponential": by_rule("exponential", HOURS / 10, MEMBERS, rules),
        "1.5 s for every size": by_rule("pareto", HOURS / 100, MEMBERS, AS_BEFORE),
        **{f"{size} members": by_rule("pareto", HOURS / 10, size, rules) for size in SIZES},
    }
    for name, row in rows.items():
        print(f"{name}: {row}", file=sys.stderr)
    group, seconds = found_dead()
    figure = rows["pareto"]["in_10000_hours"]
    line = {
        "name": "bench-silence",
        "figure": figure,
        "target": TARGET,
        "pass": figure <= TARGET
        and group.num_evicted == 0
        and seconds <= rules.longest_silence_seconds + 1,
        "spread": {
            "delays": HeartbeatDelays.load().source,
            **rows,
            "membership": {
                "member_hours": round(MEMBERS * SECONDS / 3600),
                "evicted": group.num_evicted,
                "dead_found_seconds": round(seconds, 2),
            },
        },
    }
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
