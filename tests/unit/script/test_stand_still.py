"""A script that stands still: by its heartbeats, or by its processor time; no false alarms."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from headway.script.processes import ProcessStat, read_stat, shells_and_their_children
from headway.script.stand_still import (
    END_SECONDS,
    IDLE_SECONDS,
    SAMPLE_SECONDS,
    STACKS_FOLDER,
    STACKS_SIGNAL,
    StandStill,
    Verdict,
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


def verdicts(still: StandStill, clock: Patient, seconds: float) -> list[Verdict]:
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
    assert verdicts(still, clock, 100 * IDLE_SECONDS) == [Verdict.STUCK]
    group.seconds[7] += 100.0
    assert verdicts(still, clock, 2 * SAMPLE_SECONDS) == []
    assert verdicts(still, clock, 2 * IDLE_SECONDS) == [Verdict.STUCK]


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
    assert verdicts(still, clock, 900.0) == [Verdict.STUCK], "an evaluation may take as long"
    assert Verdict.END in verdicts(still, clock, END_SECONDS)


def test_slow_steps_have_twenty_times_their_length() -> None:
    clock = Patient()
    still = StandStill(clock, Group())
    for _ in range(40):
        clock.passed += 300.0
        still.heartbeat()
    assert verdicts(still, clock, 6000.0) == []
    assert verdicts(still, clock, 5990.0) == [Verdict.STUCK]
    assert verdicts(still, clock, 30.0)[0] is Verdict.END


# Stacks of real processes

SLEEPS = """
import os, sys, time
def in_the_collective():
    print("sleeps", getattr(sys, "users_own", None), flush=True)
    time.sleep(1000)
in_the_collective()
"""


def started(
    *command: str, path: str = "", script: str = SLEEPS
) -> tuple[subprocess.Popen[str], str]:
    paths = os.pathsep.join(one for one in (str(STACKS_FOLDER), path) if one)
    process = subprocess.Popen(
        [*command, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert process.stdout is not None
    return process, process.stdout.readline()


def stacks_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    found = read_stat(process.pid)
    assert found is not None
    shown = show_stacks([found], Patient())
    assert process.poll() is None, "the signal has ended it"
    process.kill()
    return shown, process.communicate(timeout=60)[1]


def test_a_python_process_shows_its_stacks_and_runs_the_users_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.users_own = 'ran'\n")
    process, said = started(sys.executable, path=str(tmp_path))
    assert said.split() == ["sleeps", "ran"]
    shown, stacks = stacks_of(process)
    assert shown == 1
    assert "in in_the_collective" in stacks


@pytest.mark.parametrize("flag", ["-S", "-I", "-E"])
def test_one_that_does_not_read_it_is_not_sent_the_signal(flag: str) -> None:
    process, said = started(sys.executable, flag)
    assert said.split() == ["sleeps", "None"]
    assert stacks_of(process) == (0, "")


def test_in_an_environment_of_the_users_own(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    process, said = started(str(tmp_path / "env/bin/python"))
    assert said.split() == ["sleeps", "None"]
    assert "in in_the_collective" in stacks_of(process)[1]


def test_the_script_finds_nothing_of_ours_on_its_path() -> None:
    script = f"import sys; print({str(STACKS_FOLDER)!r} in sys.path, 'headway' in sys.modules)"
    process, said = started(sys.executable, script=script)
    assert said.split() == ["False", "False"]
    assert process.communicate(timeout=60)[1] == ""


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
