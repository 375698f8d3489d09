"""One node of a run, in a pod: its worker processes. A coordinator elsewhere decides who is a
member; what workers print is this process's output.

A worker that is lost is restarted, the pod stays. When the node is asked to leave, all its workers
leave as planned. Its exit code tells Kubernetes what to do: DONE ends the run, STOPPED and death by
a signal have the pod replaced, an error of the run's own ends the run as failed.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from headway.clock import Clock
from headway.errors import Exit, RunFailed
from headway.launch.compiled_code import CompiledCode
from headway.launch.failure_domains import (
    SEEN_SECONDS,
    FailureDomain,
    Losses,
    WorkerProcess,
    failure_domains,
    step_seen,
)
from headway.launch.fork_server import ForkServerLost
from headway.launch.supervise import ScriptPlace, Supervisor
from headway.launch.worker_exit import exit_message
from headway.memory_limits import Memory
from headway.spec.resolve import Resolved
from headway.state.run_directory import Journal, RunDirectory


class DeviceLost(RunFailed):
    """This pod has a device that failed: another pod takes its place, on another machine."""

    exit_code = Exit.DEVICE_LOST


@dataclass(frozen=True)
class NodeSettings:
    """Position of a node in its run."""

    pod: str
    """Its name, which no other pod of the run has ever had."""
    index: int
    launch: str
    """Token of the start that it belongs to: the id of its Job."""
    coordinator: str
    key: Path
    script: ScriptPlace | None = None
    """Only of a script."""


class NodeRun(Supervisor):
    """`say` takes a line for the pod's log."""

    seen_seconds = SEEN_SECONDS

    def __init__(
        self,
        resolved: Resolved,
        directory: RunDirectory,
        settings: NodeSettings,
        clock: Clock,
        say: Callable[[str], None],
        fork_server: Sequence[str] | None = None,
        memory: Memory | None = None,
        compiled: CompiledCode | None = None,
    ) -> None:
        super().__init__(
            resolved, directory, clock, lambda _: settings.pod, fork_server, memory or Memory()
        )
        self.settings = settings
        self.launch = settings.launch
        self.is_leaving = False
        self._say = say
        self._compiled = compiled
        if compiled is not None:
            # A header that g++ compiles for half a minute, into a folder outside of torch's cache,
            # even where every library is there already.
            no_header = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
            self.environment_defaults = {**self.environment_defaults, **no_header}
        self._printed: dict[Path, int] = {}
        """Bytes printed of each log."""

    def run(self) -> Exit:
        """Until its part is over: DONE, or STOPPED when it has left. Raises OSError when it cannot
        continue here."""
        with ExitStack() as stack:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-"))
            self.workers.scratch = Path(scratch)
            # What it prints is about this pod only, and the folder is shared by all of them.
            log = Path(scratch, "parent.log")
            self._printed[log] = 0
            if self._compiled is not None:
                self._compiled.fetch()
            self._enter_fork_server(stack, log, None)
            stack.callback(self._send_logs)
            stack.callback(self._print)
            stack.callback(self._name_large_files)
            stack.callback(self.workers.end_all)
            for domain in failure_domains(
                self.resolved, range(self.settings.index, self.settings.index + 1)
            ):
                self.workers.start(domain)
            try:
                return self._supervise()
            except ForkServerLost as lost:
                # Short of memory, most likely: nothing that another pod could not do better.
                raise OSError(lost.message) from None

    def leave(self) -> None:
        """From a signal handler."""
        self.is_leaving = True
        self.workers.signal(signal.SIGTERM)

    def _coordinator_address(self) -> tuple[str, Path] | None:
        return self.settings.coordinator, self.settings.key

    def _device(self, worker: WorkerProcess) -> int:
        return worker.local_rank

    def _script_place(self, node: int) -> ScriptPlace:
        assert self.settings.script is not None
        return self.settings.script

    def _on_large_files(self, node: int, names: Sequence[str]) -> None:
        self._say(
            f"warning: the script wrote {', '.join(names)} to its working folder, which is lost "
            "with this pod: what it needs after a restart belongs in $HEADWAY_OUTPUT"
        )

    def _on_left_files(self, node: int, names: Sequence[str]) -> None:
        self._say(
            "warning: files of the code that the script has changed in its working folder stay as "
            f"they are: {', '.join(names)}"
        )

    @property
    def _is_asked_to_end(self) -> bool:
        return self.is_leaving

    def _on_started(self, worker: WorkerProcess) -> None:
        if self.is_leaving:  # it was not running yet when all were asked
            worker.signal(signal.SIGTERM)

    def _on_poll(self) -> None:
        self._print()
        self._keep_compiled()

    def _on_left(self, domain: FailureDomain) -> None:
        pass  # when all workers have left, the pod is replaced

    def _newest_step(self) -> int | None:
        return step_seen(self.directory)

    def _on_lost(self, domain: FailureDomain, lost: WorkerProcess, how: str) -> None:
        journal = Journal(self.directory.events, self.clock)
        reason = self._note_device(journal, lost)
        if reason is not None:
            journal.close()
            raise DeviceLost(f"device {self._device(lost)} has failed: {reason}")
        self._say(f"worker {lost.name} {how}; restarting it")

    def _are_too_many(self, losses: Losses) -> bool:
        return losses.are_too_many(self.clock.monotonic())

    def _is_over(self, exit_codes: Sequence[int | None]) -> bool:
        return Exit.DONE in exit_codes

    def _outcome(self, exit_codes: Sequence[int | None]) -> Exit:
        return Exit.DONE if Exit.DONE in exit_codes else Exit.STOPPED

    def _failure(self, worker: WorkerProcess, how: str, cause: str, hint: str | None) -> RunFailed:
        return RunFailed(exit_message(worker.name, how, cause), hint)

    def _keep_compiled(self) -> None:
        """Nodes that start together compile the same: one of them writes what they all have."""
        if self._compiled is not None and self.settings.index == 0:
            workers = [worker for domain in self.workers.domains for worker in domain.workers]
            self._compiled.keep(min((worker.num_steps for worker in workers), default=0))

    def _send_logs(self) -> None:
        """To a store far away, behind what pods before this one have sent."""
        store = self.directory.store
        if store.is_local:
            return
        for log in (worker.log for domain in self.workers.domains for worker in domain.workers):
            name = f"logs/{log.name}"
            with suppress(OSError):
                before = b"" if store.size(name) is None else store.read(name)
                store.write(name, before + log.read_bytes())

    def _print(self) -> None:
        """What workers have printed since the last time, by whole lines."""
        several = self.resolved.ranks_per_node > 1
        for domain in self.workers.domains:
            for worker in domain.workers:
                self._printed.setdefault(worker.log, worker.log_start)
        for log, offset in self._printed.items():
            try:
                with log.open("rb") as file:
                    file.seek(offset)
                    data = file.read()
            except FileNotFoundError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._printed[log] = offset + len(whole)
            prefix = f"{log.stem}: " if several else ""
            for line in whole.decode("utf-8", errors="replace").splitlines():
                self._say(f"{prefix}{line}")
