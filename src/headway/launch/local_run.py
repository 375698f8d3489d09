"""A run on this machine: its worker processes, and its coordinator if it has one.

The launcher and the workers share the run directory, the coordinator and exit codes, nothing else.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from uuid import uuid4

from headway.clock import Clock, stamp
from headway.errors import Exit, RunFailed
from headway.kube.coordinator_set import fewest_domains
from headway.launch.coordinator_process import CoordinatorProcess, new_key_file
from headway.launch.failure_domains import (
    MOST_LOSSES,
    FailureDomain,
    Losses,
    WorkerProcess,
    failure_domains,
)
from headway.launch.fork_server import ForkServerLost
from headway.launch.supervise import ScriptPlace, Supervisor
from headway.launch.work_folder import copied_code
from headway.launch.worker_exit import describe_exit, exit_message
from headway.member.coordinator.rules import ALONE_SECONDS, RESTART_ALONE_SECONDS, Rules
from headway.member.coordinator.settings import CoordinatorSettings
from headway.member.protocol.messages import MAX_WORKERS
from headway.memory_limits import Memory
from headway.plan.memory_need import less_memory, needed_and_present
from headway.spec.resolve import Resolved
from headway.state.chain import Chain
from headway.state.heartbeat import SignsOfLife, require_alone
from headway.state.rewinds import step_after
from headway.state.run_directory import GIVEN_SPEC, SPEC, Journal, RunDirectory, spec_text
from headway.state.trusted_code import trust_code
from headway.worker_environment import DEFAULTS

NEW_SECONDS = 0.9
"""Less than the coordinator waits before it lets somebody join those who have the run's state."""
INSIST = "wait a minute or two, or repeat the command with --take-over"
LEFT_SECONDS = 2.0
"""Wait, after a worker has left, for the others to leave as well."""
STOP_SECONDS = 300.0
"""Time to save after Ctrl-C. A second Ctrl-C does not wait."""
WORK, SCRATCH = "work", "scratch"
"""Folders of a script's nodes in the run directory."""
# Workers on one machine meet on the loopback, whatever its host name resolves to.
LOOPBACK = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "HEADWAY_ADDRESS": "127.0.0.1",
}


