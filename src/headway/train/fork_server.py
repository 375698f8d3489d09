"""The fork server: `python -m headway.train.fork_server [RUN_DIRECTORY]`. It imports once what a
worker needs, the class of the run's model included, and then forks workers on request.

The contract with the launcher, as lines of JSON:

    stdin   {"start": ID, "arguments": [RUN_DIRECTORY], "environment": {...}, "log": PATH}
    stdout  {"ready": SECONDS}                        imports are done
            {"started": ID, "pid": PID}
            {"ended": ID, "pid": PID, "code": CODE}   exit code, negative for a signal, as in
                                              subprocess; with "words": TEXT if it gave a reason

Requests that arrive during imports are served after them, in order. A worker that could not be
forked is reported as exited with code 1, and its pid is null. Errors go to stderr.

A worker has exactly the given environment, appends its output to the log, has a session of its own,
and its stdin is a pipe whose other end only this process holds: however this process ends, its
workers read end-of-file. They inherit other files that this process was started with, such as the
run's lock. When a worker has exited, the rest of its process group is killed. Libraries read some
variables when they are loaded (OMP_NUM_THREADS, GOMP_SPINCOUNT, HF_*), which is here, so the
launcher gives those to this process, too.

End-of-file on stdin ends this process with code 0; during imports, after the current module.
SIGTERM and SIGINT are ignored: it runs as long as its launcher, to report how workers exited.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from headway.clock import SystemClock
from headway.train import worker_log
from headway.train.worker_log import log_exit_reason, log_line

if TYPE_CHECKING:
    from headway.spec.resolve import Resolved
    from headway.spec.run_file import ModelConfig

HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
MODULES = (
    "torch",
    "torch._dynamo",  # or the first optimizer would import it, which takes as long as torch itself
    "headway.train.loop",
    "headway.train.leaving_groups",
    "headway.train.live",
    "headway.train.restart",
    "headway.train.broken_device",
    "headway.train.missing_compiler",
    "headway.train.out_of_memory",
    "headway.train.own_code_error",
    "torch.utils.tensorboard",
    "transformers.models.auto.modeling_auto",
)


class StartWorker(msgspec.Struct, forbid_unknown_fields=True):
    """A request of the launcher."""

    start: str | int
    """Id of the worker."""
    arguments: list[str]
    environment: dict[str, str]
    log: str


@dataclass(frozen=True)
class ForkedWorker:
    id: str | int
    stdin: int
    """Our end of its stdin: open as long as this process lives."""
    exit_reason: int
    """Pipe from which its exit reason is read."""

    def close(self) -> None:
        os.close(self.stdin)
        os.close(self.exit_reason)


class ForkServer:
    """One loop, no threads: a fork copies locks, but not the threads that would release them."""

    def __init__(self, entry: Callable[[list[str]], int]) -> None:
        self.entry = entry
        self.workers: dict[int, ForkedWorker] = {}
        """Running workers, by pid."""
        # The protocol moves away from 0 and 1: imported modules may read and print as they like.
        self.requests, self.answers = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        os.close(nothing)
        self.woken, self.waker = os.pipe()
        os.set_blocking(self.waker, False)
        signal.set_wakeup_fd(self.waker, warn_on_full_buffer=False)
        for number in HANDLED:
            signal.signal(number, lambda number, frame: None)

    def answer(self, **fields: object) -> None:
        rest = json.dumps(fields).encode() + b"\n"
        while rest:  # a signal can interrupt a long write
            rest = rest[os.write(self.answers, rest) :]

    def launcher_is_gone(self) -> bool:
        poll = select.poll()
        poll.register(self.requests, 0)
        return any(event & select.POLLHUP for _, event in poll.poll(0))

    def serve(self) -> None:
        """Until end-of-file on stdin."""
        poll = select.poll()
        poll.register(self.requests, select.POLLIN)
        poll.register(self.woken, select.POLLIN)
        rest = b""
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self.woken in ready:
                os.read(self.woken, 4096)
                self._reap()
            if self.requests in ready:
                part = os.read(self.requests, 65536)
                if not part:
                    return
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    self._handle(line)

    def _reap(self) -> None:
        """Reports all workers that have exited: several exits can raise one signal."""
        for pid, worker in list(self.workers.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                # Before it is reaped, while its number belongs to no other group. What it leaves
                # behind holds devices and ports that its successor needs.
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                reason = _read_available(worker.exit_reason)
                worker.close()
                del self.workers[pid]
                code = os.waitstatus_to_exitcode(status)
                more = {"words": reason} if reason else {}
                self.answer(ended=worker.id, pid=pid, code=code, **more)

    def _handle(self, line: bytes) -> None:
        try:
            request = msgspec.json.decode(line, type=StartWorker)
        except msgspec.DecodeError as error:
            log_line(f"not a request: {line[:200]!r}: {error}")
            return
        try:
            pid = self._fork(request)
        except OSError as error:
            log_line(f"worker {request.start} cannot be forked: {error}")
            self.answer(ended=request.start, pid=None, code=1)
            return
        self.answer(started=request.start, pid=pid)

    def _fork(self, request: StartWorker) -> int:
        its_stdin, our_end = os.pipe()
        exit_reason, its_exit_reason = os.pipe()
        os.set_blocking(exit_reason, False)
        worker = ForkedWorker(request.start, our_end, exit_reason)
        _flush()  # or both processes would print it
        # A signal for the worker waits until its handlers are reset: ours would swallow it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                worker_log.exit_reason_pipe = its_exit_reason
                self._run_worker(request, its_stdin, [worker, *self.workers.values()], mask)
            self.workers[pid] = worker
            return pid
        except OSError:
            worker.close()
            raise
        finally:
            os.close(its_stdin)
            os.close(its_exit_reason)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _run_worker(
        self,
        request: StartWorker,
        stdin: int,
        workers: list[ForkedWorker],
        mask: set[int | signal.Signals],
    ) -> NoReturn:
        """In the worker's process, which never returns to the fork server's loop."""
        code = 1
        try:
            self._become_worker(request, stdin, workers)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            code = self.entry(request.arguments)
        except BaseException as error:  # noqa: BLE001 - logged, unless it is an exit code
            if isinstance(error, SystemExit) and isinstance(error.code, int | None):
                code = error.code or 0
            else:
                log_exit_reason(traceback.format_exc().rstrip())
        finally:
            _flush()
            # Without the interpreter's tear-down: after a lost peer, gloo's threads can hang in it.
            os._exit(code)

    def _become_worker(self, request: StartWorker, stdin: int, workers: list[ForkedWorker]) -> None:
        """Closes what belongs to the fork server, and takes the worker's log and environment."""
        signal.set_wakeup_fd(-1)
        for number in HANDLED:  # not SIGPIPE, which Python always ignores
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        log_file = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        # sys.stdout and sys.stderr stay the same objects: imported modules have log handlers on
        # them.
        for new, known in ((stdin, 0), (log_file, 1), (log_file, 2)):
            os.dup2(new, known)
        ours = (self.requests, self.answers, self.woken, self.waker, stdin, log_file)
        for descriptor in ours:
            os.close(descriptor)
        for worker in workers:
            worker.close()
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        os.environ.clear()
        os.environ.update(request.environment)


