"""The ledger: which samples each step consumed, and the proof that each was consumed once.

Three kinds of lines, by the generation's leader:

    {"rewind": 300, "generation": 2, "writer": 2}
    {"begin": 2, "step": 300, "batch": 32, "samples": 3794, "length": 128, "data": ..., "code": ...}
    {"step": 301, "first": 9600, "count": 32, "generation": 2, "members": 3, "tokens": 4096, ...}

The order of samples is a pure function of (seed, position), a permutation in every epoch. So it is
enough that positions are consumed without a gap and without a repeat: then every sample of every
epoch was consumed exactly once, in order.

A leader that was stopped may go on at any moment, also while its successor looks at what is there
and makes up for what is missing. Such lines of a successor carry its generation as `writer`. From
the first of them on, what older ones add counts for nothing; and they alone may repeat a line that
counts, if they claim the same. Any other repeat is a breach.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.state.lines import Record, writer_of

FACTS = ("batch", "samples", "length", "data")
"""What may not change from one generation to the next, once a step counts."""
BEGIN_CLAIMS = ("begin", "step", *FACTS)
STEP_CLAIMS = ("step", "first", "count", "generation", "tokens", "learned")


def follows(line: Record, last: Record | None) -> bool:
    """Whether a line belongs behind the one that a log ends with; else it is there already."""
    return last is None or _position(line) > _position(last)


def _position(line: Record) -> tuple[int, int, int]:
    """Generations follow each other, and so do the steps of one."""
    if "begin" in line:
        return line["begin"], line["step"], 1
    generation = line.get("generation", 0)  # the lines of older versions have none
    if "rewind" in line:
        return generation, line["rewind"], 0
    return generation, line["step"], 2


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
        self.begun: dict[float, Record] = {}
        """By generation."""
        self.facts: Record | None = None
        self.generation = 0
        self.writer = 0
        self.redone = 0
        self.breach: str | None = None

    @property
    def next_step(self) -> int:
        return (self.taken[-1]["step"] if self.taken else self.base) + 1

    def line(self, record: Record) -> None:
        writer = writer_of(record)
        if type(writer) is int and writer < self.writer:
            return  # by a leader that did not know yet that it was replaced
        if "writer" in record:
            if not self._has_numbers(record, ("writer",)):
                return
            self.writer = writer
            if self._is_repeat(record):
                return
        if "rewind" in record:
            self._rewind(record)
        elif "begin" in record:
            self._begin(record)
        else:
            self._step(record)

    def _is_repeat(self, record: Record) -> bool:
        """Whether a line that makes up for another leader's says what stands here already."""
        if "rewind" in record:
            generation = record.get("generation")
            return type(generation) is int and generation <= self.generation
        if "begin" in record:
            begin = record["begin"]
            known = self.begun.get(begin) if isinstance(begin, int | float) else None
            return known is not None and _same_claims(known, record, BEGIN_CLAIMS)
        step = record.get("step")
        if type(step) is not int or not self.base < step < self.next_step:
            return False
        return _same_claims(self.taken[step - self.base - 1], record, STEP_CLAIMS)

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
        elif self.facts is not None and self.taken:  # what nothing was learned with may change
            changed = [k for k in FACTS if record.get(k) != self.facts.get(k)]
            if changed:
                key = changed[0]
                self.breach = f"{key} changed from {self.facts.get(key)} to {record.get(key)}"
        if self.breach is None:
            self.facts, self.generation = record, record["begin"]
            self.begun[self.generation] = record
            self.writer = max(self.writer, self.generation)

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


def _same_claims(one: Record, other: Record, keys: tuple[str, ...]) -> bool:
    return all(one.get(key) == other.get(key) for key in keys)
