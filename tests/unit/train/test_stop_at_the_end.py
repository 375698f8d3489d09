"""A run that is asked to stop when only its final evaluation is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.errors import Exit
from headway.state.status import read_status
from headway.train.stop_request import StopRequest
from support.run_here import RunHere

STEPS = 4


class Asked(StopRequest):
    """A request that comes when `is_time` says so."""

    is_time: Callable[[], bool] = staticmethod(lambda: False)

    @property
    def asked(self) -> bool:  # type: ignore[override]
        return self.is_time()

    @asked.setter
    def asked(self, value: bool) -> None: ...


def stopped_at(here: RunHere, step: int) -> Exit:
    """The exit code of a start that is asked to stop when so many steps are committed."""
    stop = Asked()
    run = here.open(stop=stop)
    stop.is_time = lambda: run.training.step >= step
    return here.train(run)


def state(here: RunHere) -> str:
    return read_status(here.directory, SystemClock().now()).state


def evaluated_steps(here: RunHere) -> list[int]:
    return [line["step"] for line in here.directory.evaluations.read()[0] if "loss" in line]


@pytest.mark.parametrize("step", [STEPS - 1, STEPS], ids=["in the last step", "while it evaluates"])
def test_a_stop_before_the_final_evaluation_leaves_it_to_the_next_start(
    tmp_path: Path, step: int
) -> None:
    here = RunHere(tmp_path / "run")
    assert stopped_at(here, step) is Exit.STOPPED
    assert (state(here), evaluated_steps(here)) == ("stopped", [])
    assert here.directory.metrics.last()["step"] == STEPS  # type: ignore[index]
    assert stopped_at(here, 0) is Exit.STOPPED, "asked again while it starts"
    assert here.train(here.open()) is Exit.DONE
    assert (state(here), evaluated_steps(here)) == ("finished", [STEPS])
    assert [event["step"] for event in here.events("saved")][-1] == STEPS


def test_without_a_validation_set_the_last_step_is_the_end(tmp_path: Path) -> None:
    here = RunHere(tmp_path / "run", has_validation=False)
    assert stopped_at(here, STEPS - 1) is Exit.DONE
    assert state(here) == "finished"


def test_a_run_that_died_after_its_final_evaluation_is_not_evaluated_again(tmp_path: Path) -> None:
    here = RunHere(tmp_path / "run")
    assert here.train(here.open()) is Exit.DONE
    assert here.train(here.open()) is Exit.DONE, "as when its last event was lost"
    assert evaluated_steps(here) == [STEPS]