def serve(entry: Callable[[list[str]], int], preloads: Sequence[Callable[[], object]] = ()) -> None:
    """Runs the preloads, then forks workers that run `entry`, until stdin ends. A preload that
    fails is logged and skipped: workers will fail by themselves if it matters."""
    clock = SystemClock()
    began = clock.monotonic()
    server = ForkServer(entry)
    for preload in preloads:
        if server.launcher_is_gone():
            return
        try:
            preload()
        except Exception as error:  # noqa: BLE001 - logged
            log_line(f"preloading: {type(error).__name__}: {error}")
    # Or a worker's first full collection would visit all that is imported: 0.35 s here, and 110 MB
    # of pages copied.
    gc.collect()
    gc.freeze()
    with suppress(BrokenPipeError):  # nobody reads the answers: same as end-of-file on stdin
        server.answer(ready=round(clock.monotonic() - began, 3))
        server.serve()


def import_for(location: str) -> None:
    """Imports what only the run at `location` needs: its store, and the classes of its models."""
    import_store(location)
    model_types = in_forked_process(model_types_of)
    from transformers import CONFIG_MAPPING, MODEL_MAPPING

    for model_type in model_types:
        MODEL_MAPPING[CONFIG_MAPPING[model_type]]  # looking it up imports it


def import_store(location: str) -> None:
    if "://" in location:
        import fsspec

        fsspec.get_filesystem_class(location.partition("://")[0])


def model_types_of() -> list[str]:
    """Model types, by transformers' names. Nothing of the user's own code is imported."""
    from headway.state.run_directory import worker_spec

    resolved = worker_spec()
    models = (resolved.run.model, resolved.run.objective.teacher)
    types = [_model_type(model, resolved) for model in models if model is not None]
    return [found for found in types if found is not None]


def _model_type(model: ModelConfig, resolved: Resolved) -> str | None:
    folder = Path(resolved.folder)
    if model.from_ is None:
        return model.type
    if "@" in model.from_:
        from headway.state.find_run import find_run, split_step

        other = find_run(split_step(model.from_)[0], folder).read_spec()
        return _model_type(other.run.model, other) if other.run.model else None
    from transformers import AutoConfig

    local = folder / model.from_
    source = str(local) if local.is_dir() else model.from_
    # Without the hub: what is not in the cache yet is downloaded by the first worker.
    revision = None if local.is_dir() else resolved.revision_of(model)
    config: Any = AutoConfig.from_pretrained(source, local_files_only=True, revision=revision)
    return str(config.model_type)


def in_forked_process(call: Callable[[], list[str]]) -> list[str]:
    """The call's result, from a process of its own: a remote store is read by threads, which must
    not be left in this process."""
    reading, writing = os.pipe()
    _flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, json.dumps(call()).encode())
        except BaseException as error:  # noqa: BLE001 - logged
            log_line(f"preloading: {type(error).__name__}: {error}")
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        result = pipe.read()
    os.waitpid(pid, 0)
    return list(json.loads(result)) if result else []


def _read_available(pipe: int) -> str:
    try:
        return os.read(pipe, 65536).decode("utf-8", errors="replace")
    except BlockingIOError:  # a process that the worker has left behind may still hold its end
        return ""


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()


def main(arguments: list[str]) -> None:
    from headway.train.__main__ import main as run_worker

    # No threads of libraries either: this one is of pyarrow's jemalloc, which nobody allocates
    # from. With OMP_NUM_THREADS > 1 numpy's OpenBLAS has threads, and ends them before each fork.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    # Imports ask whether there is a GPU. A CUDA driver that was initialized does not survive a
    # fork; NVML does.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    imports = [partial(import_module, name) for name in MODULES]
    serve(run_worker, [*imports, *(partial(import_for, location) for location in arguments[:1])])


if __name__ == "__main__":
    main(sys.argv[1:])
    # Interpreter tear-down takes half a second, and only then do workers read end-of-file.
    os._exit(0)
