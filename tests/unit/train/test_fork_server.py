"""The fork server's protocol, with workers that train nothing."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.clock import SystemClock
from headway.errors import BadInput
from headway.state.run_directory import RunDirectory
from headway.train.export import load_trained
from headway.train.fork_server import model_types_of
from support.waiting import wait_for
from support.workers import resolved_run

SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
from headway.train.fork_server import serve

def work(arguments):
    what, *rest = arguments
    if what == "exit":
        return int(rest[0])
    if what == "sys.exit":
        sys.exit(int(rest[0]))
    if what == "raise":
        raise ValueError(rest[0])
    if what == "signal":
        os.kill(os.getpid(), int(rest[0]))
    if what == "environment":
        print(sorted(os.environ.items()))
        os.system("echo $COLOUR in a shell")
    if what == "print":
        print("to stdout")
        print("to stderr", file=sys.stderr)
        os.write(1, b"and past Python\\n")
        print("without an end", end="")
    if what == "facts":
        files = [Path(f"/proc/self/fd/{number}") for number in range(64)]
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
        print(json.dumps({
            "files": {file.name: os.readlink(file) for file in files if file.is_symlink()},
            "handled": [n for n in numbers if signal.getsignal(n) != signal.SIG_DFL],
            "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            "leads_session": os.getsid(0) == os.getpid(),
        }))
    if what == "leave behind":
        if os.fork() == 0:
            Path(rest[0]).write_text(str(os.getpid()))
            time.sleep(1000)
        while not Path(rest[0]).exists() or not Path(rest[0]).read_text():
            time.sleep(0.01)
    if what == "wait":
        print("waits")
        assert sys.stdin.buffer.read() == b""
        print("read the end")
    return 0

def warm_up():
    print("an import that prints")
    print("warms up", file=sys.stderr)
    assert sys.stdin.read() == ""
    while len(sys.argv) > 1 and not Path(sys.argv[1]).exists():
        time.sleep(0.01)

def fail():
    import no_such_module

serve(work, [warm_up, fail])
os._exit(0)
"""


