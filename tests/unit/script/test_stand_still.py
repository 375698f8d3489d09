"""A script that stands still: by its heartbeats, or by its processor time; no false alarms."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import venv
from pathlib import Path
from typing import Self

import pytest

from headway.script.processes import ProcessStat, read_stat, shells_and_their_children
from headway.script.stand_still import (
    END_SECONDS,
    IDLE_SECONDS,
    SAMPLE_SECONDS,
    STACKS_FOLDER,
    STACKS_SIGNAL,
    StandStill,
    StandStillVerdict,
    show_stacks,
)
from support.clock import Patient
from support.waiting import wait_for

TICKS = os.sysconf("SC_CLK_TCK")


class Group:
    """Processes whose processor time a test decides."""

    def __init__(self) -> None:
        self.seconds = {7: 0.0}

    def __call__(self) -> list[ProcessStat]:
        return [
            ProcessStat(pid, "python", "S", 1, 1, int(seconds * TICKS), pid)
            for pid, seconds in self.seconds.items()
        ]


def verdicts(still: StandStill, clock: Patient, seconds: float) -> list[StandStillVerdict]:
    found = []
    until = clock.passed + seconds
    while clock.passed < until:
        clock.passed += 1.0
        if (verdict := still.look()) is not None:
            found.append(verdict)
    return found


def test_a_silent_script_without_processor_time_is_reported_once_and_never_ended() -> None:
    clock, group = Patient(), Group()
    still = StandStill(clock, group)
    assert verdicts(still, clock, IDLE_SECONDS - SAMPLE_SECONDS) == []
    assert verdicts(still, clock, 100 * IDLE_SECONDS) == [StandStillVerdict.STUCK]
    group.seconds[7] += 100.0
    assert verdicts(still, clock, 2 * SAMPLE_SECONDS) == []
    assert verdicts(still, clock, 2 * IDLE_SECONDS) == [StandStillVerdict.STUCK]


def test_a_silent_script_that_computes_a_little_is_left_alone() -> None:
    clock, group = Patient(), Group()
    still = StandStill(clock, group)
    for _ in range(200):
        group.seconds[7] += 0.2
        group.seconds.pop(8, None)
        assert verdicts(still, clock, SAMPLE_SECONDS) == []
        group.seconds[8] = 50.0  # a process that came, and is gone at the next look


def test_with_heartbeats_it_is_reported_by_their_pace_and_ended_after_half_an_hour() -> None:
    clock = Patient()
    still = StandStill(clock, Group())
    for _ in range(40):
        clock.passed += 1.0
        still.heartbeat()
    assert verdicts(still, clock, 60.0) == []
    assert verdicts(still, clock, 900.0) == [StandStillVerdict.STUCK], (
        "an evaluation may take as long"
    )
    assert StandStillVerdict.END in verdicts(still, clock, END_SECONDS)


def test_slow_steps_have_twenty_times_their_length() -> None:
    clock = Patient()
    still = StandStill(clock, Group())
    for _ in range(40):
        clock.passed += 300.0
        still.heartbeat()
    assert verdicts(still, clock, 6000.0) == []
    assert verdicts(still, clock, 5990.0) == [StandStillVerdict.STUCK]
    assert verdicts(still, clock, 30.0)[0] is StandStillVerdict.END


# Stacks of real processes

SLEEPS = """
import os, sys, time
def in_the_collective():
    print("sleeps", getattr(sys, "users_own", None), flush=True)
    time.sleep(1000)
in_the_collective()
"""


class Sleeping:
    """A process that says something, and sleeps."""

    def __init__(self, folder: Path, *command: str, path: str = "", script: str = SLEEPS) -> None:
        self._errors = folder / "errors"
        paths = os.pathsep.join(one for one in (str(STACKS_FOLDER), path) if one)
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*command, "-c", script],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": paths},
            )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().split()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def show_stacks(self) -> int:
        found = read_stat(self.process.pid)
        assert found is not None
        return show_stacks([found], Patient())


def test_a_python_process_shows_its_stacks_and_runs_the_users_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.users_own = 'ran'\n")
    with Sleeping(tmp_path, sys.executable, path=str(tmp_path)) as sleeping:
        assert sleeping.said == ["sleeps", "ran"]
        assert sleeping.show_stacks() == 1
        wait_for("stacks", lambda: "in in_the_collective" in sleeping.errors)
        assert sleeping.process.poll() is None


@pytest.mark.parametrize("flag", ["-S", "-I", "-E"])
def test_one_that_does_not_read_it_is_not_sent_the_signal(tmp_path: Path, flag: str) -> None:
    with Sleeping(tmp_path, sys.executable, flag) as sleeping:
        assert sleeping.said == ["sleeps", "None"]
        assert sleeping.show_stacks() == 0


def test_in_an_environment_of_the_users_own(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    with Sleeping(tmp_path, str(tmp_path / "env/bin/python")) as sleeping:
        assert sleeping.said == ["sleeps", "None"]
        assert sleeping.show_stacks() == 1
        wait_for("stacks", lambda: "in in_the_collective" in sleeping.errors)


def test_the_script_finds_nothing_of_ours_on_its_path(tmp_path: Path) -> None:
    script = f"import sys; print({str(STACKS_FOLDER)!r} in sys.path, 'headway' in sys.modules)"
    with Sleeping(tmp_path, sys.executable, script=script) as sleeping:
        assert sleeping.said == ["False", "False"]
        sleeping.process.wait(60)
        assert sleeping.errors == ""


def test_both_sides_mean_the_same_signal() -> None:
    assert "SIGRTMIN + 12" in (STACKS_FOLDER / "sitecustomize.py").read_text()
    assert signal.SIGRTMIN + 12 == STACKS_SIGNAL


def test_what_a_shell_has_started_is_asked_to_end_with_it() -> None:
    process = subprocess.Popen(["sh", "-c", "sleep 1000; true"], start_new_session=True)
    try:
        asked = wait_for(
            "its child",
            lambda: len(found := shells_and_their_children(process.pid)) == 2 and found,
        )
        assert asked[0][0] == process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
