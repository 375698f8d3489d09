"""The launcher of a run on Kubernetes, in the coordinator's pod: what `local_run` does on a laptop,
with pods instead of processes.

It keeps the coordinator alive, has pods placed and lost ones replaced, notes what happens, and ends
with the Job of the workers. At each look it collects facts, asks `pod_decisions` and
`job_decisions` what to do, and does it; what fails is decided again at the next look. The next step
never depends on it: while it or the API server is away, training continues. Only a change of
members waits, and so does training after a loss: a generation is recorded in the API server before
it begins.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Protocol

from lightkube.resources.batch_v1 import Job

from headway.clock import Clock
from headway.errors import HeadwayError, NotFound, StillRunning
from headway.http_server import HttpServer
from headway.kube.client import ClusterUnreachable, KubeClient
from headway.kube.coordinator_set import coordinator_arguments, fewest_nodes
from headway.kube.kinds import KindTerms
from headway.kube.kueue import mend_job, stop_job
from headway.kube.names import (
    HTTP_PORT,
    SESSION_PORT,
    SUSPECT,
    coordinator_object,
    labels,
    record_object,
    run_object,
)
from headway.launch.below_minimum import BelowMinimum
from headway.launch.coordinator_process import CoordinatorProcess
from headway.launch.failure_domains import step_seen
from headway.launch.forgotten_markers import ForgottenMarkers
from headway.launch.job_decisions import (
    EndKeeper,
    EndSuspicions,
    JobDecision,
    JobTracker,
    MendJob,
    NoteBudget,
    NoteFailure,
    NoteLaunch,
    NoteScaling,
    RunFacts,
    StopRun,
    job_facts,
    noted_launch,
)
from headway.launch.kept_objects import keep_failed
from headway.launch.kube_events import KubeEvents
from headway.launch.pod_calls import Outcome, PodCalls
from headway.launch.pod_decisions import (
    ALONE_SECONDS,
    RESTART_ALONE_SECONDS,
    CrashCounter,
    DismissPod,
    PodFacts,
    PodTracker,
    ReleasePod,
    RemoveMarker,
    ReplacePod,
    TakeBackPod,
    connected_pods,
    member_pods,
)
from headway.launch.pod_watch import PodWatch, pod_facts
from headway.launch.replacements import Replacements
from headway.launch.run_pages import run_pages
from headway.launch.scarcity import (
    GiveBack,
    RemoveMark,
    ScarcityDecision,
    ScarcityRules,
    ScarcityTracker,
    TryAgain,
)
from headway.launch.scarcity_calls import carry_out
from headway.launch.worker_exit import failed_facts
from headway.member.protocol.sockets import bound_to
from headway.spec.resolve import Resolved
from headway.state.generations import next_generation
from headway.state.run_directory import Journal, RunDirectory
from headway.state.status import read_status, watched

LOOK_SECONDS = 0.5
JOB_SECONDS = 2.0
"""Interval between looks at the Job: whether it has ended, and how many nodes it should have."""
BUDGET_SECONDS = 30.0
"""Interval between looks at the budget: they read the run's files."""
RESUME_SECONDS = 10.0
"""How long after this pod its workers are started, at most, when a run is resumed."""
LAUNCH_SECONDS = 120.0
"""The same when it is launched: the other objects are created in between. A queue takes as long as
it likes."""
COORDINATOR_HTTP = "127.0.0.1:7462"
"""Address of the coordinator's pages for this process, also after a restart."""


class KeptCoordinator(Protocol):
    """What a look needs of the coordinator's process."""

    def keep_alive(self) -> str | None: ...

    def state(self) -> dict[str, Any] | None: ...

    def dismiss(self, place: str) -> None: ...


