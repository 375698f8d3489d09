"""The ledger proves that every sample was consumed once, and finds every line that says else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.state.ledger import follows, verify_ledger
from headway.state.record_log import FileLog

Lines = list[dict[str, Any]]
BATCH, SAMPLES, LENGTH = 4, 10, 8
FACTS = {"batch": BATCH, "samples": SAMPLES, "length": LENGTH, "data": "d1", "code": None}


def step_line(step: int, generation: int, learned: bool = True) -> dict[str, Any]:
    return {
        "step": step,
        "first": (step - 1) * BATCH,
        "count": BATCH,
        "generation": generation,
        "members": 2,
        "tokens": BATCH * LENGTH,
        "loss": 2.5,
        "learned": learned,
    }


def ledger_of(starts: list[tuple[int, int]], base: int = 0) -> Lines:
    """Each start commits so many steps and is killed; the next goes on from a checkpoint so many
    steps behind. Written as training writes it: the last step of a killed start was not settled."""
    lines: Lines = []
    step = base
    for generation, (committed, behind) in enumerate(starts, start=1):
        if generation > 1:
            in_ledger = max((line["step"] for line in exact(lines)), default=base)
            step = max(base, min(step, in_ledger) - behind)
            lines.append({"rewind": step, "generation": generation})
        lines.append({"begin": generation, "step": step, **FACTS})
        settled = committed if generation == len(starts) else max(0, committed - 1)
        lines += [step_line(step + more, generation) for more in range(1, settled + 1)]
        step += committed
    return lines


def exact(lines: Lines) -> Lines:
    """By brute force: the step lines that count."""
    counting: Lines = []
    begun = 0
    for line in lines:
        if line.get("generation", line.get("begin")) < begun:
            continue  # out of date when it was written
        begun = max(begun, line.get("begin", 0))
        if "rewind" in line:
            counting = [known for known in counting if known["step"] <= line["rewind"]]
        elif "begin" not in line:
            counting.append(line)
    return counting


def is_exact(lines: Lines, base: int = 0) -> bool:
    """By the definition: what counts consumed the positions base, base + 1, ... once, in order."""
    positions = [p for line in exact(lines) for p in range(line["first"], line["first"] + BATCH)]
    return positions == list(range(base * BATCH, base * BATCH + len(positions)))


STARTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=6)


# --- what is right is found right


@given(starts=STARTS, base=st.sampled_from([0, 0, 300]))
def test_any_history_of_kills_and_rewinds_is_exact(
    starts: list[tuple[int, int]], base: int
) -> None:
    lines = ledger_of(starts, base)
    verdict = verify_ledger(lines, base)
    counting = exact(lines)
    assert verdict.breach is None
    assert is_exact(lines, base)
    assert verdict.steps == len(counting)
    assert verdict.samples == len(counting) * BATCH
    assert verdict.epochs == pytest.approx(len(counting) * BATCH / SAMPLES)
    assert verdict.generations == len(starts)
    written = sum("begin" not in line and "rewind" not in line for line in lines)
    assert verdict.redone == written - len(counting)
    assert verdict.not_learned == 0


def test_nothing_is_exact() -> None:
    verdict = verify_ledger([])
    assert (verdict.steps, verdict.epochs, verdict.breach) == (0, 0.0, None)


def test_steps_not_learned_are_consumed() -> None:
    begin = {"begin": 1, "step": 0, **FACTS}
    verdict = verify_ledger([begin, step_line(1, 1), step_line(2, 1, learned=False)])
    assert (verdict.steps, verdict.samples, verdict.not_learned) == (2, 8, 1)


def test_the_code_may_change_between_generations() -> None:
    lines = ledger_of([(3, 0), (3, 0)])
    next(line for line in lines if line.get("begin") == 2)["code"] = "another"
    assert verify_ledger(lines).breach is None


def test_facts_may_change_until_a_step_counts() -> None:
    """A run of which nothing was saved may be started again with other settings."""
    other = {**FACTS, "batch": 7, "data": "another"}
    failed = [{"begin": 1, "step": 0, **other}, {"rewind": 0, "generation": 2}]
    begun = [{"begin": 2, "step": 0, **FACTS}, step_line(1, 2)]
    assert verify_ledger([*failed, *begun]).breach is None
    late = [{"rewind": 1, "generation": 3}, {"begin": 3, "step": 1, **other}]
    assert "changed" in str(verify_ledger([*failed, *begun, *late]).breach)


@given(starts=STARTS, cut=st.integers(0, 100))
def test_what_is_missing_at_the_end_is_known(starts: list[tuple[int, int]], cut: int) -> None:
    """A successor has the same lines, and appends those that the leader could not write."""
    lines = ledger_of(starts)
    written = lines[: max(1, len(lines) - cut)]
    missing = [line for line in lines if follows(line, written[-1])]
    assert written + missing == lines
    assert [line for line in lines if follows(line, None)] == lines


# --- a leader that goes on while another takes over


def mended(lines: Lines, writer: int) -> Lines:
    """As a successor writes what it misses."""
    return [{**line, "writer": writer} for line in lines]


def takeover(written: int, missing: int, alone: int, more: int) -> tuple[Lines, Lines, Lines]:
    """What is there when the successor looks; what the old leader adds, some of it committed by
    itself alone; and what the successor does."""
    first = {"begin": 1, "step": 0, **FACTS}
    steps = [step_line(step, 1) for step in range(1, written + missing + alone + 1)]
    stands = written + missing
    again = [
        {"rewind": stands, "generation": 2},
        {"begin": 2, "step": stands, **FACTS},
    ]
    new = mended([*steps[written:stands], *again], 2)
    new += [step_line(stands + n, 2) for n in range(1, more + 1)]
    return [first, *steps[:written]], steps[written:], new


SOME = st.integers(0, 3)
TAKEOVERS = st.tuples(SOME, SOME, SOME, SOME)


@given(TAKEOVERS, st.lists(st.booleans(), max_size=12))
def test_two_leaders_at_once_are_no_breach_however_their_lines_fall(
    takeover_of: tuple[int, int, int, int], is_old: list[bool]
) -> None:
    lines, old, new = takeover(*takeover_of)
    written, missing, _, more = takeover_of
    for turn in is_old:
        source = old if turn else new
        lines += source[:1]
        del source[:1]
    lines += new + old
    verdict = verify_ledger(lines)
    assert (verdict.breach, verdict.steps) == (None, written + missing + more)
    assert verdict.generations == 2


def test_a_successor_that_did_not_see_all_may_write_all_of_it_again() -> None:
    """Its look found the end of an older leader's segment."""
    lines = ledger_of([(3, 0), (4, 1), (2, 0)])
    counting = [line for line in lines if not is_step(line) or line in exact(lines)]
    fourth = [{"rewind": 6, "generation": 4}, {"begin": 4, "step": 6, **FACTS}]
    verdict = verify_ledger([*lines, *mended([*counting, *fourth], 4), step_line(7, 4)])
    assert (verdict.breach, verdict.steps) == (None, 7)
    assert verdict.redone == verify_ledger(lines).redone


