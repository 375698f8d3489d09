"""A line of a log: a JSON object with a checksum as its last key.

    {"time":"2027-01-15T08:00:00.000Z","event":"saved","step":300,...,"sum":"5d41402a"}

A line whose checksum is wrong is damaged, and none of it is believed. A line without one was
written by another program: it counts if it has all that readers of its log rely on.
"""

from __future__ import annotations

import json
from typing import Any

import xxhash

from headway.clock import seconds_of
from headway.state.rewinds import Record

MARK = b',"sum":"'
DIGITS = 8
END = b'"}'
TAIL = len(MARK) + DIGITS + len(END)

KEYS_OF_EVENTS = {
    "below_minimum": "nodes minimum",
    "billed": "budget_usd rates",
    "changed": "generation workers reason seconds discarded step",
    "coordinator_lost": "how",
    "device_failed": "node local_rank device_number reason",
    "diverged": "step names",
    "evaluated": "step losses seconds",
    "finished": "step",
    "gave_back": "held needed retry_at",
    "large_files": "names",
    "launched": "workers",
    "left": "node",
    "left_files": "names",
    "left_out": "machine hours",
    "lost": "node local_rank how",
    "passed_over": "checkpoint reason",
    "replaced": "node seconds",
    "save_failed": "step reason last_good_step last_good_age_seconds",
    "restarted": "workers launcher",
    "saved": "step checkpoint",
    "saving": "step held_seconds",
    "scaled": "nodes before",
    "skipped": "step reason",
    "started": "generation step total_steps resumed_from workers device seconds",
    "stuck": "step seconds",
    "tries_again": "needed",
    "worker": "node local_rank pid",
}
KEYS_OF_STEPS = {
    "activations": "step block",
    "evaluations": "step set loss",
    "metrics": "step time loss tokens_per_second seconds data_seconds",
    "samples": "step prompt text",
}
TYPES: dict[str, type | tuple[type, ...]] = {
    "block": int,
    "checkpoint": str,
    "device": str,
    "event": str,
    "generation": int,
    "held_seconds": (int, float),
    "how": str,
    "launcher": str,
    "local_rank": int,
    "losses": dict,
    "names": list,
    "node": int,
    "nodes": int,
    "rates": list,
    "reason": str,
    "rewind": int,
    "set": str,
    "step": int,
    "time": str,
    "workers": int,
}


def encoded(record: Record) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return text[:-1] + MARK + _checksum(text) + END + b"\n"


def decoded(line: bytes, log: str = "") -> Record | None:
    """Return the record of a line of this log; None: it is damaged."""
    is_summed = line[-TAIL : len(MARK) - TAIL] == MARK
    if is_summed:
        line, checksum = line[:-TAIL] + b"}", line[len(MARK) - TAIL : -len(END)]
        if checksum != _checksum(line):
            return None
    try:
        # Decoded here: json would look for other encodings in every line.
        record = json.loads(line.decode("utf-8", "surrogatepass"))
    except ValueError:
        return None
    if not isinstance(record, dict) or not (is_summed or _is_whole(record, log)):
        return None
    return record


def _checksum(text: bytes) -> bytes:
    return xxhash.xxh32_hexdigest(text).encode()


def _is_whole(record: dict[str, Any], log: str) -> bool:
    if log in ("launcher", "events"):
        needed = f"time event {KEYS_OF_EVENTS.get(str(record.get('event')), '')}"
    elif log in KEYS_OF_STEPS:
        needed = "rewind" if "rewind" in record else KEYS_OF_STEPS[log]
    else:
        return True  # the ledger is verified line by line
    if any(key not in record for key in needed.split()):
        return False
    return all(map(_has_its_type, record.items()))


def _has_its_type(item: tuple[str, Any]) -> bool:
    key, value = item
    if key == "time":
        return isinstance(value, str) and _is_time(value)
    return key not in TYPES or isinstance(value, TYPES[key])


def _is_time(value: str) -> bool:
    try:
        seconds_of(value)
    except ValueError:
        return False
    return True