class Keeper:
    def __init__(
        self,
        kube: KubeClient,
        resolved: Resolved,
        directory: RunDirectory,
        *,
        key: Path,
        spot_label: tuple[str, str] | None,
        scarcity: ScarcityRules | None,
        kinds: Sequence[KindTerms] = (),
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        """`spot_label`: label of machines on which the minimum of nodes must not run. `scarcity`:
        None if pods are never given back. `kinds`: of accelerators, if the run may have one of
        several."""
        self.kube = kube
        self.resolved = resolved
        self.directory = directory
        self.clock = clock
        self.is_stopping = False
        self.watch = PodWatch(kube, resolved.name, say)
        self.calls = PodCalls(kube, spot_label, partial(step_seen, directory))
        hours = resolved.run.budget.hours
        self._jobs = JobTracker(None if hours is None else 3600 * hours)
        alone = ALONE_SECONDS if resolved.is_live else RESTART_ALONE_SECONDS
        self._pods = PodTracker(resolved.run.resources.nodes.minimum, alone)
        self._forgotten_markers = ForgottenMarkers(kube, clock)
        self._scarcity = (
            ScarcityTracker(scarcity, fewest_nodes(resolved), [one.name for one in kinds])
            if scarcity is not None
            else None
        )
        self._kinds = {one.name: one for one in kinds}
        self._crashes = CrashCounter()
        self._replacements = Replacements([])
        self._below_minimum = BelowMinimum()
        self._is_idle = True
        """The run was stopped or has ended, or its Job was not looked at yet."""
        self._watched = watched(directory)
        self._journal = Journal(directory.launcher, clock)
        self._key = key
        self._say = say
        self._has_found_markers = False
        self._away = ""
        """Why the API server did not answer, once that was said."""
        self._looked_at_job = self._looked_at_budget = -inf

    def run(self) -> None:
        """Until `is_stopping`: Kubernetes ends this pod, also when the run has stopped or ended. A
        process that ends by itself is started again."""
        with ExitStack() as stack:
            with suppress(StillRunning):  # by our predecessor, on a machine that no longer answers
                stack.enter_context(self.directory.held())
            job = self.started_job()
            if job is None:
                return
            after = self.note_launch(job)
            events = KubeEvents(self.kube, job, self.directory, self.clock, self._say)
            events.start()
            stack.callback(events.finish)
            stack.callback(self._finish_calls)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-")))
            coordinator = self._coordinator(folder)
            coordinator.start(*([] if after is None else ["--after", str(after)]))
            stack.enter_context(coordinator)
            coordinator.wait()
            pages = run_pages(coordinator, self._watched, self.clock)
            stack.enter_context(HttpServer(bound_to("", HTTP_PORT), pages, self.clock))
            self.watch.start()
            stack.callback(self.watch.stop)
            stack.callback(self._flush)
            while not self.is_stopping:
                self.look(coordinator)
                self.clock.sleep(LOOK_SECONDS)

    def started_job(self) -> Job | None:
        """The workers' Job once it was started, because each start is another launch; None if it
        was deleted. A run that is resumed starts this pod first; otherwise a stopped run has lost
        its coordinator. A launch that is interrupted never starts it: then this pod ends, as that
        of a stopped run. One that gave its pods back is started by this keeper."""
        began = self.clock.monotonic()
        has_given_up = False
        while not self.is_stopping:
            try:
                job = self.kube.job(run_object(self.resolved.name))
            except ClusterUnreachable as error:
                self._say_away(error)
            else:
                if job is None:
                    return None
                facts, waited = job_facts(job), self.clock.monotonic() - began
                is_resuming = facts.is_stopped and waited < RESUME_SECONDS
                was_started = facts.launch is not None and not is_resuming
                if was_started or facts.gave_back is not None:
                    return job
                if facts.is_stopped and waited > LAUNCH_SECONDS and not has_given_up:
                    has_given_up = self._gave_up_launch(job)
                with self._saying_what_fails():
                    mend_job(self.kube, job)
            self.clock.sleep(LOOK_SECONDS)
        return None

    def _gave_up_launch(self, job: Job) -> bool:
        self._say(
            f"the workers were not started within {LAUNCH_SECONDS:.0f} s: the launch was "
            "interrupted. Launch the run again, or resume it"
        )
        with self._saying_what_fails():
            self._carry_out(EndKeeper(), job)
            return True
        return False

    def note_launch(self, job: Job) -> int | None:
        """The generation after which this launch begins; None: it began earlier, and only the
        coordinator is new."""
        facts = job_facts(job)
        events = self.directory.launcher.read()[0]
        self._jobs.launch = noted_launch(events)
        if facts.gave_back is not None or facts.launch == self._jobs.launch:
            self._replacements = Replacements(events)
            if self._scarcity is not None:
                self._scarcity.remember(self.directory.history())
            self._journal.note("coordinator_lost", how="its pod was replaced")
            return None
        assert facts.launch is not None
        self.directory.write_spec(self.resolved)
        return self._note_launched(facts.launch) - 1

    def _note_launched(self, launch: str) -> int:
        """Returns the number of its first generation."""
        resolved = self.resolved
        generation = next_generation(self.directory)
        self._journal.note(
            "launched",
            launch=launch,
            generation=generation,
            nodes=resolved.nodes,
            workers=resolved.num_workers,
            device=resolved.device,
            mode="live" if resolved.is_live else "restart",
            cluster=self.kube.namespace,
        )
        self._flush()
        self._jobs.launch = launch
        return generation

    def look(self, coordinator: KeptCoordinator) -> None:
        """One round of facts, decisions and actions."""
        for outcome in self.calls.outcomes():
            self._note_outcome(outcome)
            if isinstance(outcome.call, TakeBackPod) and not outcome.is_back:
                coordinator.dismiss(outcome.call.pod)
        if how := coordinator.keep_alive():
            self._journal.note("coordinator_lost", how=how)
        pods = self.watch.pods()
        if pods is not None:
            self._find_markers(pods)
        self._look_at_job()
        self._look_at_pods(coordinator)

    def _coordinator(self, folder: Path) -> CoordinatorProcess:
        return CoordinatorProcess(
            self.resolved.name,
            f"kube:{record_object(self.resolved.name)}",
            folder,
            [*coordinator_arguments(self.resolved), "--http", COORDINATOR_HTTP],
            self.clock,
            key=self._key,
            address=f":{SESSION_PORT}",
        )

    # Pods

    def _look_at_pods(self, coordinator: KeptCoordinator) -> None:
        state = coordinator.state()
        pods = self.watch.pods()
        if state is None or pods is None or not self._has_found_markers:
            return
        connected, members = connected_pods(state), member_pods(state)
        for decision in self._pods.look(pods, connected, members, self.clock.now()):
            if not isinstance(decision, DismissPod):
                self.calls.start(decision)
            if isinstance(decision, DismissPod | ReplacePod):
                coordinator.dismiss(decision.pod)
        self.calls.forget({pod.name for pod in pods})
        with self._saying_what_fails():
            for name in self._forgotten_markers.delete(pods):
                self._say(f"deleted {name}, which had kept pods off its machine for too long")
        for joined in self._replacements.look(pods, members & connected, self.clock.now()):
            took = round(joined.seconds, 3)
            self._journal.note("replaced", node=joined.node, pod=joined.pod, seconds=took)
        if self._below_minimum.look(state, self._is_idle, self.clock.monotonic()):
            nodes = len(members & connected)
            minimum = fewest_nodes(self.resolved)
            self._journal.note("below_minimum", nodes=nodes, minimum=minimum)

    def _find_markers(self, pods: list[PodFacts]) -> None:
        """Once: those of a keeper before this one."""
        if self._has_found_markers:
            return
        with self._saying_what_fails():
            wanted = labels(self.resolved.name) | {SUSPECT: "true"}
            self._pods.find_markers(self.kube.pods(wanted, pod_facts)[0], pods)
            self._has_found_markers = True

    def _note_outcome(self, outcome: Outcome) -> None:
        call = outcome.call
        if outcome.error is not None:
            self._say(f"{call.pod}: {outcome.error}")
        elif isinstance(call, ReplacePod):
            self._say(f"{call.pod} is lost; {call.machine} gets no pods for a while")
            self._note_lost(call, "no longer answers")
            self.watch.forget(call.pod)
        elif isinstance(call, TakeBackPod) and outcome.is_back:
            self._say(f"{call.machine} is back, and may have pods again")
            self._pods.trust(call.machine)
        elif isinstance(call, TakeBackPod):
            self._say(f"{call.pod} was scheduled on {call.machine}, and is taken back")
            self.watch.forget(call.pod)
        elif isinstance(call, RemoveMarker):
            self._pods.forget_marker(call.pod)
        elif isinstance(call, ReleasePod) and call.how is not None:
            self._say(f"{call.pod} {call.how}")
            self._note_lost(call, call.how)
            now = self.clock.monotonic()
            if why := self._crashes.add(call.index, call.how, outcome.step, now):
                self._say(f"node {call.index}: {why}: the run stops")
                with suppress(OSError):  # the store is away; the run stops nevertheless
                    self._note_failure(call.index, None, why)

    def _note_lost(self, call: ReplacePod | ReleasePod, how: str) -> None:
        self._replacements.lose(call.index, call.pod, self.clock.now())
        how = f"{how} ({call.pod})"
        for local_rank in range(self.resolved.ranks_per_node):
            self._journal.note("lost", node=call.index, local_rank=local_rank, how=how)

    def _finish_calls(self) -> None:
        self.calls.wait()
        for outcome in self.calls.outcomes():
            self._note_outcome(outcome)
        self._flush()

    # The Job

    def _look_at_job(self) -> None:
        now = self.clock.monotonic()
        if now - self._looked_at_job < JOB_SECONDS:
            return
        self._looked_at_job = now
        try:
            job = self.kube.job(run_object(self.resolved.name))
        except ClusterUnreachable as error:
            self._say_away(error)
            return
        except HeadwayError as error:
            self._say(str(error))
            return
        self._away = ""
        facts = self._run_facts(job)
        for decision in (*self._jobs.look(facts), *self._of_scarcity(facts)):
            is_done = False
            with self._saying_what_fails():
                self._carry_out(decision, job)
                is_done = True
            if isinstance(decision, NoteFailure) and not is_done:
                return  # if this keeper ended now, the Job would be deleted too early

    def _of_scarcity(self, facts: RunFacts) -> list[ScarcityDecision]:
        if self._scarcity is None or facts.job is None or facts.pods is None:
            return []
        return self._scarcity.look(facts.job, facts.pods, self.clock.now())

    def _run_facts(self, job: Job | None) -> RunFacts:
        facts = None if job is None else job_facts(job)
        self._is_idle = facts is None or facts.is_suspended or facts.has_ended
        is_hopeless = self._crashes.is_hopeless
        is_running = facts is not None and not facts.is_suspended and not is_hopeless
        return RunFacts(
            job=facts,
            pods=self.watch.pods(),
            has_markers=bool(self._pods.markers) or not self._has_found_markers,
            is_hopeless=is_hopeless,
            spent_seconds=self._spent_seconds() if is_running else None,
        )

    def _spent_seconds(self) -> float | None:
        """Time used so far; None: there is no budget, or it is not time to read the run's files."""
        now = self.clock.monotonic()
        if self._jobs.budget_seconds is None or now - self._looked_at_budget < BUDGET_SECONDS:
            return None
        self._looked_at_budget = now
        spent = read_status(self._watched, self.clock.now()).goodput
        return None if spent is None else spent.total_seconds

    def _carry_out(self, decision: JobDecision | ScarcityDecision, job: Job | None) -> None:
        match decision:
            case GiveBack() | TryAgain() | RemoveMark():
                assert job is not None
                assert self._scarcity is not None
                if not carry_out(decision, self.kube, job, self._kinds, self._journal, self._say):
                    self._scarcity.kinds = ()  # there is no choice
                self._flush()
            case NoteLaunch(launch):
                self._note_launched(launch)
                self._replacements = Replacements([])
            case NoteScaling(before, nodes):
                self._journal.note("scaled", nodes=nodes, before=before)
                self._replacements.scale(nodes)
            case NoteBudget(spent_seconds):
                self._note_budget(spent_seconds)
            case StopRun():
                assert job is not None
                stop_job(self.kube, job)
            case MendJob():
                assert job is not None
                mend_job(self.kube, job)
            case EndSuspicions():
                for marker in sorted(self._pods.markers):
                    self.kube.delete_pod(marker, grace_seconds=0)
                    self._pods.forget_marker(marker)
            case NoteFailure(node, last_words, why):
                assert job is not None
                try:
                    keep_failed(self.kube, job)
                finally:
                    with self._saying_what_fails():  # the store may be away
                        self._note_failure(node, last_words, why)
            case EndKeeper():
                self._flush()
                if self._is_over():
                    self._scale_coordinator(0)
                    if not self._is_over():  # resumed meanwhile, and its call came before ours
                        self._scale_coordinator(1)

    def _scale_coordinator(self, replicas: int) -> None:
        with suppress(NotFound):  # deleted with the run, and so will be this pod
            self.kube.scale_replica_set(coordinator_object(self.resolved.name), replicas)

    def _is_over(self) -> bool:
        job = self.kube.job(run_object(self.resolved.name))
        facts = None if job is None else job_facts(job)
        return facts is None or facts.is_stopped or facts.has_ended

    @contextmanager
    def _saying_what_fails(self) -> Iterator[None]:
        try:
            yield
        except (HeadwayError, OSError) as error:  # also of the run's storage
            self._say(str(error))  # decided again at the next look

    def _note_budget(self, spent_seconds: float) -> None:
        hours = self.resolved.run.budget.hours
        self._say(f"the budget of {hours:g} hours is used up: the run saves and stops")
        self._journal.note("budget", hours=hours, spent_hours=round(spent_seconds / 3600, 3))

    def _note_failure(self, node: int, last_words: str | None, why: str) -> None:
        """Once: a keeper before this one, or a worker, may have noted it."""
        events = self.directory.history()
        if not any(event["event"] == "failed" for event in events[-3:]):
            facts = failed_facts(node, last_words, why, self.resolved.ranks_per_node)
            self._journal.note("failed", **facts)

    def _say_away(self, error: ClusterUnreachable) -> None:
        if error.message != self._away:
            self._away = error.message
            self._say(f"{self._away}; training continues unless a worker is lost")

    def _flush(self) -> None:
        with suppress(OSError):
            self.directory.launcher.flush()
