"""A rewind or a change of writer: each step counts once, as it was committed last."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headway.state.rewinds import apply_rewinds


def folded(records: list[dict[str, Any]]) -> dict[int, int]:
    """By brute force: which attempt at each step is the one that counts."""
    counting: dict[int, int] = {}
    for record in records:
        if "rewind" in record:
            counting = {s: a for s, a in counting.items() if s <= record["rewind"]}
        else:
            counting[record["step"]] = record["attempt"]
    return counting


@given(moves=st.lists(st.integers(0, 6), max_size=30))
def test_a_rewind_drops_what_is_done_again(moves: list[int]) -> None:
    """Each number is so many steps forward and then back to a checkpoint at most so far behind."""
    records: list[dict[str, Any]] = []
    step = 0
    for attempt, move in enumerate(moves):
        for _ in range(move):
            step += 1
            records.append({"step": step, "attempt": attempt})
        if attempt % 2:
            step = max(0, step - move)
            records.append({"rewind": step})
    kept = apply_rewinds(records)
    assert [record["step"] for record in kept] == list(range(1, step + 1))
    assert {record["step"]: record["attempt"] for record in kept} == folded(records)


def test_two_lines_of_a_step_stay_and_go_together() -> None:
    """Evaluations have one for each set."""
    lines = [{"step": s, "set": name} for s in (5, 10) for name in "ab"]
    assert apply_rewinds([*lines, {"rewind": 7}]) == lines[:2]
    assert apply_rewinds([*lines, {"rewind": 10}]) == lines


def line(step: int, generation: int, **more: Any) -> dict[str, Any]:
    return {"step": step, "generation": generation, **more}


def test_every_prompt_of_a_step_stays() -> None:
    first, second = ({"step": 5, "prompt": prompt, "generation": 1} for prompt in ("a", "b"))
    again = {**first, "generation": 2}
    assert apply_rewinds([first, second]) == [first, second]
    assert apply_rewinds([first, second, {"rewind": 4, "generation": 2}, again]) == [again]


def test_what_two_leaders_have_written_is_taken_once() -> None:
    """The old one goes on while the new one takes over, and once more behind its lines."""
    lines = [line(1, 1), line(2, 1), line(3, 1, by="old"), line(4, 1, by="old")]
    lines += [line(3, 1, by="new"), {"rewind": 3, "generation": 2}, line(4, 1, by="old, late")]
    lines += [line(4, 2), line(5, 1), line(5, 2)]
    assert apply_rewinds(lines) == [line(1, 1), line(2, 1), lines[2], line(4, 2), line(5, 2)]


def test_sets_that_are_evaluated_again_at_a_step_are_taken_as_they_were_last() -> None:
    old, new = ([line(4, g, set=name) for name in "ab"] for g in (1, 2))
    assert apply_rewinds([*old, {"rewind": 4, "generation": 2}, *new]) == new
    assert apply_rewinds([*old, *old]) == old
