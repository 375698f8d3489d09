"""The launcher of a run on Kubernetes, in the coordinator's pod: what `launch.local` does on a
laptop, with pods in the place of processes.

It keeps the coordinator alive, lets pods be placed, has lost ones replaced, notes what happens, and
ends with the Job of the workers. Nothing it does is needed for the next step: while it or the API
server is away, training continues. Only a change of members waits, and so does training after a
loss: generations are written down in the API server before they begin.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from lightkube.resources.batch_v1 import Job

from headway.clock import Clock
from headway.errors import HeadwayError, StillRunning
from headway.kube.client import ClusterAway, Kube
from headway.kube.coordinator_job import coordinator_arguments
from headway.kube.kueue import queue_of, stop_job, was_stopped
from headway.kube.names import (
    HTTP_PORT,
    SESSION_PORT,
    coordinator_object,
    record_object,
    run_object,
)
from headway.kube.views import job_end
from headway.launch.coordinator import Coordinator
from headway.launch.pages import pages_of
from headway.launch.podwatch import PodWatch
from headway.launch.replacing import Action, Keeping, Place, Release, Remove, Replace
from headway.launch.roster import members_of, present
from headway.launch.serving import Server
from headway.launch.units import Losses, failed_facts, step_seen
from headway.spec.resolve import Resolved
from headway.state.generations import next_generation
from headway.state.rundir import Journal, RunDirectory
from headway.state.status import read_status, watched

LOOK_SECONDS = 0.5
JOB_SECONDS = 2.0
"""Between two looks at the Job: whether it has ended, and how many nodes are wanted."""
BUDGET_SECONDS = 30.0
LOOKED_AT = "127.0.0.1:7462"
"""Where the coordinator answers this process, also after it was started again."""
CALLS_AT_ONCE = 8
"""Thousands of pods are placed at the start, one call each."""


class Keeper:
    def __init__(
        self,
        kube: Kube,
        resolved: Resolved,
        directory: RunDirectory,
        key: Path,
        pod: str,
        spot_label: tuple[str, str] | None,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        """`pod`: the one this is in. `spot_label`: what machines carry that are no place for the
        fewest nodes of the run."""
        self.kube = kube
        self.resolved = resolved
        self.directory = directory
        self._watched = watched(directory)
        self.clock = clock
        self.keeping = Keeping()
        self.is_stopping = False
        self._journal = Journal(directory.launcher, clock)
        self._key = key
        self._pod = pod
        self._is_released = False
        self._spot_label = spot_label
        self._say = say
        self._watch = PodWatch(kube, resolved.name, say)
        self._calls = ThreadPoolExecutor(CALLS_AT_ONCE)
        self._begun: set[tuple[type[Action], str]] = set()
        """What is being done, or was, by pod."""
        self._losses: defaultdict[int, Losses] = defaultdict(Losses)
        """Of pods that have failed, by index."""
        self._is_hopeless = False
        self._nodes: int | None = None
        self._away = ""
        self._looked_at_job = 0.0
        self._looked_at_budget = 0.0

    def run(self) -> None:
        """Until the Job of the workers has ended or is gone, or `is_stopping`."""
        with ExitStack() as stack:
            with suppress(StillRunning):  # the one before, on a machine that does not answer
                stack.enter_context(self.directory.held())
            job = self._job_at_start()
            if job is None:
                return
            after = self._note_launch(job)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-")))
            coordinator = self._coordinator(folder)
            coordinator.start(*([] if after is None else ["--after", str(after)]))
            stack.enter_context(coordinator)
            coordinator.wait()
            pages = pages_of(coordinator, self._watched, self.clock)
            server = stack.enter_context(Server(("", HTTP_PORT), pages, self.clock))
            server.start()
            self._watch.start()
            stack.callback(self._watch.stop)
            stack.callback(self._flush)
            self._keep(coordinator)

    def _coordinator(self, folder: Path) -> Coordinator:
        return Coordinator(
            self.resolved.name,
            f"kube:{record_object(self.resolved.name)}",
            folder,
            [*coordinator_arguments(self.resolved), "--http", LOOKED_AT],
            self.clock,
            key=self._key,
            address=f":{SESSION_PORT}",
        )

    def _job_at_start(self) -> Job | None:
        """Once it has been started, for each start is another launch: None if it was deleted."""
        while not self.is_stopping:
            try:
                job = self.kube.job(run_object(self.resolved.name))
            except ClusterAway as error:
                self._note_away(error)
            else:
                if job is None or (job.status is not None and job.status.startTime is not None):
                    return job
            self.clock.sleep(LOOK_SECONDS)
        return None

    def _note_launch(self, job: Job) -> int | None:
        """The generation behind which this launch begins; None: it began before, and only the
        coordinator is new."""
        assert job.status is not None
        assert job.metadata is not None
        launch = f"{job.metadata.uid} {job.status.startTime}"
        launched = [one for one in self.directory.launcher.read()[0] if one["event"] == "launched"]
        if launched and launched[-1].get("launch") == launch:
            self._journal.note("coordinator_lost", how="its pod was replaced")
            return None
        resolved = self.resolved
        self.directory.write_spec(resolved)
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
        return generation - 1

    # Keeping

    def _keep(self, coordinator: Coordinator) -> None:
        is_known = False
        while not self.is_stopping:
            if how := coordinator.keep_alive():
                self._journal.note("coordinator_lost", how=how)
            if self._has_ended():
                return
            state = coordinator.state()
            if state is not None and self._watch.is_complete.is_set():
                now = self.clock.now()
                pods, here, members = self._watch.pods(), present(state), members_of(state)
                if not is_known:
                    is_known = True
                    self.keeping.expect(members, now)
                known = {pod.name for pod in pods}
                for action in self.keeping.look(pods, here, members, now):
                    self._do(action)
                    if isinstance(action, Replace):
                        coordinator.dismiss(action.pod)
                # They have ended; or Kubernetes has others for them, or wants none, and they were
                # only cut off.
                for gone in (here | members) - {pod.name for pod in pods if not pod.has_ended}:
                    coordinator.dismiss(gone)
                self._forget_begun(known)
            self.clock.sleep(LOOK_SECONDS)

    def _do(self, action: Action) -> None:
        """Once for each pod; what failed is tried again at the next look."""
        key = (type(action), action.pod)
        if key in self._begun:
            return
        self._begun.add(key)
        future = self._calls.submit(self._act, action)
        future.add_done_callback(lambda done: self._done(action, done.exception()))

    def _act(self, action: Action) -> None:
        match action:
            case Place():
                self._place(action)
            case Replace():
                # The Job waits for its own finalizer before it makes another, and the API server
                # for a kubelet that will not answer.
                self.kube.release_pod(action.pod)
                self.kube.delete_pod(action.pod, grace_seconds=0)
            case Release():
                self.kube.release_pod(action.pod)
            case Remove():
                self.kube.delete_pod(action.pod, grace_seconds=0)

    def _forget_begun(self, known: Set[str]) -> None:
        """Of pods that are gone. Calls that end meanwhile change it, too."""
        for key in list(self._begun):
            if key[1] not in known:
                self._begun.discard(key)

    def _done(self, action: Action, error: BaseException | None) -> None:
        if error is not None:
            self._say(f"{action.pod}: {error}")
            self._begun.discard((type(action), action.pod))
        elif isinstance(action, Replace):
            self._say(f"{action.pod} is lost; {action.node} gets no pods for a while")
            self._note_lost(action.index, f"does not answer any more ({action.pod})")
            self._watch.forget(action.pod)
        elif isinstance(action, Release) and action.how is not None:
            self._say(f"{action.pod} {action.how}")
            self._note_lost(action.index, f"{action.how} ({action.pod})")
            self._count_loss(action.index, action.how)

    def _count_loss(self, index: int, how: str) -> None:
        """A pod that is out of memory is so again, in the next one and at any hour."""
        losses, now = self._losses[index], self.clock.monotonic()
        count = losses.add(step_seen(self.directory), now)
        if self._is_hopeless or not losses.are_too_many(now):
            return
        self._is_hopeless = True
        words = f"its pod {how}, {count} times without a new step in between"
        self._say(f"node {index}: {words}: the run stops")
        self._note_failed(index, None, words)

    def _note_lost(self, node: int, how: str) -> None:
        for local_rank in range(self.resolved.ranks_per_node):
            self._journal.note("lost", node=node, local_rank=local_rank, how=how)

    def _place(self, action: Place) -> None:
        is_of_the_fewest = action.index < self.resolved.run.resources.nodes.minimum
        not_labelled = self._spot_label if is_of_the_fewest else None
        self.kube.lift_gate(action.pod, action.not_on, not_labelled)

    # The Job

    def _has_ended(self) -> bool:
        now = self.clock.monotonic()
        if now - self._looked_at_job < JOB_SECONDS:
            return False
        self._looked_at_job = now
        try:
            job = self.kube.job(run_object(self.resolved.name))
        except ClusterAway as error:
            self._note_away(error)
            return False
        except HeadwayError as error:
            self._say(str(error))
            return False
        self._away = ""
        if job is None:
            return self._is_given_back()
        self._be_released()
        assert job.spec is not None
        assert job.status is not None
        self._note_scaling(job.spec.parallelism or 0)
        has_seen = self._watch.is_complete.is_set()
        is_stopped = queue_of(job) is None or was_stopped(job)
        if not job.spec.suspend:
            if self._is_hopeless or self._is_budget_used():
                with self._saying_what_fails():
                    stop_job(self.kube, job)
        # A queue suspends and resumes the workers as it likes, and knows nothing of this pod.
        elif is_stopped and has_seen and all(pod.has_ended for pod in self._watch.pods()):
            self._sleep()
        end = job_end(job)
        if end is not None and end.type == "Failed":
            failed = next((pod for pod in self._watch.pods() if pod.is_to_blame), None)
            node, left = (0, None) if failed is None else (failed.index, failed.left)
            self._note_failed(node, left, end.message or end.reason or "no reason given")
        return end is not None and self._is_given_back()

    def _be_released(self) -> None:
        """From our own Job, which would wait before it makes another pod, longer each time this
        one is lost."""
        if not self._is_released:
            with self._saying_what_fails():
                self.kube.release_pod(self._pod)
                self._is_released = True

    def _is_given_back(self) -> bool:
        """To our Job, which ends when it sees this pod end well."""
        with self._saying_what_fails():
            self.kube.give_back_pod(self._pod)
            return True
        return False

    def _sleep(self) -> None:
        """The run was stopped, and its pods have gone: nothing is to be kept until it is resumed.
        Kubernetes ends this pod then."""
        self._flush()
        with self._saying_what_fails():
            self.kube.suspend_job(coordinator_object(self.resolved.name))

    def _is_budget_used(self) -> bool:
        """Looked at now and then."""
        hours = self.resolved.run.budget.hours
        now = self.clock.monotonic()
        if hours is None or now - self._looked_at_budget < BUDGET_SECONDS:
            return False
        self._looked_at_budget = now
        spent = read_status(self._watched, self.clock.now()).goodput
        if spent is None or spent.total_seconds < 3600 * hours:
            return False
        self._say(f"{hours:g} hours are used up: the run saves and stops")
        self._journal.note("budget", hours=hours, spent_hours=round(spent.total_seconds / 3600, 3))
        return True

    @contextmanager
    def _saying_what_fails(self) -> Iterator[None]:
        try:
            yield
        except HeadwayError as error:
            self._say(str(error))  # tried again at the next look

    def _note_scaling(self, nodes: int) -> None:
        if self._nodes is not None and nodes != self._nodes:
            self._journal.note("scaled", nodes=nodes, before=self._nodes)
        self._nodes = nodes

    def _note_failed(self, node: int, left: str | None, why: str) -> None:
        events = self.directory.history()
        if not any(event["event"] == "failed" for event in events[-3:]):
            facts = failed_facts(node, left, why, self.resolved.ranks_per_node)
            self._journal.note("failed", **facts)

    def _note_away(self, error: ClusterAway) -> None:
        if error.message != self._away:
            self._away = error.message
            self._say(f"{self._away}; training continues meanwhile unless a worker is lost")

    def _flush(self) -> None:
        with suppress(OSError):
            self.directory.launcher.flush()
