"""That a run was launched is in its store before its workers begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.launch.keeper_notes import LAUNCHED_SECONDS, KeeperNotes
from headway.state.run_directory import RunDirectory
from support.fake_fork_server import ToldClock
from support.scripts import resolved_script


class Away:
    """A launcher's log whose store refuses to write for a while."""

    def __init__(self, clock: ToldClock, until: float) -> None:
        self._clock, self._until = clock, until
        self.is_sent = False

    def append(self, *records: object) -> None:
        pass

    def flush(self) -> None:
        if self._clock.monotonic() < self._until:
            raise OSError("Slow Down")
        self.is_sent = True


def launch(folder: Path, away_seconds: float) -> tuple[Away, list[str], float]:
    """The log, what was said, and how long it took."""
    clock, said = ToldClock(), list[str]()
    began = clock.monotonic()
    directory = RunDirectory.create(folder / "it", clock)
    log = directory.launcher = Away(clock, began + away_seconds)  # type: ignore[assignment]
    notes = KeeperNotes(directory, resolved_script(folder, 3), clock, said.append)
    notes.launched("uid", "ml")
    return log, said, clock.monotonic() - began


def test_a_store_that_does_not_take_it_at_once_is_asked_again(tmp_path: Path) -> None:
    log, said, _ = launch(tmp_path, 30)
    assert log.is_sent
    assert said == ["the launch is to be in the store before workers begin: Slow Down"]


def test_a_store_that_stays_away_does_not_hold_up_the_run_for_ever(tmp_path: Path) -> None:
    log, said, seconds = launch(tmp_path, 1e6)
    assert not log.is_sent
    assert seconds <= LAUNCHED_SECONDS
    assert said[-1] == "the launch is not in the store yet: Slow Down"


def test_a_budget_that_cannot_be_kept_is_noted_before_the_run_is_stopped(tmp_path: Path) -> None:
    """While the store is away, workers could not save."""
    clock, said = ToldClock(), list[str]()
    directory = RunDirectory.create(tmp_path / "it", clock)
    log = directory.launcher = Away(clock, clock.monotonic() + 5)  # type: ignore[assignment]
    script = resolved_script(tmp_path, 3)
    budget = script.run.budget.model_copy(update={"usd": 20.0})
    changed = script.run.model_copy(update={"budget": budget})
    notes = KeeperNotes(directory, script.model_copy(update={"run": changed}), clock, said.append)
    for _ in range(2):
        with pytest.raises(OSError, match="Slow Down"):
            notes.money_problem("it is damaged", "do something")
    assert len(said) == 1
    clock.sleep(6)
    notes.money_problem("it is damaged", "do something")
    assert log.is_sent
