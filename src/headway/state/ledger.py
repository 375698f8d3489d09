"""The ledger: which samples each step consumed, and the proof that each was consumed once.

Three kinds of lines, by the generation's leader:

    {"begin": 2, "step": 300, "batch": 32, "samples": 3794, "length": 128, "data": ..., "code": ...}
    {"rewind": 300, "generation": 2}
    {"step": 301, "first": 9600, "count": 32, "generation": 2, "members": 3, "tokens": 4096, ...}

The order of samples is a pure function of (seed, position), a permutation in every epoch. So it is
enough that positions are consumed without a gap and without a repeat: then every sample of every
epoch was consumed exactly once, in order.

A leader that was stopped, and replaced before it went on, may add lines that are out of date. They
have the number of its generation, and count for nothing once a newer one has begun.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.state.lines import Record


def follows(line: Record, last: Record | None) -> bool:
    """Whether a line belongs behind the one that a ledger ends with; else it is there already."""
    return last is None or _position(line) > _position(last)


def _position(line: Record) -> tuple[int, int, int]:
    """Generations follow each other, and so do the steps of one."""
    if "rewind" in line:
        return line["generation"], line["rewind"], 0
    if "begin" in line:
        return line["begin"], line["step"], 1
    return line["generation"], line["step"], 2


@dataclass(frozen=True)
class Verdict:
    steps: int
    """Steps in the ledger, rewinds folded."""
    samples: int
    """Samples they consumed."""
    epochs: float | None
    """None where an epoch's length was not known when the run began."""
    """Passes over the data."""
    generations: int
    """Starts of the run, and changes of its members."""
    redone: int
    """Steps that were done again after a rewind."""
    not_learned: int
    """Steps that were consumed and skipped."""
    breach: str | None
    """The first thing that is wrong, or None."""


def verify_ledger(records: list[Record], first_step: int = 0) -> Verdict:
    """From the lines alone. `first_step` is where a forked run took over."""
    check = _Check(first_step)
    for number, record in enumerate(records, start=1):
        check.line(record)
        if check.breach is not None:
            check.breach = f"line {number}: {check.breach}"
            break
    return check.verdict()


class _Check:
    """Goes through the lines as a reader would, and stops at the first that does not fit."""

    def __init__(self, first_step: int) -> None:
        self.base = first_step
        self.taken: list[Record] = []
        self.facts: Record | None = None
        self.generation = 0
        self.redone = 0
        self.breach: str | None = None

    @property
    def next_step(self) -> int:
        return (self.taken[-1]["step"] if self.taken else self.base) + 1

    def line(self, record: Record) -> None:
        generation = record.get("generation", record.get("begin"))
        if type(generation) is int and generation < self.generation:
            return  # by a leader that did not know yet that it was replaced
        if "rewind" in record:
            self._rewind(record)
        elif "begin" in record:
            self._begin(record)
        else:
            self._step(record)

    def _rewind(self, record: Record) -> None:
        if not self._has_numbers(record, ("rewind",)):
            return
        step = record["rewind"]
        if step >= self.next_step or step < self.base:
            self.breach = f"rewinds to step {step}, but the ledger stands at {self.next_step - 1}"
            return
        while self.taken and self.taken[-1]["step"] > step:
            self.taken.pop()
            self.redone += 1

    def _has_numbers(self, record: Record, keys: tuple[str, ...]) -> bool:
        """A line that was tampered with or written by another program must not stop the check."""
        for key in keys:
            if type(record.get(key)) is not int:
                self.breach = f"{key} is {record.get(key)!r}, not a number"
                return False
        return True

    def _begin(self, record: Record) -> None:
        if not self._has_numbers(record, ("begin", "step", "batch", "length")):
            return
        if record.get("samples") is not None and not self._has_numbers(record, ("samples",)):
            return
        if record["begin"] <= self.generation:
            self.breach = f"generation {record['begin']} begins after {self.generation}"
        elif record["step"] != self.next_step - 1:
            self.breach = (
                f"generation {record['begin']} begins at step {record['step']}, but the ledger "
                f"stands at {self.next_step - 1}"
            )
        elif self.facts is not None:
            changed = [k for k in FACTS if record.get(k) != self.facts.get(k)]
            if changed:
                key = changed[0]
                self.breach = f"{key} changed from {self.facts.get(key)} to {record.get(key)}"
        if self.breach is None:
            self.facts, self.generation = record, record["begin"]

    def _step(self, record: Record) -> None:
        if self.facts is None:
            self.breach = "a step before any generation began"
            return
        if not self._has_numbers(record, ("step", "first", "count", "generation", "tokens")):
            return
        if not isinstance(record.get("learned"), bool):
            self.breach = f"step {record['step']} does not say whether it was learned"
            return
        batch = self.facts["batch"]
        expected = {
            "step": self.next_step,
            "first": (self.next_step - 1) * batch,
            "count": batch,
            "generation": self.generation,
            "tokens": batch * self.facts["length"],
        }
        for key, value in expected.items():
            if record[key] != value:
                self.breach = f"step {record['step']} has {key} {record[key]}, expected {value}"
                return
        self.taken.append(record)

    def verdict(self) -> Verdict:
        samples = sum(record["count"] for record in self.taken)
        epoch = self.facts["samples"] if self.facts else 1
        return Verdict(
            steps=len(self.taken),
            samples=samples,
            epochs=samples / epoch if epoch else None,
            generations=self.generation,
            redone=self.redone,
            not_learned=sum(not record["learned"] for record in self.taken),
            breach=self.breach,
        )


FACTS = ("batch", "samples", "length", "data")
"""What may not change from one generation to the next."""