class FakeLauncher:
    """A fork server, as its launcher has it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.errors = folder / "errors"
        buffered = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=buffered,
                start_new_session=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def send(self, content: bytes) -> None:
        self.stdin.write(content)
        self.stdin.flush()

    def has_read_all(self) -> bool:
        return fcntl.ioctl(self.stdin, termios.FIONREAD, bytes(4)) == bytes(4)

    def start(self, name: str, *arguments: str, **environment: str) -> None:
        self.send(self.command(name, *arguments, **environment))

    def command(self, name: str, *arguments: str, **environment: str) -> bytes:
        command = {
            "start": name,
            "arguments": arguments,
            "environment": environment,
            "log": str(self.folder / f"{name}.log"),
        }
        return json.dumps(command).encode() + b"\n"

    def answer(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stdout.readline())
        return found

    def started(self, name: str) -> int:
        answer = self.answer()
        assert answer == {"started": name, "pid": answer["pid"]}
        pid: int = answer["pid"]
        return pid

    def code_of(self, name: str, *arguments: str, **environment: str) -> int:
        """Of a worker that says nothing, from its start to its end."""
        answer = self.end_of(name, *arguments, **environment)
        code: int = answer.pop("code")
        assert answer == {"ended": name}
        return code

    def end_of(self, name: str, *arguments: str, **environment: str) -> dict[str, Any]:
        self.start(name, *arguments, **environment)
        pid = self.started(name)
        answer = self.answer()
        assert answer.pop("pid") == pid
        return answer

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def wait_for_log(self, name: str, words: str) -> None:
        wait_for(f"{words!r} in the log of {name}", lambda: words in self.log(name), seconds=20)

    def end(self) -> int:
        self.stdin.close()
        return self.process.wait(timeout=10)


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[FakeLauncher]:
    """Still warming up, until there is a file `go`."""
    parent = FakeLauncher(tmp_path, str(tmp_path / "go"))
    yield parent
    parent.process.kill()
    parent.end()
    parent.stdout.close()


@pytest.fixture
def warm(cold: FakeLauncher) -> FakeLauncher:
    (cold.folder / "go").touch()
    assert cold.answer()["ready"] > 0
    return cold


def test_what_is_asked_for_while_it_warms_up_is_served_afterwards_in_order(
    cold: FakeLauncher,
) -> None:
    for name in "abc":
        cold.start(name, "wait")
    (cold.folder / "go").touch()
    assert list(cold.answer()) == ["ready"], "though an import printed and another one failed"
    for name in "abc":
        cold.started(name)
        cold.wait_for_log(name, "waits\n")
        assert cold.log(name) == "waits\n"
    said = cold.errors.read_text()
    assert said.count("an import that prints\n") == 1
    assert "preloading: ModuleNotFoundError: No module named 'no_such_module'" in said


def test_a_launcher_that_is_gone_before_it_is_warm(cold: FakeLauncher) -> None:
    wait_for("it to warm up", lambda: "warms up" in cold.errors.read_text(), seconds=20)
    cold.start("a", "wait")
    cold.stdin.close()
    (cold.folder / "go").touch()
    assert cold.end() == 0
    assert cold.stdout.read() == b""
    assert "no_such_module" not in cold.errors.read_text(), "the next import was not begun"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("exit", "0"), 0),
        (("exit", "7"), 7),
        (("sys.exit", "3"), 3),
        (("signal", "9"), -signal.SIGKILL),
        (("signal", "15"), -signal.SIGTERM),
        (("signal", "2"), -signal.SIGINT),
    ],
)
def test_how_a_worker_ended(warm: FakeLauncher, arguments: tuple[str, ...], code: int) -> None:
    assert warm.code_of("a", *arguments) == code


def test_what_a_worker_leaves_behind_ends_with_it(warm: FakeLauncher, tmp_path: Path) -> None:
    assert warm.code_of("a", "leave behind", str(tmp_path / "pid")) == 0
    left = Path("/proc", (tmp_path / "pid").read_text(), "stat")

    def has_ended() -> bool:
        return not left.exists() or left.read_text().rpartition(")")[2].split()[0] == "Z"

    wait_for("its end", has_ended)


def test_an_error_is_in_the_workers_log_and_told_to_the_launcher(warm: FakeLauncher) -> None:
    answer = warm.end_of("a", "raise", "upside down")
    assert (answer["ended"], answer["code"]) == ("a", 1)
    assert answer["words"] == warm.log("a").rstrip()
    assert warm.log("a").startswith("Traceback (most recent call last)")
    assert warm.log("a").endswith("ValueError: upside down\n")


def test_the_environment_is_exactly_the_one_asked_for(warm: FakeLauncher) -> None:
    assert "PATH" in os.environ
    warm.code_of("a", "environment", COLOUR="grün", RANK="1")
    first, second = warm.log("a").splitlines()
    assert first == "[('COLOUR', 'grün'), ('RANK', '1')]"
    assert second == "grün in a shell", "C sees the same"
    warm.code_of("b", "environment")
    assert warm.log("b").splitlines()[0] == "[]", "nothing is left of the worker before"


def test_all_output_is_added_to_the_log(warm: FakeLauncher) -> None:
    (warm.folder / "a.log").write_text("an earlier start\n")
    warm.code_of("a", "print")
    lines = warm.log("a").splitlines()
    assert lines[0] == "an earlier start"
    assert lines[1:] == ["to stdout", "to stderr", "and past Python", "without an end"]
    assert "to stdout" not in warm.errors.read_text()


def test_a_log_that_cannot_be_opened(warm: FakeLauncher) -> None:
    (warm.folder / "a.log").mkdir()
    answer = warm.end_of("a", "exit", "0")
    assert (answer["code"], "Is a directory" in answer["words"]) == (1, True)
    assert "IsADirectoryError" in warm.errors.read_text()
    assert warm.code_of("b", "exit", "0") == 0


def test_a_worker_has_nothing_of_the_parent_or_of_its_siblings(warm: FakeLauncher) -> None:
    warm.code_of("one before", "exit", "0")
    for name in "abc":
        warm.start(name, "wait")
        warm.started(name)
    warm.code_of("d", "facts")
    facts = json.loads(warm.log("d"))
    log = str(warm.folder / "d.log")
    assert facts["files"].pop("0").startswith("pipe:")
    (words,) = (name for name, file in facts["files"].items() if file.startswith("pipe:"))
    assert facts["files"].pop(words)
    assert facts == {
        "files": {"1": log, "2": log},
        "handled": [],
        "blocked": [],
        "leads_session": True,
    }


def test_workers_read_the_end_when_the_parent_is_killed(warm: FakeLauncher) -> None:
    """All of them: none holds the other end of another one's pipe."""
    for name in "abc":
        warm.start(name, "wait")
        warm.started(name)
        warm.wait_for_log(name, "waits")
    warm.process.kill()
    for name in "abc":
        warm.wait_for_log(name, "read the end")


def test_the_end_of_stdin_ends_the_parent_and_workers_read_theirs(warm: FakeLauncher) -> None:
    for name in "ab":
        warm.start(name, "wait")
        warm.started(name)
        warm.wait_for_log(name, "waits")
    assert "read the end" not in warm.log("a")
    assert warm.end() == 0
    for name in "ab":
        warm.wait_for_log(name, "read the end")


def test_one_that_outlives_its_sibling(warm: FakeLauncher) -> None:
    """The end of one closes its pipe only; pipes made later may get the same number."""
    for name in "ab":
        warm.start(name, "wait")
    pids = [warm.started(name) for name in "ab"]
    os.kill(pids[0], signal.SIGKILL)
    assert warm.answer() == {"ended": "a", "pid": pids[0], "code": -9}
    assert warm.code_of("c", "exit", "0") == 0
    warm.wait_for_log("b", "waits")
    assert "read the end" not in warm.log("b")


