"""A script's worker: it holds the session, and runs the command as its child for one generation.

Its launcher knows it by the exit codes of `headway.errors.Exit`, as it does a training worker:
ending.py has the table. One thread does all of it: it looks at the child, at the session and at the
requests to end several times a second.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path

import msgspec

from headway.clock import Clock, SystemClock, stamp
from headway.errors import Exit, HeadwayError, PeerLost
from headway.member.protocol.identity import parse
from headway.member.worker.session import Session
from headway.member.worker.session_keys import SessionKeys
from headway.member.worker.session_view import Denied, GenerationOver, Late, SessionError, View
from headway.script.child import Child
from headway.script.ending import (
    GRACE_SECONDS,
    GenerationState,
    blame,
    decision_seconds,
    ended_code,
    failed_code,
    grace_seconds,
    is_cut_short,
)
from headway.script.finishing import Finishing
from headway.script.last_words import last_traceback
from headway.script.meeting import Failure, Failures, Meeting
from headway.script.place import (
    Master,
    Place,
    command_environment,
    free_port,
    replace_variables,
)
from headway.script.run_record import FINISHED_SEND_SECONDS, RunRecord
from headway.script.stand_still import StandStill, StandStillVerdict, show_stacks
from headway.spec.resolve import Resolved
from headway.state.run_directory import RunDirectory, worker_spec
from headway.train.outages import reached
from headway.train.restart_place import RestartPlace, restarting
from headway.train.stop_request import StopRequest
from headway.train.worker_log import log_exit_reason, log_line, report_exit_reason
from headway.train.worker_session import open_session

LOOK_SECONDS = 0.1
MASTER_SECONDS = 90.0
"""For rank 0 to say where it listens: it reads the run directory before."""
LEAVE_SECONDS = 2.0
"""For the coordinator to tell all that this node leaves, so that all are asked to save at once. It
tells nobody if nobody stays."""
MEET_SECONDS = GRACE_SECONDS + 5.0
"""For all to end, from when they were asked to. Pods have 120 s."""
GOODBYE_SECONDS = FINISHED_SEND_SECONDS + 30.0
"""For the others to have heard that all are done: rank 0 tells them when it has written that down.
Launchers kill those that still run 10 s after the first has exited."""
STAY_SECONDS = 90.0
"""For a node whose scripts are done and that is asked to leave, while it waits for the others. Pods
have 120 s."""
CUT_OFF_SECONDS = 10.0
"""Without a connection, after which nobody is waited for."""
FOLLOW_SECONDS = 30.0
"""For the worker that is to blame to end, and the generation with it."""
SAY_SECONDS = 60.0
TAIL_CHARACTERS = 4096
"""Of what a script has printed, in which it may have said that it has lost a peer."""
STUCK_LOOK_SECONDS = 10.0
"""Between two looks whether another rank's script stands still."""
SAME_STUCK_SECONDS = 60.0
"""Within which reports of several ranks are one."""


def main(arguments: list[str]) -> int:
    clock = SystemClock()
    try:
        session = open_session()
        assert session is not None, "a script's run has a coordinator"
        stop = StopRequest(is_live=True)
        stop.listen()
        stop.follow(sys.stdin.buffer)
        resolved = worker_spec()
        directory = reached(
            lambda: RunDirectory.open(resolved.run_directory), clock, lambda: stop.asked
        )
        code = ScriptWorker(resolved, directory, session, stop, clock).run()
    except HeadwayError as error:
        log_exit_reason(str(error))
        return error.exit_code
    if code < 0:
        _end_by(-code)
    return code