CONTRADICTIONS = [{"first": 7}, {"count": 3}, {"tokens": 33}, {"learned": False}, {"generation": 2}]


@pytest.mark.parametrize("changes", CONTRADICTIONS, ids=str)
def test_a_repeat_that_says_else_is_a_breach(changes: dict[str, Any]) -> None:
    lines, _, new = takeover(2, 1, 0, 1)
    assert verify_ledger([*lines, step_line(3, 1), *new]).breach is None
    contradicting = [*lines, {**step_line(3, 1), **changes}, *new]
    repeated = [*lines, step_line(3, 1), *changed(new, 0, **changes)]
    for ledger in (contradicting, repeated):
        assert verify_ledger(ledger).breach is not None


@pytest.mark.parametrize("changes", [{"step": 1}, {"batch": 5}, {"data": "d2"}], ids=str)
def test_a_beginning_that_is_repeated_otherwise_is_a_breach(changes: dict[str, Any]) -> None:
    lines, _, new = takeover(2, 0, 0, 0)
    third = mended([{"rewind": 2, "generation": 3}, {"begin": 3, "step": 2, **FACTS}], 3)
    again = {**new[-1], "writer": 3}
    assert verify_ledger([*lines, *new, again, *third]).breach is None
    assert verify_ledger([*lines, *new, {**again, **changes}, *third]).breach is not None


@pytest.mark.parametrize("writer", [None, "2", [2]])
def test_a_writer_that_is_no_number_is_a_breach(writer: object) -> None:
    lines = [*ledger_of([(2, 0)]), {**step_line(3, 1), "writer": writer}]
    assert verify_ledger(lines).breach == f"line 4: writer is {writer!r}, not a number"


# --- what is wrong is found


def changed(lines: Lines, at: int, **changes: Any) -> Lines:
    return [*lines[:at], {**lines[at], **changes}, *lines[at + 1 :]]


def is_step(line: dict[str, Any]) -> bool:
    return "begin" not in line and "rewind" not in line