class LocalRun(Supervisor):
    """Starts and supervises the workers of one run."""

    environment_defaults = DEFAULTS | LOOPBACK

    def __init__(
        self,
        resolved: Resolved,
        directory: RunDirectory,
        clock: Clock,
        fork_server: Sequence[str] | None = None,
        memory: Memory | None = None,
        takes_over: bool = False,
    ) -> None:
        """`takes_over`: also from a launcher that shows elsewhere that it is alive."""
        super().__init__(resolved, directory, clock, _node_name, fork_server, memory or Memory())
        self.launch = uuid4().hex
        self._takes_over = takes_over
        self.journal = Journal(directory.launcher, clock)
        self.stop_asked_at: float | None = None
        self.stop_at_once = False
        self._watch: Callable[[], None] = lambda: None
        self._coordinator: CoordinatorProcess | None = None
        self._nodes = resolved.nodes
        self._code: Mapping[str, Path] | None = None
        self._metrics_start = 0
        """Position in the metrics log at launch: what follows was written by this start."""

    def run(self, watch: Callable[[], None]) -> Exit:
        """Until the run has ended: DONE or STOPPED. Raises RunFailed with the first cause.
        `watch` is called several times a second."""
        resolved, directory = self.resolved, self.directory
        self._watch = watch
        with ExitStack() as stack:
            lock = stack.enter_context(directory.held())
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-"))
            self.workers.scratch = Path(scratch)
            if not self._takes_over:
                require_alone(directory, self.clock, INSIST)
            start = Chain(directory, self.launch).start(stamp(self.clock.now()))
            stack.enter_context(SignsOfLife(directory, self.launch, self.clock))
            Path(scratch, SPEC).write_text(spec_text(resolved))
            directory.write_spec(resolved)
            trust_code(resolved)
            if directory.wanted_nodes() != resolved.nodes:  # else the next start is to find it, too
                directory.forget_wanted_nodes()
            self.generation = self.journal.generation = start.generation
            self._metrics_start = directory.here().metrics.read()[1]
            self.journal.note(
                "launched",
                generation=self.generation,
                nodes=resolved.nodes,
                workers=resolved.num_workers,
                device=resolved.device,
                mode=resolved.mode,
                pid=os.getpid(),
                code_digest=resolved.code_digest,
            )
            with suppress(OSError):  # visible elsewhere while the run is running
                directory.launcher.flush()
            stack.callback(self._send_logs)
            self._enter_fork_server(stack, directory.local / "logs" / "parent.log", lock)
            if resolved.has_coordinator:
                self._coordinator = stack.enter_context(self._make_coordinator())
                self._coordinator.wait()
            stack.callback(self._name_large_files)
            stack.callback(self.workers.end_all)
            for domain in failure_domains(resolved, range(resolved.nodes)):
                self.workers.start(domain)
            try:
                return self._supervise()
            except ForkServerLost as lost:
                self._noted(lost, 0, 0, "lost its fork server", lost.message)
                raise

    def ask_to_stop(self) -> None:
        """From a signal handler: the first time to stop and save, the second time at once."""
        if self.stop_asked_at is None:
            self.stop_asked_at = self.clock.monotonic()
            self.workers.signal(signal.SIGINT)
        else:
            self.stop_at_once = True
            self.workers.signal(signal.SIGKILL)

    # Starting

    def _make_coordinator(self) -> CoordinatorProcess:
        resolved = self.resolved
        ranks = resolved.domain_ranks
        settings = CoordinatorSettings(
            run=self.directory.name,
            record=self.directory.store.location("members"),
            key=str(new_key_file(self.workers.scratch)),
            rules=Rules(
                min_domains=fewest_domains(resolved) if resolved.is_script else 1,
                max_domains=MAX_WORKERS // ranks,
                first_domains=resolved.num_workers // ranks,
                domain_workers=ranks,
                node_workers=resolved.node_ranks,
                restarts=not resolved.is_live,
                alone_seconds=ALONE_SECONDS if resolved.is_live else RESTART_ALONE_SECONDS,
            ),
        )
        coordinator = CoordinatorProcess(settings, self.workers.scratch, self.clock)
        return coordinator.start(after=self.generation - 1)

    def _coordinator_address(self) -> tuple[str, Path] | None:
        started = self._coordinator
        return None if started is None else (started.address, started.key)

    def _device(self, worker: WorkerProcess) -> int:
        """Nodes that are simulated here share this machine's devices."""
        return self._rank(worker)

    def _script_place(self, node: int) -> ScriptPlace:
        """In the run directory: what a script has written to its working folder is not lost when
        it is stopped."""
        here = self.directory.local
        return ScriptPlace(here / WORK / _node_name(node), here / SCRATCH / _node_name(node))

    def _code_files(self) -> Mapping[str, Path]:
        """As they were at the first start: the folder is the user's, and may be edited."""
        if self._code is None:
            self._code = copied_code(self.workers.scratch / "code", self.resolved)
        return self._code

    def _environment(self, packages: str | None) -> dict[str, str]:
        given = str(self.workers.scratch / SPEC)
        return {**super()._environment(packages), GIVEN_SPEC: given}

    def _script_environment(self, node: int) -> dict[str, str]:
        try:
            return super()._script_environment(node)
        except OSError as error:
            raise RunFailed(
                "the code could not be copied into the working folder "
                f"{self._script_place(node).work}: {error}",
                f"make room for it, or move {error.filename} away if it is in the way"
                if error.filename is not None
                else "make room for it",
            ) from None

    def _on_large_files(self, node: int, names: Sequence[str]) -> None:
        self.journal.note("large_files", node=node, names=names)

    def _on_left_files(self, node: int, names: Sequence[str]) -> None:
        self.journal.note("left_files", node=node, names=names)

    # Supervising

    @property
    def _is_asked_to_end(self) -> bool:
        return self.stop_asked_at is not None

    def _on_started(self, worker: WorkerProcess) -> None:
        rank = {"node": worker.node, "local_rank": worker.local_rank}
        self.journal.note("worker", **rank, pid=worker.pid, name=worker.name)
        if self.stop_asked_at is not None:
            self.workers.signal(signal.SIGINT)  # it was not running yet when all were asked
        elif any(domain.is_leaving and worker in domain.workers for domain in self.workers.domains):
            worker.signal(signal.SIGTERM)

    def _on_poll(self) -> None:
        self._watch()
        if self._coordinator is not None and (how := self._coordinator.keep_alive()):
            self.journal.note("coordinator_lost", how=how)
        is_ending = self._is_asked_to_end or Exit.DONE in self.workers.exit_codes
        if not is_ending and not self.workers.have_exited:
            self._follow_wanted_nodes()
        if not self.workers.have_exited:
            self._require_stop_in_time()

    def _newest_step(self) -> int | None:
        return step_after(self.directory.here().metrics.last() or {"rewind": 0})

    def _on_lost(self, domain: FailureDomain, lost: WorkerProcess, how: str) -> None:
        self._note_device(self.journal, lost)
        self.journal.note("lost", node=lost.node, local_rank=lost.local_rank, how=how)
        is_script = self.resolved.is_script
        if lost.out_of_memory and not is_script and not self._has_made_a_step():
            self._fail_for_memory(lost)
        if self.resolved.is_live and not self._has_state_somewhere():
            assert self._coordinator is not None
            self._coordinator.restart_without_members()  # it would wait for them to come back

    def _are_too_many(self, losses: Losses) -> bool:
        return losses.count >= MOST_LOSSES

    def _has_state_somewhere(self) -> bool:
        """Whether a worker has the run's state: one that was started a moment ago has not."""
        workers = [one for domain in self.workers.domains for one in domain.workers]
        latest = self.clock.monotonic() - NEW_SECONDS
        return any(one.exit_code is None and one.started_at < latest for one in workers)

    def _on_left(self, domain: FailureDomain) -> None:
        """Something else asked it to leave, as when a machine is reclaimed: it is replaced. Unless
        all stop: then the others are about to exit as well."""
        now = self.clock.monotonic()
        if domain.left_at is None:
            domain.left_at = now
        if now - domain.left_at > LEFT_SECONDS:
            self.journal.note("left", node=domain.ranks[0][0])
            self.workers.start(domain)

    def _follow_wanted_nodes(self) -> None:
        """`headway scale`: new nodes are started, and those with the highest numbers leave."""
        wanted = self.directory.wanted_nodes()
        if wanted is None or wanted == self._nodes or self._coordinator is None:
            return
        self.journal.note("scaled", nodes=wanted, before=self._nodes)
        for domain in failure_domains(self.resolved, range(self._nodes, wanted)):
            self.workers.start(domain)
        for domain in self.workers.domains:
            if domain.ranks[0][0] >= wanted and not domain.is_leaving:
                domain.is_leaving = True
                domain.signal(signal.SIGTERM)
        self._nodes = wanted

    def _require_stop_in_time(self) -> None:
        asked = self.stop_asked_at
        if asked is not None and self.clock.monotonic() - asked > STOP_SECONDS:
            how = f"did not save and stop within {STOP_SECONDS:.0f} s"
            logs = f"their logs: {self.directory.local / 'logs'}"
            error = RunFailed(f"the workers {how}", logs)
            raise self._noted(error, 0, 0, how, error.message)

    # Ending

    def _is_over(self, exit_codes: Sequence[int | None]) -> bool:
        """Ranks of a script stop one by one: the first may still save."""
        saves_alone = self.resolved.is_script
        is_stopped = self._is_asked_to_end and Exit.STOPPED in exit_codes and not saves_alone
        return Exit.DONE in exit_codes or is_stopped

    def _early_outcome(self, exit_codes: Sequence[int | None]) -> Exit | None:
        """Without a coordinator, the others cannot save without one that was stopped unsaved. With
        one it has no place yet: members listen for the signal."""
        if not self.resolved.has_coordinator and any(map(self._was_stopped_unsaved, exit_codes)):
            return self._stopped_unsaved()
        return None

    def _outcome(self, exit_codes: Sequence[int | None]) -> Exit:
        if Exit.DONE in exit_codes:
            return Exit.DONE
        if Exit.STOPPED in exit_codes:
            return Exit.STOPPED
        others = [code for code in exit_codes if code != Exit.GENERATION_OVER]
        if self._is_asked_to_end and not others:
            return Exit.STOPPED  # saved for a planned change, or nobody had a place yet
        if all(map(self._was_stopped_unsaved, others)):
            return self._stopped_unsaved()
        raise self._run_failed(self.workers.to_blame())

    def _stopped_unsaved(self) -> Exit:
        self.journal.note("stopped", saved=False)
        return Exit.STOPPED

    def _was_stopped_unsaved(self, exit_code: int | None) -> bool:
        """By our own signal: before the worker could listen for it, or the second time."""
        asked = self.stop_asked_at is not None
        return (asked and exit_code in (-signal.SIGINT, -signal.SIGTERM)) or (
            self.stop_at_once and exit_code == -signal.SIGKILL
        )

    def _has_made_a_step(self) -> bool:
        """Since launch. The log may show later steps of an earlier start, which are done again."""
        records, _ = self.directory.here().metrics.read(self._metrics_start)
        return any("step" in record for record in records)

    def _fail_for_memory(self, worker: WorkerProcess) -> None:
        """Before the first step: it would happen again."""
        figures = needed_and_present(self.resolved, self._nodes, self.memory.limit_bytes())
        words = f"out of memory before the first step: {figures}"
        how = describe_exit(-signal.SIGKILL, out_of_memory=True)
        hint = less_memory(self.resolved, self._nodes)
        error = RunFailed(exit_message(self._rank(worker), how, words), hint)
        raise self._noted(error, worker.node, worker.local_rank, how, words)

    def _failure(self, worker: WorkerProcess, how: str, cause: str, hint: str | None) -> RunFailed:
        message = exit_message(self._rank(worker), how, cause)
        error = RunFailed(message, hint or f"its full log: {worker.log}")
        return self._noted(error, worker.node, worker.local_rank, how, cause or how)

    def _noted(
        self, error: RunFailed, node: int, local_rank: int, how: str, words: str
    ) -> RunFailed:
        """The error that ends the run, recorded: `status` shows what the terminal shows."""
        self.journal.note(
            "failed",
            rank=node * self.resolved.ranks_per_node + local_rank,
            node=node,
            local_rank=local_rank,
            how=how,
            words=words,
            message=error.message,
            hint=error.hint,
        )
        return error

    def _send_logs(self) -> None:
        """Where the run directory is far away: what was printed and noted here."""
        with suppress(OSError):
            self.directory.launcher.flush()
            if not self.directory.store.is_local:
                folders = (self.directory.local / "logs", self.directory.tensorboard)
                for path in (p for folder in folders for p in folder.rglob("*") if p.is_file()):
                    name = str(path.relative_to(self.directory.local))
                    self.directory.store.write(name, path.read_bytes())


def _node_name(node: int) -> str:
    return f"node-{node}"
