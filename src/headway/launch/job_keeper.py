"""The Job of a run's workers, as the keeper looks after it: it waits for the Job's start, carries
out what `job_decisions` and `scarcity` decide about it, and ends with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from math import inf

from lightkube.resources.batch_v1 import Job

from headway.clock import Clock
from headway.errors import HeadwayError, NotFound
from headway.kube.api_errors import ClusterUnreachable
from headway.kube.client import KubeClient
from headway.kube.coordinator_set import fewest_nodes
from headway.kube.kinds import KindTerms
from headway.kube.kueue import mend_job, stop_job
from headway.kube.names import coordinator_object, run_object
from headway.kube.node_prices import NodePrices
from headway.launch.job_decisions import (
    EndKeeper,
    EndSuspicions,
    JobDecision,
    JobFacts,
    JobTracker,
    MendJob,
    NoteBudget,
    NoteFailure,
    NoteLaunch,
    NoteMoneyProblem,
    NoteScaling,
    RunFacts,
    StopRun,
    job_facts,
    noted_launch,
)
from headway.launch.keeper_notes import KeeperNotes
from headway.launch.kept_objects import keep_failed
from headway.launch.money_keeper import MoneyKeeper
from headway.launch.pod_decisions import PodFacts
from headway.launch.pod_keeper import PodKeeper
from headway.launch.scarcity import (
    GiveBack,
    RemoveMark,
    ScarcityDecision,
    ScarcityRules,
    ScarcityTracker,
    TryAgain,
)
from headway.launch.scarcity_calls import carry_out
from headway.member.coordinator.record import GenerationRecord
from headway.state.chain import Chain
from headway.state.run_history import HistoryReader, RunHistory
from headway.state.status import spent_seconds

START_LOOK_SECONDS = 0.5
"""Interval between looks at a Job that was not started yet."""
JOB_SECONDS = 2.0
"""Interval between looks at the Job: whether it has ended, and how many nodes it should have."""
BUDGET_SECONDS = 30.0
"""Interval between reads of the run's history, as long as a budget or the money needs one."""
RESUME_SECONDS = 10.0
"""How long after this pod its workers are started, at most, when a run is resumed."""
UNRECORDED_SECONDS = 1200.0
"""Time for which a run whose budget cannot be kept goes on because its storage does not take the
reason: workers that stop meanwhile could not save. Then it stops unsaved."""
LAUNCH_SECONDS = 120.0
"""The same when it is launched: the other objects are created in between. A queue takes as long as
it likes."""