def every_mutation(lines: Lines) -> Iterator[tuple[str, Lines]]:
    """Everything that can happen to one line, or to two."""
    for at, line in enumerate(lines):
        yield f"drop {at}", lines[:at] + lines[at + 1 :]
        yield f"double {at}", [*lines[: at + 1], *lines[at:]]
        for other in range(at + 1, len(lines)):
            swapped = list(lines)
            swapped[at], swapped[other] = swapped[other], swapped[at]
            yield f"swap {at} {other}", swapped
        for key, value in line.items():
            if type(value) is int:
                yield f"{key} + 1 at {at}", changed(lines, at, **{key: value + 1})
                yield f"{key} - 1 at {at}", changed(lines, at, **{key: value - 1})


@given(starts=STARTS, base=st.sampled_from([0, 300]))
def test_no_mutation_makes_an_inexact_ledger_look_exact(
    starts: list[tuple[int, int]], base: int
) -> None:
    for what, lines in every_mutation(ledger_of(starts, base)):
        if verify_ledger(lines, base).breach is None:
            assert is_exact(lines, base), what
            assert len({line["step"] for line in exact(lines)}) == len(exact(lines)), what


def without_repeats(lines: Lines) -> Lines:
    """By brute force: without what one wrote who had been replaced, or said once more."""
    kept: Lines = []
    newest = 0
    for line in lines:
        writer = line.get("writer", line.get("generation", line.get("begin")))
        if writer < newest:
            continue
        newest = max(newest, line.get("writer", line.get("begin", 0)))
        bare = {key: line[key] for key in line if key not in ("writer", "members")}
        begun = max((known["begin"] for known in kept if "begin" in known), default=0)
        is_known = bare in exact(kept) or (bare in kept and "begin" in bare)
        if "writer" in line and (is_known or ("rewind" in line and line["generation"] <= begun)):
            continue
        kept.append(bare)
    return kept


@given(TAKEOVERS, st.booleans())
def test_no_mutation_of_a_takeover_makes_an_inexact_ledger_look_exact(
    takeover_of: tuple[int, int, int, int], first: bool
) -> None:
    lines, old, new = takeover(*takeover_of)
    for what, mutated in every_mutation([*lines, *old, *new] if first else [*lines, *new, *old]):
        verdict = verify_ledger(mutated)
        if verdict.breach is None:
            counting = exact(without_repeats(mutated))
            assert is_exact(without_repeats(mutated)), what
            assert verdict.steps == len(counting), what


# Two starts: steps 1 to 5, then on from 3 to 8. By number of the line:
#   1 begin 1   2-5 steps 1-4 (5 was not settled)   6 rewind 3   7 begin 2   8-12 steps 4-8
HISTORY = [(5, 0), (5, 1)]


def test_the_history_of_the_cases_below() -> None:
    lines = ledger_of(HISTORY)
    assert [line.get("step", line.get("rewind")) for line in lines] == [
        0, 1, 2, 3, 4, 3, 3, 4, 5, 6, 7, 8,
    ]  # fmt: skip
    assert verify_ledger(lines).breach is None


def swapped(lines: Lines, one: int, two: int) -> Lines:
    lines = list(lines)
    lines[one - 1], lines[two - 1] = lines[two - 1], lines[one - 1]
    return lines


