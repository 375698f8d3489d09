"""Random histories of the membership: what must hold does, and defects are found.

HISTORIES=100000 for more; `make simulate` runs those on all cores.
"""

from __future__ import annotations

import os

import pytest

from support.membership.history import (
    History,
    random_history,
    random_restart_history,
    shrunk,
)
from support.membership.judge import failure, story
from support.membership.mutations import MUTATIONS, Mutation, catch
from support.membership.restart_mutations import RESTART_MUTATIONS

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(600)]

HISTORIES = int(os.environ.get("HISTORIES", "2500"))
PARTS = 10
FIRST_SEED = int(os.environ.get("SEED", "0"))
RESTART_SHARE = 25
"""One of so many histories besides: they take longer."""
MOST_HISTORIES = 1500


@pytest.mark.parametrize("part", range(PARTS))
def test_what_must_hold_does_in_every_history(part: int) -> None:
    for seed in range(FIRST_SEED + part, FIRST_SEED + HISTORIES, PARTS):
        require(random_history(seed))


@pytest.mark.parametrize("part", range(PARTS))
def test_what_must_hold_does_where_workers_end_with_their_generation(part: int) -> None:
    for seed in range(FIRST_SEED + part, FIRST_SEED + HISTORIES // RESTART_SHARE, PARTS):
        require(random_restart_history(seed))


def require(history: History) -> None:
    if failure(history) is not None:
        smallest = shrunk(history, lambda one: failure(one) is not None)
        pytest.fail(f"seed {history.seed}\n\n{story(smallest)}", pytrace=False)


@pytest.mark.parametrize(
    "mutation", [*MUTATIONS, *RESTART_MUTATIONS], ids=lambda mutation: mutation.name
)
def test_a_defect_is_found(mutation: Mutation) -> None:
    assert catch(mutation, MOST_HISTORIES) is not None


def test_a_failing_history_is_shrunk_and_told() -> None:
    mutation = next(one for one in MUTATIONS if "window to come back" in one.name)
    parts = mutation.parts()
    caught = catch(mutation, MOST_HISTORIES)
    assert caught is not None

    smallest = shrunk(caught.history, lambda one: failure(one, *parts) is not None)
    assert len(smallest.faults) == 1
    told = story(smallest, *parts)
    assert "coordinator" in told
    assert "BROKEN" in told.splitlines()[-1]
    assert failure(smallest) is None, "without the defect it holds"