class JobKeeper:
    def __init__(
        self,
        kube: KubeClient,
        notes: KeeperNotes,
        pods: PodKeeper,
        record: GenerationRecord,
        *,
        scarcity: ScarcityRules | None,
        kinds: Sequence[KindTerms] = (),
        rates: NodePrices | None = None,
        clock: Clock,
    ) -> None:
        """`scarcity`: None if pods are never given back. `kinds`: of accelerators, if the run may
        have one of several. `rates`: what nodes cost, if the target says so."""
        self._kube = kube
        self._notes = notes
        self._pods = pods
        self._record = record
        self._clock = clock
        budget = notes.resolved.run.budget
        hours = budget.hours
        self._tracker = JobTracker(None if hours is None else 3600 * hours, budget.usd)
        self.money = (
            MoneyKeeper(kube, rates, budget.usd, notes, clock) if rates is not None else None
        )
        self._scarcity = (
            ScarcityTracker(scarcity, fewest_nodes(notes.resolved), [one.name for one in kinds])
            if scarcity is not None
            else None
        )
        self._kinds = {one.name: one for one in kinds}
        self.is_idle = True
        """The run was stopped or has ended, or its Job was not looked at yet."""
        self.history = HistoryReader(notes.directory)
        self._looked = self._looked_at_budget = -inf
        self._unrecorded_since: float | None = None
        """Time since which the reason why the budget cannot be kept was to be recorded."""
        self._store = ThreadPoolExecutor(1, thread_name_prefix="history")
        self._reading: Future[RunHistory] | None = None
        self._unreadable = ""
        """Why the history could not be read, once that was said."""

    # Its start

    def started(self, is_stopping: Callable[[], bool]) -> Job | None:
        """The Job once it was started, because each start is another launch; None if it was
        deleted, or this process is stopping. A run that is resumed starts this pod first; otherwise
        a stopped run has lost its coordinator. A launch that is interrupted never starts it: then
        this pod ends, as that of a stopped run. One that gave its pods back is started by this
        keeper."""
        began = self._clock.monotonic()
        has_given_up = False
        while not is_stopping():
            try:
                job = self._job()
            except ClusterUnreachable as error:
                self._notes.away(error)
            else:
                if job is None:
                    return None
                facts, waited = job_facts(job), self._clock.monotonic() - began
                is_resuming = facts.is_stopped and waited < RESUME_SECONDS
                was_started = facts.launch is not None and not is_resuming
                if was_started or facts.gave_back is not None:
                    return job
                if facts.is_stopped and waited > LAUNCH_SECONDS and not has_given_up:
                    has_given_up = self._gave_up_launch(job)
                with self._notes.saying_what_fails():
                    mend_job(self._kube, job)
            self._clock.sleep(START_LOOK_SECONDS)
        return None

    @property
    def launch(self) -> str | None:
        """The launch that it keeps, once that is noted."""
        return self._tracker.launch

    def note_launch(self, job: Job) -> int | None:
        """The generation after which this launch begins; None: it began earlier, and only the
        coordinator is new."""
        facts, directory = job_facts(job), self._notes.directory
        events = directory.launcher.read()[0]
        self._tracker.launch = noted_launch(events)
        if facts.gave_back is not None or facts.launch == self._tracker.launch:
            self._pods.replacements.remember(events)
            if self._scarcity is not None:
                self._scarcity.remember(self.history.read().events)
            link = Chain(directory).last()
            newest = link.begun if link is not None else 0
            # Else the keeper before was lost between its launch and the first record of it.
            is_recorded = self._record.read().generation.number >= newest
            self._notes.note("coordinator_lost", how="its pod was replaced")
            return None if is_recorded else newest
        assert facts.launch is not None
        directory.write_spec(self._notes.resolved)
        return self._note_launched(facts.launch) - 1

    def _note_launched(self, launch: str) -> int:
        generation = self._notes.launched(launch, self._kube.namespace)
        self._tracker.launch = launch
        return generation

    def _gave_up_launch(self, job: Job) -> bool:
        self._notes.say(
            f"the workers were not started within {LAUNCH_SECONDS:.0f} s: the launch was "
            "interrupted. Launch the run again, or resume it"
        )
        with self._notes.saying_what_fails():
            self._carry_out(EndKeeper(), job)
            return True
        return False

    # While it runs

    def look(self) -> None:
        now = self._clock.monotonic()
        if now - self._looked < JOB_SECONDS:
            return
        self._looked = now
        try:
            job = self._job()
        except ClusterUnreachable as error:
            self._notes.away(error)
            return
        except HeadwayError as error:
            self._notes.say(str(error))
            return
        self._notes.back()
        facts = self._facts(job)
        for decision in (*self._tracker.look(facts), *self._of_scarcity(facts)):
            is_done = False
            with self._notes.saying_what_fails():
                self._carry_out(decision, job)
                is_done = True
            if isinstance(decision, NoteFailure) and not is_done:
                return  # if this keeper ended now, the Job would be deleted too early
            if (
                isinstance(decision, NoteMoneyProblem)
                and not is_done
                and self._may_wait_to_stop(now)
            ):
                return  # the store is away: workers that are stopped now could not save

    def _may_wait_to_stop(self, now: float) -> bool:
        """Whether a run whose budget cannot be kept may go on until its storage answers."""
        if self._unrecorded_since is None:
            self._unrecorded_since = now
        return now - self._unrecorded_since < UNRECORDED_SECONDS

    def _facts(self, job: Job | None) -> RunFacts:
        facts = None if job is None else job_facts(job)
        self.is_idle = facts is None or facts.is_suspended or facts.has_ended
        is_hopeless = self._pods.is_hopeless
        is_running = facts is not None and not facts.is_suspended and not is_hopeless
        pods = self._pods.watch.pods()
        history = self._newer_history(is_running)
        if self.money is not None and history is not None and not self.money.is_open:
            self.money.open(history)
        has_hours = self._tracker.budget_seconds is not None and is_running
        return RunFacts(
            job=facts,
            pods=pods,
            has_markers=self._pods.has_markers,
            is_hopeless=is_hopeless,
            spent_seconds=spent_seconds(history, self._clock.now())
            if has_hours and history is not None
            else None,
            spent_usd=self._spent_usd(facts, pods),
            money_problem=None if self.money is None else self.money.problem,
        )

    def _spent_usd(self, job: JobFacts | None, pods: Sequence[PodFacts] | None) -> float | None:
        if self.money is None or job is None:
            return None
        spending = self.money.look(pods, job.accelerators)
        return None if spending is None else spending.usd

    def _of_scarcity(self, facts: RunFacts) -> list[ScarcityDecision]:
        if self._scarcity is None or facts.job is None or facts.pods is None:
            return []
        return self._scarcity.look(facts.job, facts.pods, self._clock.now())

    def _newer_history(self, is_running: bool) -> RunHistory | None:
        """None: nobody needs it, or it was not read since the last look. It is read in a thread:
        its store may be away or slow, and pods are billed."""
        now = self._clock.monotonic()
        needs_hours = self._tracker.budget_seconds is not None and is_running
        is_needed = needs_hours or (self.money is not None and not self.money.is_open)
        if is_needed and self._reading is None and now - self._looked_at_budget >= BUDGET_SECONDS:
            self._looked_at_budget = now
            self._reading = self._store.submit(self.history.read)
        if self._reading is None or not self._reading.done():
            return None
        reading, self._reading = self._reading, None
        try:
            history = reading.result()
        except (HeadwayError, OSError) as error:
            if self.money is not None:
                self.money.failure = error
            if str(error) != self._unreadable:
                self._unreadable = str(error)
                self._notes.say(f"what the run has used cannot be read: {error}")
            return None
        self._unreadable = ""
        return history

    def settle(self) -> None:
        """Wait for the store, as tests do."""
        if self._reading is not None:
            wait([self._reading])

    def _carry_out(self, decision: JobDecision | ScarcityDecision, job: Job | None) -> None:
        notes = self._notes
        match decision:
            case GiveBack() | TryAgain() | RemoveMark():
                assert job is not None
                assert self._scarcity is not None
                if not carry_out(decision, self._kube, job, self._kinds, notes.journal, notes.say):
                    self._scarcity.kinds = ()  # there is no choice
                notes.flush()
            case NoteLaunch(launch):
                self._note_launched(launch)
                self._pods.replacements.clear()
            case NoteScaling(before, nodes):
                notes.note("scaled", nodes=nodes, before=before)
                self._pods.replacements.scale(nodes)
            case NoteBudget(spent_seconds, spent_usd):
                notes.budget(spent_seconds, spent_usd)
            case NoteMoneyProblem(problem):
                notes.money_problem(problem.reason, problem.hint)
                self._unrecorded_since = None
            case StopRun():
                assert job is not None
                stop_job(self._kube, job)
            case MendJob():
                assert job is not None
                mend_job(self._kube, job)
            case EndSuspicions():
                self._pods.end_suspicions()
            case NoteFailure(node, last_words, why):
                assert job is not None
                try:
                    keep_failed(self._kube, job)
                finally:
                    with notes.saying_what_fails():  # the store may be away
                        notes.failed(node, last_words, why)
            case EndKeeper():
                self.finish()
                notes.flush()
                if self._is_over():
                    self._scale_coordinator(0)
                    if not self._is_over():  # resumed meanwhile, and its call came before ours
                        self._scale_coordinator(1)

    def finish(self) -> None:
        """Records what is only known here."""
        if self.money is not None:
            self.money.note()

    def _scale_coordinator(self, replicas: int) -> None:
        with suppress(NotFound):  # deleted with the run, and so will be this pod
            self._kube.scale_replica_set(coordinator_object(self._notes.resolved.name), replicas)

    def _is_over(self) -> bool:
        job = self._job()
        facts = None if job is None else job_facts(job)
        return facts is None or facts.is_stopped or facts.has_ended

    def _job(self) -> Job | None:
        return self._kube.job(run_object(self._notes.resolved.name))