BREACHES: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "a step dropped": (
        lambda lines: lines[:2] + lines[3:],
        "line 3: step 3 has step 3, expected 2",
    ),
    "a step doubled": (
        lambda lines: [*lines[:3], *lines[2:]],
        "line 4: step 2 has step 2, expected 3",
    ),
    "two steps swapped": (
        lambda lines: swapped(lines, 9, 10),
        "line 9: step 6 has step 6, expected 5",
    ),
    "another first": (
        lambda lines: changed(lines, 8, first=17),
        "line 9: step 5 has first 17, expected 16",
    ),
    "another count": (
        lambda lines: changed(lines, 8, count=3),
        "line 9: step 5 has count 3, expected 4",
    ),
    "other tokens": (
        lambda lines: changed(lines, 8, tokens=33),
        "line 9: step 5 has tokens 33, expected 32",
    ),
    "another step": (
        lambda lines: changed(lines, 8, step=6),
        "line 9: step 6 has step 6, expected 5",
    ),
    "a step of a generation that was gone": (
        lambda lines: changed(lines, 8, generation=1),
        "line 10: step 6 has step 6, expected 5",
    ),
    "the beginning dropped": (
        lambda lines: lines[1:],
        "line 1: a step before the first generation",
    ),
    "the second beginning dropped": (
        lambda lines: lines[:6] + lines[7:],
        "line 7: step 4 has generation 2, expected 1",
    ),
    "a beginning doubled": (
        lambda lines: [*lines[:7], *lines[6:]],
        "line 8: generation 2 begins after 2",
    ),
    "the rewind dropped": (
        lambda lines: lines[:5] + lines[6:],
        "line 6: generation 2 begins at step 3, but the ledger ends at step 4",
    ),
    "a rewind to another step": (
        lambda lines: changed(lines, 5, rewind=2),
        "line 7: generation 2 begins at step 3, but the ledger ends at step 2",
    ),
    "a rewind into the future": (
        lambda lines: changed(lines, 5, rewind=5),
        "line 6: rewinds to step 5, but the ledger ends at step 4",
    ),
    "a rewind before the beginning": (
        lambda lines: changed(lines, 5, rewind=-1),
        "line 6: rewinds to step -1, but the ledger ends at step 4",
    ),
    "other data": (
        lambda lines: changed(lines, 6, data="d2"),
        "line 7: data changed from d1 to d2",
    ),
    "another batch": (
        lambda lines: changed(lines, 6, batch=5),
        "line 7: batch changed from 4 to 5",
    ),
    "another length": (
        lambda lines: changed(lines, 6, length=9),
        "line 7: length changed from 8 to 9",
    ),
    "more samples": (
        lambda lines: changed(lines, 6, samples=11),
        "line 7: samples changed from 10 to 11",
    ),
    "a generation that begins elsewhere": (
        lambda lines: changed(lines, 6, step=4),
        "line 7: generation 2 begins at step 4, but the ledger ends at step 3",
    ),
    "data that are not named": (
        lambda lines: changed(lines, 6, data=None),
        "line 7: data changed from d1 to None",
    ),
    # Lines that some other program wrote.
    "a step without its samples": (
        lambda lines: [*lines[:8], {"step": 5}, *lines[9:]],
        "line 9: first is None, not a number",
    ),
    "a step by another name": (
        lambda lines: changed(lines, 8, step="5"),
        "line 9: step is '5', not a number",
    ),
    "a rewind to nowhere": (
        lambda lines: changed(lines, 5, rewind=None),
        "line 6: rewind is None, not a number",
    ),
    "a beginning without facts": (
        lambda lines: [{"begin": 1, "step": 0}, *lines[1:]],
        "line 1: batch is None, not a number",
    ),
    "learned or not": (
        lambda lines: changed(lines, 8, learned=None),
        "line 9: step 5 has no `learned`",
    ),
    "no line of ours": (
        lambda lines: [*lines[:8], {}, *lines[8:]],
        "line 9: step is None, not a number",
    ),
}


@pytest.mark.parametrize("what", BREACHES)
def test_the_first_breach_is_named_by_its_line(what: str) -> None:
    mutate, breach = BREACHES[what]
    verdict = verify_ledger(mutate(ledger_of(HISTORY)))
    assert verdict.breach == breach
    assert verdict.generations <= 2, "what came before it is still told"


def test_of_several_breaches_the_first_is_named() -> None:
    lines = changed(changed(ledger_of(HISTORY), 10, first=0), 8, first=0)
    assert (verify_ledger(lines).breach or "").startswith("line 9: ")
    assert verify_ledger(lines).steps == 4, "as far as it was right"


@pytest.mark.parametrize("base", [0, 299, 301])
def test_a_fork_begins_where_it_took_over(base: int) -> None:
    lines = ledger_of([(3, 0), (3, 1)], 300)
    assert verify_ledger(lines, 300).breach is None
    assert verify_ledger(lines, base).breach == (
        f"line 1: generation 1 begins at step 300, but the ledger ends at step {base}"
    )


PROVED = ("step", "first", "count", "generation", "tokens", "learned")


def test_a_byte_flipped_in_the_file_is_found(tmp_path: Path) -> None:
    """Through the file: a line that is no JSON any more is missing, and that is seen."""
    path = tmp_path / "ledger.jsonl"
    lines = ledger_of(HISTORY)
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    start = len(json.dumps(lines[0])) + 1
    for at in range(start, start + len(json.dumps(lines[1])) + 1):
        path.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
        found = FileLog(path).read()[0]
        proved = {key: found[1].get(key) for key in PROVED}
        if proved != {key: lines[1][key] for key in PROVED}:
            assert verify_ledger(found).breach is not None, text[at - 9 : at + 9]
