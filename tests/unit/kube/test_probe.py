"""Probes as two processes on loopback: what they answer is what the client reads."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from headway.kube import probe
from headway.kube.probe_protocol import (
    CreateAnswer,
    NameAnswer,
    ProbeFacts,
    ReadAnswer,
    SendAnswer,
    WriteAnswer,
    parsed,
    port_answers,
)

KEY = "secret"


class Asked:
    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, task: str, key: str = KEY, **content: Any) -> dict[str, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", f"/{task}", json.dumps(content), {probe.KEY_HEADER: key})
        answer = connection.getresponse()
        found = json.loads(answer.read())
        assert answer.status == 200, found
        return dict(found)


@contextmanager
def started(folder: Path, **variables: str) -> Iterator[tuple[Asked, subprocess.Popen[str]]]:
    """As the workers' image runs it: without this package."""
    (folder / "key").write_text(f"{KEY}\n")
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", probe.__file__, "0"],
        env={"PATH": os.environ["PATH"], "HEADWAY_KEY": str(folder / "key"), **variables},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "listens" in said
        yield Asked(int(said.split()[-1])), process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Asked, Asked]]:
    with started(tmp_path) as (one, _), started(tmp_path) as (other, _):
        yield one, other


def test_it_says_what_its_image_has(two: tuple[Asked, Asked]) -> None:
    facts = parsed(ProbeFacts, two[0]("facts"))
    assert facts.python == ".".join(map(str, sys.version_info[:3]))
    assert facts.torch is None  # without site packages, as in an image that lacks it
    assert facts.lacking == []


def test_it_answers_only_with_the_key(two: tuple[Asked, Asked]) -> None:
    with pytest.raises(AssertionError, match="needs the key"):
        two[0]("facts", key="another")


def test_a_clock_that_is_wrong_shows(tmp_path: Path) -> None:
    variables = {probe.CLOCK_OFFSET: "90"}
    with started(tmp_path) as (right, _), started(tmp_path, **variables) as (wrong, _):
        between = parsed(ProbeFacts, wrong("facts")).time - parsed(ProbeFacts, right("facts")).time
    assert between > 60


def test_names_are_resolved_or_not(two: tuple[Asked, Asked]) -> None:
    found = parsed(NameAnswer, two[0]("resolve", name="localhost", times=3))
    assert (len(found.milliseconds), found.error) == (3, None)
    assert found.addresses
    nobody = parsed(NameAnswer, two[0]("resolve", name="nobody.invalid", times=3))
    assert nobody.error
    assert nobody.milliseconds == []


def test_traffic_is_tried_and_measured(two: tuple[Asked, Asked]) -> None:
    one, other = two
    ports = other("listen", num_ports=3)["ports"]
    asked = {"host": "127.0.0.1", "seconds": 60.0}
    answers = port_answers(one("connect", ports=ports, silent=[], **asked))
    assert [answer.error for answer in answers] == [None] * 3
    sent = parsed(SendAnswer, one("send", host="127.0.0.1", port=ports[0], seconds=0.2))
    assert sent.error is None
    assert sent.gigabits > 0


def test_a_port_that_nobody_or_somebody_else_answers(two: tuple[Asked, Asked]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        ports = [stranger.getsockname()[1], closed.getsockname()[1]]
        asked = {"host": "127.0.0.1", "seconds": 0.3, "ports": ports}
        silent, refused = port_answers(two[0]("connect", silent=[], **asked))
        assert silent.error == "no answer within 0.3 s"
        assert refused.error == "Connection refused"
        accepted, _ = port_answers(two[0]("connect", silent=ports, **asked))
        assert accepted.error is None


def test_a_claim_is_written_by_one_and_read_by_the_other(
    two: tuple[Asked, Asked], tmp_path: Path
) -> None:
    one, other = two
    where = {"root": str(tmp_path), "folder": ".headway-check/it"}
    written = parsed(WriteAnswer, one("claim-write", megabytes=2, seconds=60.0, **where))
    assert written.problem is None
    assert list(written.steps) == ["make a folder", "write", "link", "rename", "append"]
    read = parsed(ReadAnswer, other("claim-read", sha256=written.sha256, seconds=60.0, **where))
    assert (read.error, read.num_bytes) == (None, written.num_bytes + len("more"))
    created = [
        parsed(CreateAnswer, each("claim-create", who=who, **where))
        for each, who in ((one, "a"), (other, "b"))
    ]
    assert [answer.first for answer in created] == [
        {"link": True, "O_EXCL": True},
        {"link": False, "O_EXCL": False},
    ]
    assert one("claim-remove", **where) == {"is_gone": True}


def test_a_claim_where_another_sees_something_else(
    two: tuple[Asked, Asked], tmp_path: Path
) -> None:
    where = {"root": str(tmp_path), "folder": "it", "seconds": 0.1}
    missing = parsed(ReadAnswer, two[0]("claim-read", sha256="", **where))
    assert missing.error == "No such file or directory"
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "renamed").write_text("old")
    sha256 = hashlib.sha256(b"new").hexdigest()
    old = parsed(ReadAnswer, two[0]("claim-read", sha256=sha256, **where))
    assert old.error == "it has other content here"


def test_a_claim_that_cannot_be_written_says_where_it_failed(
    two: tuple[Asked, Asked], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    where = {"root": str(tmp_path / "file"), "folder": "it"}
    written = parsed(WriteAnswer, two[0]("claim-write", megabytes=1, seconds=1.0, **where))
    assert written.problem == ("make a folder", "Not a directory")


def test_what_it_wrote_goes_with_it(tmp_path: Path) -> None:
    """Also if the client was killed: its Job's deadline ends the pod."""
    variables = {"HEADWAY_PROBE_ROOT": str(tmp_path), "HEADWAY_PROBE_FOLDER": ".headway-check/it"}
    with started(tmp_path, **variables) as (ask, process):
        where = {"root": str(tmp_path), "folder": ".headway-check/it"}
        ask("claim-write", megabytes=1, seconds=1.0, **where)
        assert (tmp_path / ".headway-check" / "it").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert not (tmp_path / ".headway-check").exists()


def test_an_image_without_headway_says_so(tmp_path: Path) -> None:
    with started(tmp_path, PATH=str(tmp_path)) as (ask, _):
        answer = ask("with-headway", run="bucket-read", content={})
    assert answer == {"answer": None, "error": "the image has no Headway"}


def test_it_prints_what_it_finds_alone_if_nobody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a client that cannot reach the pod, and reads its log."""
    monkeypatch.setenv("HEADWAY_PROBE_SERVICE", "localhost")
    found = probe.alone()
    parsed(ProbeFacts, found["facts"])
    assert parsed(NameAnswer, found["resolve"]).error is None
    # The server itself, with a patience of none, in a process of its own.
    program = (
        Path(probe.__file__).read_text().replace("ALONE_SECONDS = 25.0", "ALONE_SECONDS = 0.0")
    )
    (tmp_path / "probe.py").write_text(program)
    (tmp_path / "key").write_text(KEY)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(tmp_path / "probe.py"), "0"],
        env={"PATH": os.environ["PATH"], "HEADWAY_KEY": str(tmp_path / "key")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    process.kill()
    process.wait()
    process.stdout.close()
    assert lines[1].startswith(probe.ALONE)
    parsed(ProbeFacts, json.loads(lines[1].removeprefix(probe.ALONE))["facts"])