class ScriptWorker:
    def __init__(
        self,
        resolved: Resolved,
        directory: RunDirectory,
        session: Session,
        stop: StopRequest,
        clock: Clock,
    ) -> None:
        self._resolved, self._directory = resolved, directory
        self._session, self._stop, self._clock = session, stop, clock
        self._restart_place = RestartPlace(session, stop)
        self._leave_at: float | None = None
        """When it told the coordinator that it leaves."""
        self._cut_off_at: float | None = None
        """Since when there is no connection."""
        self._has_begun = False
        """Whether its script has told a step."""
        self._num_stuck = 0
        """Reports of scripts that stand still, of all ranks, that this worker knows of."""
        self._stacks_at = self._asked_at = clock.monotonic()
        self._ended_because = ""
        self._asked_to_end_at: float | None = None
        """When its script was first asked to end."""

    def run(self) -> int:
        """The exit code; negative: the signal that ended the script."""
        self._take_place()
        if self._master.has_finished:
            self._say("the script has finished before this node came: nothing is left to do")
            self._part()
            return Exit.DONE
        self._start()
        while (exit_code := self._child.poll()) is None:
            self._look()
            self._watch()
        return self._ended(exit_code)

    # Before the script runs

    def _take_place(self) -> None:
        self._generation = self._restart_place.wait_for_place()
        rank, num_workers = self._restart_place.place()
        self._place = Place(
            rank=rank,
            num_workers=num_workers,
            local_rank=parse(self._session.name).local_rank,
            ranks_per_node=self._resolved.ranks_per_node,
        )
        self._keys = SessionKeys(self._session, self._generation.number, "script/")
        self._finishing = Finishing(self._keys, self._clock)
        self._record = RunRecord(
            self._directory, self._clock, self._generation.number, self._place, os.environ
        )
        self._master = self._lead() if rank == 0 else self._follow()

    def _lead(self) -> Master:
        """Tells the others where to find this worker."""
        before = self._record.begin()
        master = Master(
            address=os.environ["HEADWAY_ADDRESS"],
            port=free_port(),
            restarts=before.num_generations,
            is_untried=before.is_untried,
            has_finished=before.has_finished,
        )
        try:
            self._keys.set("master", msgspec.json.encode(master))
        except SessionError as error:
            is_sound = self._state(self._session.view) is GenerationState.SOUND
            if is_sound and not before.has_finished:
                self._record.end(Exit.GENERATION_OVER, is_cut_short=True)
            raise self._not_met(error) from error
        return master

    def _follow(self) -> Master:
        deadline = self._clock.monotonic() + MASTER_SECONDS
        while True:
            try:
                return msgspec.json.decode(self._keys.get("master", 1.0), type=Master)
            except Late as error:
                if self._clock.monotonic() > deadline:
                    raise self._not_met(error) from error
            except SessionError as error:
                raise self._not_met(error) from error

    def _not_met(self, error: SessionError) -> PeerLost:
        if self._state(self._session.view) is GenerationState.CURRENT:
            return PeerLost(f"the workers did not meet: {error.message}")
        lost = PeerLost(restarting(self._session.view.generation))
        lost.exit_code = Exit.GENERATION_OVER
        return lost

    def _start(self) -> None:
        command = self._resolved.run.command
        assert command is not None
        environment = command_environment(
            os.environ, self._place, self._master, str(self._record.heartbeat_file)
        )
        self._child = Child(
            replace_variables(command, environment),
            Path(os.environ["HEADWAY_WORKDIR"]),
            environment,
            self._clock,
        )
        self._still = StandStill(self._clock, self._child.processes)
        self._session.healed()
        self._say(
            f"generation {self._generation.number}: rank {self._place.rank} of "
            f"{self._place.num_workers}, rank 0 at {self._master.address}:{self._master.port}"
        )
        self._record.started(self._resolved.device)

    # While it runs

    def _look(self) -> None:
        """Waits for a moment, and passes on requests to end."""
        self._look_at_session()
        grace = grace_seconds(self._is_asked, self._state_that_counts())
        if grace is not None:
            now = self._clock.monotonic()
            self._asked_to_end_at = now if self._asked_to_end_at is None else self._asked_to_end_at
            self._child.end(grace)

    def _look_at_session(self) -> None:
        view = self._session.view
        if self._state(view) is GenerationState.CURRENT:
            with suppress(Late):
                self._session.wait_for("a change", self._is_over, LOOK_SECONDS)
        else:
            self._clock.sleep(LOOK_SECONDS)
        now = self._clock.monotonic()
        if self._stop.leave_asked and self._leave_at is None:
            self._leave_at = now
            self._session.leave()
        if self._session.view.connected:
            self._cut_off_at = None
        elif self._cut_off_at is None:
            self._cut_off_at = now

    @property
    def _is_asked(self) -> bool:
        """Whether the script is to end, since the run stops or this node leaves."""
        if self._leave_at is None:
            return self._stop.asked
        has_waited = self._clock.monotonic() - self._leave_at > LEAVE_SECONDS
        return self._stop.asked or has_waited or self._is_over(self._session.view)

    @property
    def _is_cut_off(self) -> bool:
        since = self._cut_off_at
        return since is not None and self._clock.monotonic() - since > CUT_OFF_SECONDS

    def _state(self, view: View) -> GenerationState:
        number = self._generation.number
        if view.generation.breaks(number):
            return GenerationState.LOST
        is_over = view.generation.number > number
        return GenerationState.SOUND if is_over else GenerationState.CURRENT

    def _state_that_counts(self) -> GenerationState:
        """A planned change waits for a script that is about to be done."""
        state = self._state(self._session.view)
        if state is not GenerationState.SOUND or self._stop.asked or self._stop.leave_asked:
            return state
        return GenerationState.CURRENT if self._finishing.is_waited_for() else state

    def _is_over(self, view: View) -> bool:
        return self._state(view) is not GenerationState.CURRENT

    # Whether it makes progress

    def _watch(self) -> None:
        if self._record.look() is not None:
            self._still.heartbeat()
            if not self._has_begun:
                with suppress(SessionError):
                    self._keys.set("begun", b"1")
                    self._has_begun = True
        if self._child.is_asked_to_end:
            return
        match self._still.look():
            case StandStillVerdict.STUCK:
                self._report_stuck()
            case StandStillVerdict.END:
                self._ended_because = f"no heartbeat for {self._still.waited_seconds:.0f} s"
                self._show_stacks(f"{self._ended_because}; ending the script")
                self._child.abort()
        if self._clock.monotonic() - self._asked_at >= STUCK_LOOK_SECONDS:
            self._asked_at = self._clock.monotonic()
            with suppress(SessionError):
                self._hear_stuck(self._keys.add("stuck", 0))

    def _report_stuck(self) -> None:
        """All ranks show their stacks: of the one that blocks the others, too."""
        is_idle, seconds = self._still.is_idle, self._still.waited_seconds
        if is_idle and self._has_anybody_begun():
            return  # rank 0 tells its steps, or nobody can be asked
        if self._clock.monotonic() - self._stacks_at > SAME_STUCK_SECONDS:
            self._record.stuck(seconds, is_idle)
        with suppress(SessionError):
            self._num_stuck = self._keys.add("stuck", 1)
        what = "no processor time used" if is_idle else "no heartbeat"
        self._show_stacks(f"{what} for {seconds:.0f} s")

    def _hear_stuck(self, number: int) -> None:
        if number > self._num_stuck:
            self._num_stuck = number
            self._show_stacks("another rank's script stands still")

    def _show_stacks(self, why: str) -> None:
        self._stacks_at = self._clock.monotonic()
        self._say(f"{why}; stacks:")
        show_stacks(self._child.processes(), self._clock)

    # When it has ended

    def _ended(self, exit_code: int) -> int:
        if how := self._child.how_it_ended(exit_code):
            self._say(f"the script {how}")
        code = self._asked_code()
        if code is None:
            code = self._wait_for_all() if exit_code == 0 else self._failed(exit_code)
        self._record.end(code, how, code == Exit.GENERATION_OVER and self._is_cut_short())
        if code == Exit.DONE:
            self._part()
        elif code == Exit.STOPPED:
            self._session.goodbye("asked to end")
        elif code == Exit.GENERATION_OVER:
            log_exit_reason(restarting(self._session.view.generation))
            self._session.goodbye("ends with its generation")
        return code  # else without a goodbye: the launcher is to hear of it first

    def _part(self) -> None:
        """The run is done. Nobody goes before all have heard it: the goodbye of one would be the
        loss of a member to another."""
        everyone = range(self._place.num_workers)
        meeting = Meeting(self._keys, "heard", everyone, self._place.rank)
        if not self._meet(meeting, GOODBYE_SECONDS, self._look_at_session):
            self._record.end_for_leader()
        self._session.goodbye("done")

    def _is_cut_short(self) -> bool:
        asked_at = self._asked_to_end_at or self._clock.monotonic()
        age = asked_at - self._child.started_at
        return is_cut_short(self._state(self._session.view), age, self._has_anybody_begun())

    def _asked_code(self) -> int | None:
        """The exit code, if the script was ended, and has not ended by itself. Waits for the others
        that end: their launcher would kill them soon after the first."""
        state = self._state_that_counts()
        code = ended_code(self._is_asked or self._stop.leave_asked, state)
        if code is None or state is GenerationState.LOST:
            return code
        self._finishing.give_up()
        is_stop = self._stop.asked
        ranks = range(self._place.num_workers) if is_stop else self._place.node_ranks
        name = "stopped" if is_stop else f"ended-{self._place.node}"
        began = self._asked_to_end_at or self._clock.monotonic()
        left = began + MEET_SECONDS - self._clock.monotonic()
        self._meet(Meeting(self._keys, name, ranks, self._place.rank), left, self._look)
        return code

    def _wait_for_all(self) -> int:
        """The script has ended with 0 here. Rank 0's may save for minutes after the others."""
        meeting = Meeting(self._keys, "done", range(self._place.num_workers), self._place.rank)
        ended_at, said_at = self._clock.monotonic(), -inf
        while True:
            self._finishing.done()
            try:
                is_complete = meeting.is_complete(LOOK_SECONDS * 5)
            except SessionError:  # its generation is over
                is_complete = False
            if is_complete:
                self._say("exited with 0 on all ranks")
                return Exit.DONE
            self._look()
            if not self._may_stay() and (code := self._asked_code()) is not None:
                return code
            now = self._clock.monotonic()
            if now - said_at >= SAY_SECONDS:
                said_at = now
                missing = ", ".join(map(str, meeting.missing[:8]))
                who = f"rank {missing}" if missing else "the other ranks"
                ago = f" {now - ended_at:.0f} s ago" if now - ended_at > SAY_SECONDS else ""
                self._say(f"exited with 0{ago}, waiting for {who}")

    def _may_stay(self) -> bool:
        """Whether it was asked to leave, and the others may be done before it has to."""
        if self._leave_at is None or self._stop.asked or self._is_cut_off:
            return False
        is_late = self._clock.monotonic() - self._leave_at > STAY_SECONDS
        is_lost = self._state(self._session.view) is GenerationState.LOST
        return not (is_late or is_lost or self._finishing.is_given_up())

    def _meet(self, meeting: Meeting, seconds: float, look: Callable[[], None]) -> bool:
        """Whether all came."""
        deadline = self._clock.monotonic() + seconds
        with suppress(Denied, GenerationOver):
            while self._clock.monotonic() < deadline and not self._is_cut_off:
                if meeting.is_complete(LOOK_SECONDS * 5):
                    return True
                look()
        return False

    def _failed(self, exit_code: int) -> int:
        """The script has failed here. If a member is lost, that explains it. Else one of those that
        have failed ends the generation, and is the one that counts."""
        age, printed = self._child.age_seconds, self._child.printed()
        tail = printed[-TAIL_CHARACTERS:]
        # Without a traceback the launcher shows the end of the log.
        words = self._ended_because or last_traceback(printed)
        failures = Failures(self._keys, self._place.num_workers)
        self._session.start_waiting()
        with suppress(SessionError):
            failures.add(Failure(self._place.rank, blame(exit_code, tail).value))
        deadline = self._clock.monotonic() + decision_seconds(exit_code)
        while self._clock.monotonic() < deadline:
            with suppress(SessionError):
                if failures.are_all():
                    break
            self._look()
            if (code := self._asked_code()) is not None:
                return code
        if self._is_to_blame(failures):
            if words:
                report_exit_reason(words)
            is_untried = self._master.is_untried and not self._has_anybody_begun()
            return failed_code(exit_code, age, is_untried, tail)
        deadline = self._clock.monotonic() + FOLLOW_SECONDS
        while self._clock.monotonic() < deadline:
            self._look()
            if (code := self._asked_code()) is not None:
                return code
        return Exit.PEER_LOST

    def _is_to_blame(self, failures: Failures) -> bool:
        """It is, if nobody can tell."""
        with suppress(SessionError):
            first = failures.first()
            return first is None or first.rank == self._place.rank
        return True

    def _has_anybody_begun(self) -> bool:
        """Whether the script has told a step in this generation."""
        with suppress(SessionError):
            return not self._keys.missing(["begun"])
        return True

    def _say(self, words: str) -> None:
        log_line(f"{stamp(self._clock.now())} {words}")


def _end_by(number: int) -> None:
    """The signal that has ended the script ends this process, too."""
    with suppress(OSError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
