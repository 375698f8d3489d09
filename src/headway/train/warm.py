"""A warm parent: `python -m headway.train.warm [RUN_DIRECTORY]`. It imports once what a worker
needs, the class of the run's model included, and then forks workers on request.

The contract with the launcher, in lines of JSON:

    stdin   {"start": ID, "arguments": [RUN_DIRECTORY], "environment": {...}, "log": PATH}
    stdout  {"ready": SECONDS}                        imports are done
            {"started": ID, "pid": PID}
            {"ended": ID, "pid": PID, "code": CODE}   as subprocess has it: negative for a signal;
                                              with "words": TEXT if it has said why it ends

What is asked for during imports is served after them, in order. A worker that could not be forked
has ended with code 1, and its pid is null. Whatever is wrong is on stderr, in words.

A worker has exactly that environment, its output goes to the end of the log, it has a session of
its own, and its stdin is a pipe whose other end only this process holds: however this process ends,
its workers read the end of it. Other files it was started with, such as the run's lock, they
inherit. What libraries read when they are loaded (OMP_NUM_THREADS, GOMP_SPINCOUNT, HF_*) they read
here, so the launcher gives it to this process, too.

The end of stdin ends this process with code 0; while it imports, after the module it is at. SIGTERM
and SIGINT do nothing: it lasts as long as its launcher, to tell it how workers ended.
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
from headway.train import saying
from headway.train.saying import say, say_last

if TYPE_CHECKING:
    from headway.spec.run import Model

HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
MODULES = (
    "torch",
    "torch._dynamo",  # what the first optimizer would import, for as long as torch itself
    "headway.train.loop",
    "torch.utils.tensorboard",
    "transformers.models.auto.modeling_auto",
)


class Start(msgspec.Struct, forbid_unknown_fields=True):
    start: str | int
    arguments: list[str]
    environment: dict[str, str]
    log: str


@dataclass(frozen=True)
class Child:
    name: str | int
    lifeline: int
    """The end of its stdin that we hold."""
    words: int
    """Where its last words are read."""

    def close(self) -> None:
        os.close(self.lifeline)
        os.close(self.words)


class Parent:
    """One loop, no threads: a fork copies locks, but not the threads that would release them."""

    def __init__(self, entry: Callable[[list[str]], int]) -> None:
        self.entry = entry
        self.children: dict[int, Child] = {}
        # The protocol moves away from 0 and 1: what is imported may read and print as it likes.
        self.commands, self.answers = os.dup(0), os.dup(1)
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
        while rest:  # a signal can cut a long one
            rest = rest[os.write(self.answers, rest) :]

    def launcher_is_gone(self) -> bool:
        poll = select.poll()
        poll.register(self.commands, 0)
        return any(event & select.POLLHUP for _, event in poll.poll(0))

    def serve(self) -> None:
        """Until the end of stdin."""
        poll = select.poll()
        poll.register(self.commands, select.POLLIN)
        poll.register(self.woken, select.POLLIN)
        rest = b""
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self.woken in ready:
                os.read(self.woken, 4096)
                self._reap()
            if self.commands in ready:
                part = os.read(self.commands, 65536)
                if not part:
                    return
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    self._obey(line)

    def _reap(self) -> None:
        """All that have ended: signals of several ends can be one."""
        for pid, child in list(self.children.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                words = _left_in(child.words)
                child.close()
                del self.children[pid]
                code = os.waitstatus_to_exitcode(status)
                said = {"words": words} if words else {}
                self.answer(ended=child.name, pid=pid, code=code, **said)

    def _obey(self, line: bytes) -> None:
        try:
            command = msgspec.json.decode(line, type=Start)
        except msgspec.DecodeError as error:
            say(f"no command: {line[:200]!r}: {error}")
            return
        try:
            pid = self._fork(command)
        except OSError as error:
            say(f"worker {command.start} cannot be forked: {error}")
            self.answer(ended=command.start, pid=None, code=1)
            return
        self.answer(started=command.start, pid=pid)

    def _fork(self, command: Start) -> int:
        stdin, lifeline = os.pipe()
        words, telling = os.pipe()
        os.set_blocking(words, False)
        child = Child(command.start, lifeline, words)
        _flush()  # or both would print it
        # A signal for the child waits until its handlers are back: ours would swallow it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                saying.launcher = telling
                self._work(command, stdin, [child, *self.children.values()], mask)
            self.children[pid] = child
            return pid
        except OSError:
            child.close()
            raise
        finally:
            os.close(stdin)
            os.close(telling)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _work(
        self, command: Start, stdin: int, children: list[Child], mask: set[int | signal.Signals]
    ) -> NoReturn:
        """The child. It never comes back into the parent's loop."""
        code = 1
        try:
            self._let_go(command, stdin, children)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            code = self.entry(command.arguments)
        except BaseException as error:  # noqa: BLE001 - said, unless it is an exit code
            if isinstance(error, SystemExit) and isinstance(error.code, int | None):
                code = error.code or 0
            else:
                say_last(traceback.format_exc().rstrip())
        finally:
            _flush()
            # Without the interpreter's tear-down: after a lost peer, gloo's threads can hang in it.
            os._exit(code)

    def _let_go(self, command: Start, stdin: int, children: list[Child]) -> None:
        """Of all that is the parent's."""
        signal.set_wakeup_fd(-1)
        for number in HANDLED:  # not of SIGPIPE, which Python ignores from its start
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        log = os.open(command.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        # sys.stdout and sys.stderr stay the same objects: imports have made log handlers of them.
        for new, known in ((stdin, 0), (log, 1), (log, 2)):
            os.dup2(new, known)
        ours = (self.commands, self.answers, self.woken, self.waker, stdin, log)
        for descriptor in ours:
            os.close(descriptor)
        for child in children:
            child.close()
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        os.environ.clear()
        os.environ.update(command.environment)


def serve(entry: Callable[[list[str]], int], chores: Sequence[Callable[[], object]] = ()) -> None:
    """Does the chores, then forks workers that run `entry`, until stdin ends. A chore that fails
    is said and left: workers will find out by themselves."""
    clock = SystemClock()
    began = clock.monotonic()
    parent = Parent(entry)
    for chore in chores:
        if parent.launcher_is_gone():
            return
        try:
            chore()
        except Exception as error:  # noqa: BLE001 - said
            say(f"warming up: {type(error).__name__}: {error}")
    # Or a worker's first full collection would look at all that is imported: 0.35 s here, and
    # 110 MB of pages copied.
    gc.collect()
    gc.freeze()
    with suppress(BrokenPipeError):  # nobody reads the answers: as good as the end of stdin
        parent.answer(ready=round(clock.monotonic() - began, 3))
        parent.serve()


def import_for(location: str) -> None:
    """What only the run at `location` needs: its store, and the classes of its models."""
    if "://" in location:
        import fsspec

        fsspec.get_filesystem_class(location.partition("://")[0])
    model_types = told_by_a_child(partial(model_types_of, location))
    from transformers import CONFIG_MAPPING, MODEL_MAPPING

    for model_type in model_types:
        MODEL_MAPPING[CONFIG_MAPPING[model_type]]  # looking it up imports it


def model_types_of(location: str) -> list[str]:
    """As transformers calls them. Of the user's own code nothing is imported, nor said."""
    from headway.state.rundir import RunDirectory, given_spec

    resolved = given_spec() or RunDirectory.open(location).read_spec()
    models = (resolved.run.model, resolved.run.objective.teacher)
    types = [_model_type(model, Path(resolved.folder)) for model in models if model is not None]
    return [found for found in types if found is not None]


def _model_type(model: Model, folder: Path) -> str | None:
    if model.from_ is None:
        return model.type
    if "@" in model.from_:
        from headway.state.find import find_run, split_step

        other = find_run(split_step(model.from_)[0], folder).read_spec()
        return _model_type(other.run.model, Path(other.folder)) if other.run.model else None
    from transformers import AutoConfig

    local = folder / model.from_
    source = str(local) if local.is_dir() else model.from_
    # What the hub has not sent yet the first worker asks it for.
    config: Any = AutoConfig.from_pretrained(source, local_files_only=True)
    return str(config.model_type)


def told_by_a_child(look: Callable[[], list[str]]) -> list[str]:
    """Looked up in a process that ends with it: a store far away is read by threads."""
    reading, writing = os.pipe()
    _flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, json.dumps(look()).encode())
        except BaseException as error:  # noqa: BLE001 - said
            say(f"warming up: {type(error).__name__}: {error}")
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    return list(json.loads(told)) if told else []


def _left_in(pipe: int) -> str:
    try:
        return os.read(pipe, 65536).decode("utf-8", errors="replace")
    except BlockingIOError:  # a process that the worker has left behind could still say something
        return ""


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()


def main(arguments: list[str]) -> None:
    from headway.train.__main__ import main as work

    # No thread of a library either: this is one of pyarrow's jemalloc, from which nobody allocates.
    # With OMP_NUM_THREADS > 1 there are numpy's OpenBLAS's: it ends them before each fork.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    # Imports ask whether there is a GPU. A driver that was asked does not survive a fork; asking
    # NVML instead does no harm.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    chores = [partial(import_module, name) for name in MODULES]
    serve(work, [*chores, *(partial(import_for, location) for location in arguments[:1])])


if __name__ == "__main__":
    main(sys.argv[1:])
    # Tear-down takes half a second, and until its end workers do not know.
    os._exit(0)
