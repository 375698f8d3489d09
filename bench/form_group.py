"""`make form-groups FORMS=100`: four processes form a gloo group over the session's store that many
times; in half of them one process is killed while it forms. Ends with one line of JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from support.forming import MEMBERS, form_groups

FORMS = int(os.environ.get("FORMS", "100"))
TARGET_SECONDS = 2.0


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": round(median(ordered), 3),
        "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 3),
        "max": round(ordered[-1], 3),
        "num": len(ordered),
    }


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        result = form_groups(Path(scratch), FORMS, seed=FORMS)
    good = [one for one in result.outcomes if not one.error]
    failed = [one for one in result.outcomes if one.error]
    for kind in sorted({one.error.partition(":")[0] for one in failed}):
        some = [one for one in failed if one.error.startswith(kind)]
        print(f"{kind}: {spread([one.seconds for one in some])}; {some[-1].error[:160]!r}")
    longest = max(one.seconds for one in result.outcomes)
    leaks = [left for left in result.left if left.after > left.before]
    verdict = {
        "name": "form-groups",
        "figure": round(longest, 3),
        "target": TARGET_SECONDS,
        "pass": longest <= TARGET_SECONDS
        and not leaks
        and len(result.left) == MEMBERS
        and result.kills == FORMS // 2,
        "spread": {
            "formed": spread([one.seconds for one in good]),
            "given_up": spread([one.seconds for one in failed]),
            "dropped": spread([one.drop_seconds for one in failed]),
            "recovered": spread(result.recover_seconds),
            "kills": result.kills,
            "leaks": len(leaks),
            "threads_and_descriptors": [[*left.before, *left.after] for left in result.left],
        },
    }
    print(json.dumps(verdict))
    return 0


if __name__ == "__main__":
    sys.exit(main())
