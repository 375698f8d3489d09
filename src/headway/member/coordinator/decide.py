"""Decides who is in the run. Pure: events and times in, decisions out.

The driver calls `handle` for each event, and `decide` at the time that `wake` names. An event costs
the same whatever the number of members; `decide` goes through all of them, a few times a second at
most, and is the only place where anything is decided.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf

from headway.member.coordinator.events import (
    CloseSession,
    Decision,
    Event,
    GenerationWritten,
    GoodbyeReceived,
    PublishGeneration,
    PublishGo,
    SessionEnded,
    SessionOpened,
    StatusReceived,
    StepDown,
    UpdateSession,
    WorkerDismissed,
    WriteGeneration,
    WriteRefused,
)
from headway.member.coordinator.lost_workers import mark_lost
from headway.member.coordinator.next_generation import next_generation
from headway.member.coordinator.restart_generation import next_restart
from headway.member.coordinator.rules import Rules
from headway.member.coordinator.silence import RecentLateness
from headway.member.coordinator.state import (
    NO_STATUS,
    GenerationProgress,
    MembershipState,
    WorkerRecord,
)
from headway.member.protocol.generation import Generation
from headway.member.protocol.identity import parse
from headway.member.protocol.status import WorkerStatus
from headway.member.protocol.wire import HEARTBEAT_SECONDS

GOODBYE = "said goodbye"


class Membership:
    def __init__(self, rules: Rules, incarnation: int, current: Generation, now: float) -> None:
        """`current` is what the record holds; perhaps nobody has heard of it yet."""
        self.state = MembershipState(
            rules=rules,
            incarnation=incarnation,
            workers={name: WorkerRecord(name, None, heard=now) for name in current.workers()},
            progress=GenerationProgress.restored(current),
            lateness=RecentLateness(rules.lateness_seconds, now),
            absent_until=now + rules.absent_seconds,
        )
        self._silent: OrderedDict[str, None] = OrderedDict()
        """Workers with a session, the longest silent first."""
        self._writing: Generation | None = None
        self._stepped_down = False
        self._asked = now
        self._unread_until = now

    @property
    def wake(self) -> float:
        """When to `decide`: soon after a change, and often enough to notice own pauses."""
        rules, has_changed = self.state.rules, self.state.has_changed
        return self._asked + (rules.decide_seconds if has_changed else rules.idle_seconds)

    @property
    def incarnation(self) -> int:
        return self.state.incarnation

    @property
    def current(self) -> Generation:
        return self.state.progress.generation

    @property
    def workers(self) -> dict[str, WorkerRecord]:
        return self.state.workers

    @property
    def went(self) -> bool:
        """All members of the current generation have entered it."""
        return self.state.progress.went

    @property
    def established(self) -> bool:
        """All members of the current generation have the run's state in it."""
        return self.state.progress.established

    def handle(self, event: Event, now: float) -> list[Decision]:
        if self._stepped_down:
            return []
        self._forgive_own_pause(now)
        match event:
            case GenerationWritten():
                return self._written(event.number, now)
            case WriteRefused():
                return self._step_down(f"another coordinator has written generation {event.number}")
            case SessionOpened():
                return self._opened(event, now)
            case WorkerDismissed():
                self._lose(event.worker, "was replaced")
                return []
        worker = self.workers.get(event.worker)
        if worker is None or worker.session != event.session:
            if not isinstance(event, StatusReceived):
                return []
            return [CloseSession(event.session, "not the newest session of this worker")]
        match event:
            case StatusReceived():
                self._note_lateness(worker, now)
                return self._received(worker, event.status, now)
            case GoodbyeReceived():
                worker.gone = GOODBYE
                self._drop_session(worker, now)
            case SessionEnded():
                self._drop_session(worker, now)
        return []

    def decide(self, now: float) -> list[Decision]:
        """What is to be decided by now."""
        if self._stepped_down:
            return []
        self._forgive_own_pause(now)
        self._asked = now
        self.state.has_changed = False
        decisions = self._close_silent_spares(now)
        if now < self._unread_until:
            return decisions
        if self._writing is None:
            mark_lost(self.state, now)
            choose = next_restart if self.state.rules.restarts else next_generation
            self._writing = choose(self.state, now)
            if self._writing is not None:
                decisions.append(WriteGeneration(self._writing))
        return decisions

    def _forgive_own_pause(self, now: float) -> None:
        """If nobody asked for long, the coordinator itself was held up: nobody was silent
        meanwhile, and what has come in must be read before anyone is judged."""
        rules = self.state.rules
        pause = now - self._asked
        if pause <= rules.idle_seconds + rules.pause_seconds:
            return
        self._asked = now
        self._unread_until = now + rules.pause_seconds
        self.state.forgive(pause)

    # Sessions

    def _opened(self, event: SessionOpened, now: float) -> list[Decision]:
        state, progress = self.state, self.state.progress
        newest = self._writing or self.current
        if event.status.seen > newest.number:
            return self._step_down(
                f"{event.worker} has seen generation {event.status.seen}, but the record ends with "
                f"{newest.number}: it was replaced by an older one"
            )
        worker = state.workers.setdefault(event.worker, WorkerRecord(event.worker, None, now))
        decisions: list[Decision] = []
        if worker.session is not None:
            why = "replaced by a newer session of the same worker"
            decisions.append(CloseSession(worker.session, why))
        is_back = worker.is_absent
        worker.session, worker.closed = event.session, inf
        self._silent[worker.name] = None
        if worker.name in progress.members:
            state.came_back = now
            comeback_seconds = max(state.rules.comeback_seconds, 2 * state.silence_limit(now))
            state.comeback_until = min(state.comeback_until, now + comeback_seconds)
        self._replace_earlier_start(worker.name)
        decisions += [UpdateSession(event.session), *self._received(worker, event.status, now)]
        if is_back and worker.name in progress.members and progress.is_last_unfinished:
            state.call({worker.name}, now)
        return decisions

    def _replace_earlier_start(self, name: str) -> None:
        """A restarted process: the one before it has ended, even if nobody said so."""
        new = parse(name)
        before = self.state.progress.places.get((new.node, new.local_rank))
        if before is not None and parse(before).start < new.start:
            self._lose(before, "was restarted")

    def _lose(self, name: str, why: str) -> None:
        worker = self.workers.get(name)
        if worker is not None:
            worker.gone = worker.gone or why
            self.state.has_changed = True

    def _drop_session(self, worker: WorkerRecord, now: float) -> None:
        state, progress = self.state, self.state.progress
        if state.rules.restarts and worker.status.entered in self.current.sound and not worker.gone:
            # The others cannot finish without it, and may wait where nothing tells them so.
            state.broken = f"{worker.name} is lost: its connection closed"
        worker.session, worker.closed = None, now
        # A process that reconnects sends its status again.
        worker.status, worker.ready = NO_STATUS, inf
        self._silent.pop(worker.name, None)
        progress.waiting.discard(worker.name)
        state.has_changed = True
        if worker.name in progress.members or self._is_being_admitted(worker.name):
            return
        del state.workers[worker.name]
        # It left as planned: no generation that it was in can be finished.
        progress.end_without(worker.name)
        if progress.is_last_unfinished and not progress.went:
            state.call(progress.members, now)

    def _is_being_admitted(self, name: str) -> bool:
        return self._writing is not None and self._writing.domain_of(name) is not None

    def _close_silent_spares(self, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        for name in list(self._silent):
            worker = self.workers[name]
            if worker.heard + self.state.rules.silence_seconds > now:
                break
            if worker.session is not None and name not in self.state.progress.members:
                decisions.append(CloseSession(worker.session, "no heartbeat"))
                self._drop_session(worker, now)
        return decisions

    # Heartbeats

    def _note_lateness(self, worker: WorkerRecord, now: float) -> None:
        """Not of one that was lost by it: a process that was suspended for a minute says nothing
        of the pauses of others. Nor before all members have the run's state: one that starts
        imports modules and builds its model."""
        late, progress = now - worker.heard - HEARTBEAT_SECONDS, self.state.progress
        is_member = worker.name in progress.members and progress.established
        if late > 0 and is_member and not worker.gone:
            self.state.lateness.note(late, now)

    def _received(self, worker: WorkerRecord, status: WorkerStatus, now: float) -> list[Decision]:
        worker.heard = now
        self._silent.move_to_end(worker.name)
        if status == worker.status:
            return self._remind(worker)
        worker.status = status
        worker.ready = min(worker.ready, now) if status.ready else inf
        self.state.has_changed = True
        if worker.name not in self.state.progress.members:
            return []
        self._note_complaint(worker.name, status, now)
        return self._note_progress(worker, status, now)

    def _note_complaint(self, name: str, status: WorkerStatus, now: float) -> None:
        """Complaints about an older generation are answered by the newer one."""
        progress = self.state.progress
        if status.trouble == self.current.number:
            progress.first_complaint = min(progress.first_complaint, now)
            progress.complaints[name] = status.peers
        elif progress.complaints.pop(name, None) is not None and not progress.complaints:
            progress.first_complaint = inf  # the collective has completed after all
        if status.waits and status.waits in progress.unfinished:
            progress.waiting.add(name)
        else:
            progress.waiting.discard(name)

    def _note_progress(
        self, worker: WorkerRecord, status: WorkerStatus, now: float
    ) -> list[Decision]:
        state, progress, number = self.state, self.state.progress, self.current.number
        progress.note_state(worker.name, status.healed)
        if status.healed == number:
            progress.healed.add(worker.name)
            if progress.established:
                progress.unfinished = {number: progress.members}
                state.forget_retries()
        if worker.enter_by < inf and status.entered >= worker.called_to:
            worker.enter_by = inf
            if status.entered < number and progress.is_last_unfinished:
                state.call({worker.name}, now)
        if status.seen == number and worker.name in progress.newcomers:
            state.call({worker.name}, now)
        if status.entered == number and not progress.went:
            worker.enter_by = inf
            progress.entered.add(worker.name)
            progress.went = len(progress.entered) == len(progress.members)
            return [PublishGo(number)] if progress.went else []
        return []

    def _remind(self, worker: WorkerRecord) -> list[Decision]:
        """Repeats what a worker does not seem to have heard."""
        number, progress = self.current.number, self.state.progress
        status = worker.status
        behind = status.seen < number or (
            progress.went and status.went < number and worker.name in progress.members
        )
        return [UpdateSession(worker.session)] if behind and worker.session is not None else []

    # Generations

    def _written(self, number: int, now: float) -> list[Decision]:
        generation = self._writing
        if generation is None or generation.number != number:
            return []
        state, before, self._writing = self.state, self.state.progress.members, None
        state.progress = progress = state.progress.following(generation, state.workers, now)
        state.broken = ""  # of the generation before: if it was to be finished, that is over now
        if not progress.members:
            state.forget_retries()  # those that come now have not failed together yet
        for name in before - progress.members:
            if state.rules.restarts and generation.sound:
                self._note_if_broken(state.workers[name])
            self._let_go(state.workers[name])
        state.call(progress.members if progress.is_last_unfinished else progress.newcomers, now)
        state.has_changed = True
        return [PublishGeneration(generation)]

    def _note_if_broken(self, worker: WorkerRecord) -> None:
        """It was lost while the record was written that the others finish their step with it."""
        if worker.gone != GOODBYE and (worker.gone or worker.session is None):
            why = worker.gone or "its connection closed"
            self.state.broken = f"{worker.name} is lost: {why}"

    def _let_go(self, worker: WorkerRecord) -> None:
        """It is no longer a member. If it is alive, it hears so, and may ask to join again."""
        if worker.session is None:
            del self.workers[worker.name]
            return
        if worker.gone:
            # It must hear of it first.
            worker.gone, worker.status, worker.ready = "", NO_STATUS, inf
        worker.enter_by = inf

    def _step_down(self, reason: str) -> list[Decision]:
        self._stepped_down = True
        return [StepDown(reason)]
