"""The launcher of a run on Kubernetes, in the coordinator's pod: what `local_run` does on a laptop,
with pods instead of processes. Of two such pods, the one that does not hold the run's Lease stands
by (`lease`).

It keeps the coordinator alive, has pods placed and lost ones replaced (`pod_keeper`), notes what
happens (`keeper_notes`), and ends with the Job of the workers (`job_keeper`). At each look they
collect facts, ask `pod_decisions` and `job_decisions` what to do, and do it; what fails is decided
again at the next look. The next step never depends on it: while it or the API server is away,
training continues. Only a change of members waits, and so does training after a loss: a generation
is recorded in the API server before it begins.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from lightkube.resources.batch_v1 import Job

from headway.clock import Clock
from headway.errors import RunFailed, StillRunning
from headway.http_server import TEXT, HttpServer, Pages
from headway.kube.api_errors import ClusterUnreachable
from headway.kube.client import KubeClient
from headway.kube.config_map_record import KubeRecord
from headway.kube.coordinator_set import coordinator_arguments
from headway.kube.kinds import KindTerms
from headway.kube.names import HTTP_PORT, SESSION_PORT, record_object
from headway.kube.node_prices import NodePrices
from headway.launch.coordinator_process import CoordinatorProcess
from headway.launch.job_keeper import JobKeeper
from headway.launch.keeper_notes import KeeperNotes, token_of
from headway.launch.kube_events import KubeEvents
from headway.launch.lease import LeaseKeeper
from headway.launch.pod_keeper import KeptCoordinator, PodKeeper
from headway.launch.run_pages import run_pages
from headway.launch.scarcity import ScarcityRules
from headway.member.coordinator.record import GenerationRecord
from headway.member.protocol.sockets import bound_to
from headway.spec.resolve import Resolved
from headway.state.heartbeat import SignsOfLife
from headway.state.run_directory import RunDirectory
from headway.state.store import is_refusal

LOOK_SECONDS = 0.5
STANDBY_SECONDS = 0.1
"""Between looks whether a pod that stands by holds the Lease now."""
STANDBY_PAGES: Pages = {
    "/healthz": lambda: (TEXT, b"stands by\n"),
    # Prometheus finds both pods.
    "/metrics": lambda: (TEXT, b""),
}
COORDINATOR_HTTP = "127.0.0.1:7462"
"""Address of the coordinator's pages for this process, also after a restart."""


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
        rates: NodePrices | None = None,
        lease: LeaseKeeper | None = None,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        """`spot_label`: label of machines on which the minimum of nodes must not run. `scarcity`:
        None if pods are never given back. `kinds`: of accelerators, if the run may have one of
        several. `rates`: what nodes cost, if the target says so. `lease`: if there are two such
        pods."""
        self.kube = kube
        self.resolved = resolved
        self.directory = directory
        self.clock = clock
        self.is_stopping = False
        self.notes = KeeperNotes(directory, resolved, clock, say)
        self.pods = PodKeeper(kube, self.notes, spot_label, clock)
        self.job = JobKeeper(
            kube,
            self.notes,
            self.pods,
            self._record(),
            scarcity=scarcity,
            kinds=kinds,
            rates=rates,
            num_coordinators=1 if lease is None else 2,
            clock=clock,
        )
        self._key = key
        self._lease = lease

    @property
    def is_over(self) -> bool:
        """Whether this keeper has to end: Kubernetes ends its pod, or another acts in its place."""
        return self.is_stopping or (self._lease is not None and self._lease.is_over)

    def run(self) -> None:
        """Until `is_over`: Kubernetes ends this pod, also when the run has stopped or ended. A
        process that ends by itself is started again."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-")))
            coordinator = self._coordinator(folder)
            if self._lease is not None:
                self._lease.on_lost = coordinator.kill
                # Given up when all that follows has ended, the coordinator as well.
                stack.enter_context(self._lease)
            stack.enter_context(coordinator)
            if self._lease is not None and not self._stand_by(coordinator, self._lease):
                return
            self._act(coordinator, stack)

    def _stand_by(self, coordinator: CoordinatorProcess, lease: LeaseKeeper) -> bool:
        """Until the Lease is held; False: this pod is ending. Nothing of the run is read
        meanwhile, but all that acting takes is loaded."""
        coordinator.prepare()
        with HttpServer(bound_to("", HTTP_PORT), STANDBY_PAGES, self.clock):
            while not self.is_over:
                if lease.is_held():
                    self.notes.say(f"acts for the run, in term {lease.term} of its Lease")
                    return True
                coordinator.keep_alive()
                self.clock.sleep(STANDBY_SECONDS)
        return False

    def _act(self, coordinator: CoordinatorProcess, stack: ExitStack) -> None:
        with suppress(StillRunning):  # by our predecessor, on a machine that no longer answers
            stack.enter_context(self.directory.held())
        job = self.job.started(lambda: self.is_over)
        if job is None:
            return
        lease = self._lease
        has_members = lease is not None and self.job.is_of_launch(job, lease.found_launch)
        if has_members:
            # They come back while the run's files are read.
            coordinator.act(None)
        after = self._note_launch(job, coordinator if has_members else None)
        token = token_of(self.job.launch or "")
        stack.enter_context(SignsOfLife(self.directory, token, self.clock))
        events = KubeEvents(
            self.kube,
            job,
            self.directory,
            self.clock,
            self.notes.say,
            self.resolved.is_script,
        )
        events.start()
        stack.callback(events.finish)
        stack.callback(self.pods.finish)
        if not has_members:
            coordinator.act(after)
        try:
            coordinator.wait()
        except RunFailed:
            if not self.is_over:
                raise
            return
        pages = run_pages(coordinator, self.job.history, self.clock)
        stack.enter_context(HttpServer(bound_to("", HTTP_PORT), pages, self.clock))
        self.pods.watch.start()
        stack.callback(self.pods.watch.stop)
        stack.callback(self.notes.flush)
        stack.callback(self.job.finish)
        while not self.is_over:
            self.look(coordinator)
            self.clock.sleep(LOOK_SECONDS)

    def _note_launch(self, job: Job, acting: KeptCoordinator | None) -> int | None:
        """As the JobKeeper does, with a coordinator that acts already if workers train: those need
        no store for a while, but a coordinator."""
        said = ""
        while not self.is_over:
            try:
                return self.job.note_launch(job)
            except ClusterUnreachable as error:
                self.notes.away(error)
            except OSError as error:
                if acting is None or is_refusal(error):
                    raise
                if str(error) != said:
                    said = str(error)
                    self.notes.say(f"what the keeper before noted cannot be read yet: {said}")
            if acting is not None:
                acting.keep_alive()
            self.clock.sleep(LOOK_SECONDS)
        return None

    def look(self, coordinator: KeptCoordinator) -> None:
        """One round of facts, decisions and actions."""
        if self._lease is not None:
            self._lease.launch = self.job.launch or ""
        self.pods.note_calls(coordinator)
        if how := coordinator.keep_alive():
            self.notes.note("coordinator_lost", how=how)
        self.pods.find_markers()
        self.job.look()
        self.pods.look(coordinator, self.job.is_idle)

    def _record(self) -> GenerationRecord:
        name = self.resolved.name
        return KubeRecord(self.kube, record_object(name), name)

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