def test_several_that_end_at_once_are_all_told(warm: FakeLauncher) -> None:
    pids = {}
    for index in range(20):
        warm.start(str(index), "wait")
        pids[str(index)] = warm.started(str(index))
    # The parent does not run while they end: signals of the same kind become one.
    warm.process.send_signal(signal.SIGSTOP)
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    warm.process.send_signal(signal.SIGCONT)
    told = [warm.answer() for _ in pids]
    assert {answer["ended"]: answer["pid"] for answer in told} == pids
    assert {answer["code"] for answer in told} == {-9}
    left = Path(f"/proc/{warm.process.pid}/task/{warm.process.pid}/children").read_text()
    assert left == "", "no zombies"


def test_commands_in_pieces_and_in_one_piece(warm: FakeLauncher) -> None:
    first, second, third = (warm.command(name, "wait") for name in "abc")
    warm.send(first[:10])
    wait_for("the first piece to be read", warm.has_read_all, seconds=20)
    warm.send(first[10:] + second + third[:-1])
    warm.started("a")
    warm.started("b")
    warm.send(third[-1:])
    warm.started("c")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"nonsense", "malformed"),
        (b"\xff\xfe", "malformed"),
        (b"[]", "Expected `object`"),
        (b"{}", "missing required field `start`"),
        (b'{"stop": 1}', "unknown field `stop`"),
        (b'{"start": "a", "arguments": "x", "environment": {}, "log": "l"}', "$.arguments"),
    ],
)
def test_a_bad_command_is_said_and_the_next_one_served(
    warm: FakeLauncher, line: bytes, why: str
) -> None:
    warm.send(line + b"\n")
    assert warm.code_of("a", "exit", "0") == 0
    assert why in warm.errors.read_text()


def test_signals_to_the_parent_do_nothing(warm: FakeLauncher) -> None:
    warm.start("a", "wait")
    warm.started("a")
    for number in (signal.SIGTERM, signal.SIGINT):
        warm.process.send_signal(number)
    assert warm.code_of("b", "exit", "6") == 6
    assert warm.end() == 0


def test_a_signal_right_after_the_start_is_not_lost(warm: FakeLauncher) -> None:
    for index in range(20):
        warm.start(str(index), "wait")
        pid = warm.started(str(index))
        os.kill(pid, signal.SIGTERM)
        assert warm.answer() == {"ended": str(index), "pid": pid, "code": -15}


def test_in_a_pod_the_storage_does_not_say_what_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may write to it. What the run's ConfigMap says is done."""
    (tmp_path / "run.yaml").write_text(RUN_FILE.format(name="it", model="{type: llama}"))
    given = resolved_run(tmp_path, {"train": "unused"})
    (tmp_path / "spec.json").write_text(given.model_dump_json(by_alias=True, exclude_none=True))
    (tmp_path / "run.yaml").write_text(
        RUN_FILE.format(name="it", model='{call: "os:system", config: {command: "echo mine"}}')
    )
    directory = RunDirectory.create(given.run_directory, SystemClock())
    directory.write_spec(resolved_run(tmp_path, {"train": "unused"}))
    monkeypatch.setenv("HEADWAY_POD_UID", "a-uid")
    monkeypatch.setenv("HEADWAY_SPEC", str(tmp_path / "spec.json"))
    assert model_types_of() == ["llama"]
    with pytest.raises(BadInput, match="a pod runs only the code of its own run"):
        load_trained(directory, None)


RUN_FILE = """\
version: 1
name: {name}
model: {model}
data: {{train: unused, sequence_length: 16}}
batch: {{global: 4, micro: 2}}
train_for: 6 steps
"""


@pytest.mark.parametrize(
    ("model", "objective", "types"),
    [
        ("{type: llama}", "", ["llama"]),
        ('{call: "mine:build"}', "", []),
        ("{from: teacher}", "", ["bert"]),
        ("{from: other@3}", "", ["gpt2"]),
        ("{type: llama}", "objective: {type: distill, teacher: teacher}", ["llama", "bert"]),
    ],
)
def test_which_models_a_run_needs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    objective: str,
    types: list[str],
) -> None:
    (tmp_path / "teacher").mkdir()
    (tmp_path / "teacher" / "config.json").write_text('{"model_type": "bert"}')
    for name, of_run in (("other", "{type: gpt2}"), ("it", model)):
        text = RUN_FILE.format(name=name, model=of_run) + (objective if name == "it" else "")
        (tmp_path / "run.yaml").write_text(text)
        resolved = resolved_run(tmp_path, {"train": "unused"})
        directory = RunDirectory.create(resolved.run_directory, SystemClock())
        directory.write_spec(resolved)
        monkeypatch.setenv("HEADWAY_SPEC", directory.store.location("spec.json"))
    assert model_types_of() == types
