"""The launcher's side of the warm parent, with workers that are a line of shell."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.errors import RunFailed
from headway.launch import parent as parent_module
from headway.launch.parent import Ended, Started, WarmParent
from headway.state.rundir import RunDirectory
from support import shell_parent
from support.waiting import wait_for

SHELL = (sys.executable, str(Path(shell_parent.__file__)))
Make = Callable[..., WarmParent]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with (tmp_path / "held").open("w") as lock:

        def make(*command: str) -> WarmParent:
            log = tmp_path / "logs" / "parent.log"
            return WarmParent(str(tmp_path), os.environ, log, lock.fileno(), command)

        yield make


def shell(make: Make, script: str) -> WarmParent:
    return make(*SHELL, script)


def start(parent: WarmParent, folder: Path, *names: str) -> None:
    for name in names:
        environment = {"PATH": os.environ["PATH"], "NAME": name}
        parent.start(name, [name], environment, folder / f"{name}.log")


def hear(parent: WarmParent, count: int, seconds: float = 20.0) -> list[Started | Ended]:
    """So much news, in order."""
    news: list[Started | Ended] = []
    deadline = time.monotonic() + seconds
    while len(news) < count:
        assert time.monotonic() < deadline, news
        news += parent.news(0.1)
    return news


def test_a_worker_from_its_start_to_its_end(make: Make, tmp_path: Path) -> None:
    with shell(make, 'echo "$NAME of $0, $OTHER"; exit 3') as parent:
        start(parent, tmp_path, "node-0.1")
        started, ended = hear(parent, 2)
    assert isinstance(started, Started)
    assert started.pid > 1
    assert (started.name, ended) == ("node-0.1", Ended("node-0.1", 3))
    # Its own environment, and nothing of ours.
    assert (tmp_path / "node-0.1.log").read_text() == "node-0.1 of node-0.1, \n"


def test_how_each_of_several_ends(make: Make, tmp_path: Path) -> None:
    script = "case $NAME in a) exit 0;; b) exit 7;; c) kill -KILL $$;; d) kill -TERM $$;; esac"
    with shell(make, script) as parent:
        start(parent, tmp_path, "a", "b", "c", "d")
        news = hear(parent, 8)
    ends = {one.name: one.code for one in news if isinstance(one, Ended)}
    assert ends == {"a": 0, "b": 7, "c": -9, "d": -15}
    pids = {one.name: one.pid for one in news if isinstance(one, Started)}
    assert len(set(pids.values())) == 4


def test_without_news_it_waits_as_long_as_it_may(make: Make, tmp_path: Path) -> None:
    with shell(make, "exec sleep 60") as parent:
        start(parent, tmp_path, "a")
        (started,) = hear(parent, 1)
        began = time.monotonic()
        assert parent.news(0.2) == []
        assert 0.15 < time.monotonic() - began < 5
        assert parent.news(0.0) == []
        assert isinstance(started, Started)
        os.kill(started.pid, 9)
        assert hear(parent, 1) == [Ended("a", -9)]


def python(make: Make, code: str) -> WarmParent:
    return make(sys.executable, "-c", code)


def test_news_may_come_in_pieces(make: Make) -> None:
    parts = ['{"ready": 1.5}\n{"star', 'ted": "a", "pid": 7}', '\n{"ended": "a", "code": -9}\n']
    code = f"import time\nfor part in {parts!r}:\n print(part, end='', flush=True); time.sleep(0.2)"
    with python(make, f"{code}\ninput()") as parent:
        assert hear(parent, 2) == [Started("a", 7), Ended("a", -9)]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise SystemExit(3)", "the parent of the workers ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "the parent of the workers was killed by signal 9"),
        ("import torsh", "the parent of the workers ended with exit code 1"),
    ],
)
def test_the_parent_is_lost(make: Make, code: str, words: str) -> None:
    with python(make, code) as parent:
        with pytest.raises(RunFailed) as failed:
            hear(parent, 1)
        assert failed.value.message == words
        assert failed.value.hint == f"its log is {parent.log}"
        if "torsh" in code:
            assert "No module named 'torsh'" in parent.log.read_text()


def test_lost_while_workers_are_there(make: Make, tmp_path: Path) -> None:
    """They read the end of their stdin, and stop by themselves."""
    with shell(make, 'test "$NAME" = b && kill -KILL $PPID; cat; echo over') as parent:
        start(parent, tmp_path, "a", "b")
        with pytest.raises(RunFailed, match="was killed by signal 9"):
            hear(parent, 4)
        start(parent, tmp_path, "c")
        with pytest.raises(RunFailed, match="was killed by signal 9"):
            parent.news(1.0)
        log = tmp_path / "a.log"
        wait_for("its end", lambda: log.exists() and log.read_text() == "over\n", 20)
        assert not (tmp_path / "c.log").exists()


def test_workers_hear_when_the_launcher_is_done(make: Make, tmp_path: Path) -> None:
    with shell(make, "echo ready; cat; echo over") as parent:
        start(parent, tmp_path, "a")
        log = tmp_path / "a.log"
        wait_for("the worker", lambda: log.exists() and "ready" in log.read_text(), 20)
    wait_for("its end", lambda: log.read_text() == "ready\nover\n", 20)


def test_a_parent_that_does_not_end_is_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent_module, "END_SECONDS", 0.2)
    code = 'import time; print(\'{"started": "a", "pid": 7}\', flush=True); time.sleep(60)'
    with python(make, code) as parent:
        hear(parent, 1)
        began = time.monotonic()
    assert time.monotonic() - began < 10


def test_the_run_goes_on_as_long_as_a_worker_lives(tmp_path: Path) -> None:
    """Whatever becomes of the launcher and of the parent: nobody else may start it meanwhile."""
    directory = RunDirectory.create(tmp_path / "it", SystemClock())
    command: Sequence[str] = (
        *SHELL,
        "trap '' INT TERM; cat; while test ! -e $0; do sleep 0.01; done",
    )
    go = tmp_path / "go"
    log = tmp_path / "log"
    with (
        directory.held() as lock,
        WarmParent(directory.location, os.environ, log, lock, command) as parent,
    ):
        parent.start("a", [str(go)], {"PATH": os.environ["PATH"]}, tmp_path / "a.log")
        (started,) = hear(parent, 1)
    assert isinstance(started, Started)
    assert directory.is_running()
    go.touch()
    wait_for("its end", lambda: not directory.is_running(), 20)
