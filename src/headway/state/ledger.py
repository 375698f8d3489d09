"""The ledger: the samples that each step consumed, and the check that each was consumed once.

Three kinds of lines, written by the leader of the generation:

    {"rewind": 300, "generation": 2, "writer": 2}
    {"begin": 2, "step": 300, "batch": 32, "samples": 3794, "length": 128, "data": ..., "code": ...}
    {"step": 301, "first": 9600, "count": 32, "generation": 2, "members": 3, "tokens": 4096, ...}

The order of samples is a pure function of (seed, position), a permutation in every epoch. So it is
enough that positions are consumed without a gap and without a repeat: then every sample of every
epoch was consumed exactly once, in order.

A suspended leader can resume at any moment, even while its successor reads the log and adds missing
lines. Such lines carry the successor's generation as `writer`. After the first of them, lines of
older leaders are ignored. Only such lines may repeat a line that counts, with the same content; any
other repeat is a breach.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.state.rewinds import Record, writer_generation

FACTS = ("batch", "samples", "length", "data")
"""Values that must stay the same in all generations, once a step counts."""
BEGIN_CLAIMS = ("begin", "step", *FACTS)
STEP_CLAIMS = ("step", "first", "count", "generation", "tokens", "learned")


def follows(line: Record, last: Record | None) -> bool:
    """Whether a line comes after the last line of a log; else the log has it already."""
    return last is None or _position(line) > _position(last)


def _position(line: Record) -> tuple[int, int, int]:
    """Sort key: generations in order, and the steps of each in order."""
    if "begin" in line:
        return line["begin"], line["step"], 1
    if "rewind" in line:
        return line["generation"], line["rewind"], 0
    return line["generation"], line["step"], 2


@dataclass(frozen=True)
class Verdict:
    steps: int
    """Steps in the ledger, with rewinds applied."""
    samples: int
    """Samples they consumed."""
    epochs: float | None
    """Passes over the data; None if the length of an epoch was not known at the start."""
    generations: int
    """Number of generations: starts of the run and membership changes."""
    redone: int
    """Steps that were repeated after a rewind."""
    not_learned: int
    """Steps that were consumed and skipped."""
    breach: str | None
    """First error, or None."""


def verify_ledger(records: list[Record], first_step: int = 0) -> Verdict:
    """Checks the lines alone. `first_step` is the step that a forked run starts from."""
    check = _Check(first_step)
    for number, record in enumerate(records, start=1):
        check.line(record)
        if check.breach is not None:
            check.breach = f"line {number}: {check.breach}"
            break
    return check.verdict()


class _Check:
    """Reads the lines in order, and stops at the first error."""

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
        writer = writer_generation(record)
        if type(writer) is int and writer < self.writer:
            return  # by a leader that did not know yet that it had been replaced
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
        """Whether a line that was added for another leader repeats one that is already here."""
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
            self.breach = (
                f"rewinds to step {step}, but the ledger ends at step {self.next_step - 1}"
            )
            return
        while self.taken and self.taken[-1]["step"] > step:
            self.taken.pop()
            self.redone += 1

    def _has_numbers(self, record: Record, keys: tuple[str, ...]) -> bool:
        """Lines of unexpected content must not crash the check."""
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
                f"ends at step {self.next_step - 1}"
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
            self.breach = "a step before the first generation"
            return
        if not self._has_numbers(record, ("step", "first", "count", "generation", "tokens")):
            return
        if not isinstance(record.get("learned"), bool):
            self.breach = f"step {record['step']} has no `learned`"
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
