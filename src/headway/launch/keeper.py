"""The launcher of a run on Kubernetes, in the coordinator's pod: what `local_run` does on a laptop,
with pods instead of processes.

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
from headway.errors import StillRunning
from headway.http_server import HttpServer
from headway.kube.api_errors import ClusterUnreachable
from headway.kube.client import KubeClient
from headway.kube.config_map_record import KubeRecord
from headway.kube.coordinator_set import membership_rules
from headway.kube.kinds import KindTerms
from headway.kube.names import HTTP_PORT, SESSION_PORT, record_object
from headway.kube.node_prices import NodePrices
from headway.launch.coordinator_process import CoordinatorProcess
from headway.launch.job_keeper import JobKeeper
from headway.launch.keeper_notes import KeeperNotes, token_of
from headway.launch.kube_events import KubeEvents
from headway.launch.pod_keeper import KeptCoordinator, PodKeeper
from headway.launch.run_pages import run_pages
from headway.launch.scarcity import ScarcityRules
from headway.member.coordinator.record import GenerationRecord
from headway.member.coordinator.settings import CoordinatorSettings
from headway.member.protocol.sockets import bound_to
from headway.spec.resolve import Resolved
from headway.state.heartbeat import SignsOfLife
from headway.state.run_directory import RunDirectory

LOOK_SECONDS = 0.5
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
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        """`spot_label`: label of machines on which the minimum of nodes must not run. `scarcity`:
        None if pods are never given back. `kinds`: of accelerators, if the run may have one of
        several. `rates`: what nodes cost, if the target says so."""
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
            clock=clock,
        )
        self._key = key

    def run(self) -> None:
        """Until `is_stopping`: Kubernetes ends this pod, also when the run has stopped or ended. A
        process that ends by itself is started again."""
        with ExitStack() as stack:
            with suppress(StillRunning):  # by our predecessor, on a machine that no longer answers
                stack.enter_context(self.directory.held())
            job = self.job.started(lambda: self.is_stopping)
            if job is None:
                return
            after = self._note_launch(job)
            if self.is_stopping:
                return
            token = token_of(self.job.launch or "")
            stack.enter_context(SignsOfLife(self.directory, token, self.clock))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-")))
            coordinator = self._coordinator(folder)
            stack.enter_context(coordinator.start(after))
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
            coordinator.wait()
            pages = run_pages(coordinator, self.job.history, self.clock)
            stack.enter_context(HttpServer(bound_to("", HTTP_PORT), pages, self.clock))
            self.pods.watch.start()
            stack.callback(self.pods.watch.stop)
            stack.callback(self.notes.flush)
            stack.callback(self.job.finish)
            while not self.is_stopping:
                self.look(coordinator)
                self.clock.sleep(LOOK_SECONDS)

    def _note_launch(self, job: Job) -> int | None:
        """As the JobKeeper does, once the API server answers."""
        while not self.is_stopping:
            try:
                return self.job.note_launch(job)
            except ClusterUnreachable as error:
                self.notes.away(error)
            self.clock.sleep(LOOK_SECONDS)
        return None

    def look(self, coordinator: KeptCoordinator) -> None:
        """One round of facts, decisions and actions."""
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
        settings = CoordinatorSettings(
            run=self.resolved.name,
            record=f"kube:{record_object(self.resolved.name)}",
            key=str(self._key),
            rules=membership_rules(self.resolved),
            listen=f":{SESSION_PORT}",
            http=COORDINATOR_HTTP,
        )
        return CoordinatorProcess(settings, folder, self.clock)
