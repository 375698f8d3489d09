"""`headway exec`: a command in a pod, or in words why there is none."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from headway.errors import BadInput, Exit, HeadwayError, NotFound
from headway.kube import pod_exec
from headway.kube.api_errors import ClusterUnreachable, RequestRefused
from headway.kube.client import KubeClient
from headway.kube.names import INDEX, SUSPECT, labels
from headway.kube.pod_exec import CommandLost, CommandNotRun, LocalEnds
from headway.launch.cluster_run import ClusterRun
from headway.launch.pod_shell import AWAY_SECONDS, exit_code_in, required_pod
from support.clock import Patient
from support.fake_kube import FakeKube, fake_kube

CONTAINER = {"name": "worker", "image": "", "imageID": "", "ready": True, "restartCount": 0}
UP = {"phase": "Running", "containerStatuses": [{**CONTAINER, "state": {"running": {}}}]}
MUCH = bytes(2**25)
"""More than sockets and pipes hold."""
WRITES_BEFORE_IT_READS = """
import sys, time
time.sleep(1)  # all that holds input is full by now
sys.stdout.buffer.write(bytes(2**25))
sys.stdout.flush()
print(len(sys.stdin.buffer.read()), file=sys.stderr)
"""
WRITES_UNTIL_TOLD = """
import os, select, sys, time
until = time.monotonic() + 30
while not select.select([sys.stdin], [], [], 0)[0]:
    os.write(1, bytes(2**16))
    if time.monotonic() > until:
        sys.exit("nobody told it")
"""
PODS = "/api/v1/namespaces/ml/pods"


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with fake_kube(tmp_path) as kube:
        kube.job("it", ready=2)
        put_pod(kube, "it-0-a", 0)
        put_pod(kube, "it-1-b", 1)
        yield kube


@pytest.fixture
def run(kube: FakeKube) -> ClusterRun:
    return ClusterRun(KubeClient.from_kubeconfig(None, "ml"), "it", "lab", Patient())


def put_pod(kube: FakeKube, name: str, node: int, status: Any = UP, **more: Any) -> None:
    for_node = {**labels("it", "worker"), INDEX: str(node)}
    metadata = {"name": name, "labels": for_node, "creationTimestamp": "2026-11-16T09:00:00Z"}
    content = {"metadata": metadata | more, "spec": {"containers": []}, "status": status}
    kube.put(f"{PODS}/{name}", content)


@dataclass
class Printed:
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)


def executed(
    run: ClusterRun, *command: str, node: int = 0, typed: bytes = b"", size: Any = None
) -> tuple[int, bytes, bytes]:
    printed, (end, begin) = Printed(), os.pipe()

    def type_() -> None:
        with os.fdopen(begin, "wb") as file:
            file.write(typed)

    typing = Thread(target=type_, daemon=True)
    typing.start()
    try:
        ends = LocalEnds(end, printed.out.extend, printed.err.extend, size)
        code = exit_code_in(run, node, command, ends)
        typing.join()
    finally:
        os.close(end)
    return code, bytes(printed.out), bytes(printed.err)


def test_what_is_typed_gets_through_to_a_command_that_never_stops_writing(
    kube: FakeKube, run: ClusterRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, above all: in a terminal nothing here would end it."""
    monkeypatch.setattr(pod_exec, "PEEK_SECONDS", 1.0)  # no pause of a slow machine is long enough
    end, begin = os.pipe()
    num_bytes = 0

    def count(content: bytes) -> None:
        nonlocal num_bytes
        if num_bytes < 2**22 <= num_bytes + len(content):
            os.write(begin, b"\x03")
        num_bytes += len(content)

    try:
        ends = LocalEnds(end, count, lambda _: None, None)
        assert exit_code_in(run, 0, (sys.executable, "-c", WRITES_UNTIL_TOLD), ends) == 0
    finally:
        os.close(begin)
        os.close(end)


def test_output_errors_and_exit_code_are_the_commands(kube: FakeKube, run: ClusterRun) -> None:
    said = executed(run, "sh", "-c", "echo to one; echo to two >&2; exit 7", node=1)
    assert said == (7, b"to one\n", b"to two\n")
    assert f"EXEC {PODS}/it-1-b/exec" in kube.calls
    (asked,) = kube.exec.asked
    assert (asked["container"], asked["tty"]) == (["worker"], ["false"])
    assert executed(run, "true") == (0, b"", b"")


def test_a_command_that_reads_to_the_end_of_its_input_ends(run: ClusterRun) -> None:
    assert executed(run, "wc", "-c", typed=b"x" * 1000) == (0, b"1000\n", b"")


def test_both_directions_may_be_full(run: ClusterRun) -> None:
    """Whoever waited to write what the command does not read yet would not read what it writes."""
    code, out, err = executed(run, sys.executable, "-c", WRITES_BEFORE_IT_READS, typed=MUCH)
    assert (code, len(out), err) == (0, len(MUCH), b"%d\n" % len(MUCH))


def test_the_size_of_a_terminal_is_passed_on_whenever_it_changes(
    kube: FakeKube, run: ClusterRun
) -> None:
    sizes = iter([(80, 24), (80, 24), (120, 40)])

    def size() -> tuple[int, int]:
        return next(sizes, (120, 40))

    code, _, _ = executed(run, "cat", typed=b"bye\n", size=size)
    assert code == 0
    assert kube.exec.asked[0]["tty"] == ["true"]
    assert kube.exec.asked[0]["stderr"] == ["false"], "a terminal has one output"
    assert kube.exec.sizes == [(80, 24), (120, 40)]


def test_a_command_that_is_not_there(run: ClusterRun) -> None:
    with pytest.raises(CommandNotRun, match="executable file not found") as caught:
        executed(run, "no-such-command", "-v")
    assert caught.value.message.startswith("'no-such-command -v' in pod it-0-a of node 0 did not")
    assert caught.value.exit_code == Exit.BAD_INPUT


def test_a_connection_that_ends_first(kube: FakeKube, run: ClusterRun) -> None:
    kube.exec.is_cut = True
    with pytest.raises(CommandLost, match="before the command ended") as caught:
        executed(run, "sleep", "9")
    assert caught.value.hint == "headway status it --on lab"


def test_a_silent_command_of_a_lost_pod_is_not_waited_for(kube: FakeKube, run: ClusterRun) -> None:
    kube.exec.is_silent = True
    opened = run.kube.exec_in_pod("it-0-a", "worker", ["sleep", "9"], has_terminal=False)
    del kube.objects[f"{PODS}/it-0-a"]
    end, begin = os.pipe()
    try:
        ends = LocalEnds(end, lambda _: None, lambda _: None)
        with pytest.raises(CommandLost, match="the pod is gone"):
            opened.exit_code(ends, required_pod(run, "it-0-a"), check_seconds=0.1)
    finally:
        os.close(end)
        os.close(begin)


def test_a_pod_is_lost_with_its_machine(kube: FakeKube, run: ClusterRun) -> None:
    required_pod(run, "it-0-a")()
    put_pod(kube, "it-0-a", 0, labels={SUSPECT: "true"})
    with pytest.raises(CommandLost, match="its machine was lost"):
        required_pod(run, "it-0-a")()


def test_an_api_server_that_is_away_is_waited_for_but_not_forever(
    kube: FakeKube, run: ClusterRun
) -> None:
    require = required_pod(run, "it-0-a")
    kube.is_away = True
    require()
    run.clock.sleep(AWAY_SECONDS / 2)
    require()
    kube.is_away = False
    require()
    kube.is_away = True
    require()
    run.clock.sleep(AWAY_SECONDS + 1)
    with pytest.raises(ClusterUnreachable):
        require()


def test_a_gateway_that_passes_no_websockets(kube: FakeKube, run: ClusterRun) -> None:
    kube.exec.subprotocol = "v4.channel.k8s.io"
    with pytest.raises(ClusterUnreachable, match="does not pass WebSockets") as caught:
        executed(run, "nvidia-smi")
    assert caught.value.hint == "kubectl exec -n ml it-0-a -c worker -- nvidia-smi"


def test_without_the_right(kube: FakeKube, run: ClusterRun) -> None:
    kube.forbidden.add(f"{PODS}/it-0-a/exec")
    with pytest.raises(RequestRefused) as caught:
        executed(run, "true")
    assert caught.value.hint == (
        "ask the administrator of the namespace for pods/exec: get and create"
    )


def test_the_newest_pod_that_runs_is_taken(kube: FakeKube, run: ClusterRun) -> None:
    put_pod(kube, "it-0-a", 0, deletionTimestamp="2026-11-16T09:09:00Z")
    put_pod(kube, "it-0-c", 0, creationTimestamp="2026-11-16T09:10:00Z")
    assert executed(run, "true")[0] == 0
    assert f"EXEC {PODS}/it-0-c/exec" in kube.calls


WAITS = {"phase": "Pending"}
ENDING = {"deletionTimestamp": "2026-11-16T09:09:00Z"}


@pytest.mark.parametrize(
    ("status", "more", "words"),
    [
        (WAITS, {}, "node 0 of run it is not running: pod it-0-a is pending"),
        (UP, ENDING, "node 0 of run it is not running: pod it-0-a is terminating"),
        (None, {}, "node 0 of run it is not running: there is no pod yet"),
    ],
)
def test_a_node_that_is_not_running(
    kube: FakeKube, run: ClusterRun, status: Any, more: Any, words: str
) -> None:
    put_pod(kube, "it-0-a", 0, status, **more)
    if status is None:
        del kube.objects[f"{PODS}/it-0-a"]
    assert refusal(run, NotFound) == (words, "headway status it --on lab")


def refusal(run: ClusterRun, kind: type[HeadwayError], node: int = 0) -> tuple[str, str | None]:
    with pytest.raises(kind) as caught:
        executed(run, "true", node=node)
    return caught.value.message, caught.value.hint


def test_a_run_that_does_not_run(kube: FakeKube, run: ClusterRun) -> None:
    kube.job("it", suspend=True)
    words = "run it is suspended: it has no pod to run a command in"
    assert refusal(run, NotFound) == (words, "headway status it --on lab")


def test_a_node_that_the_run_does_not_have(run: ClusterRun) -> None:
    assert refusal(run, BadInput, node=5) == (
        "run it has no node 5: its last one is node 1",
        "headway exec it --node 1 --on lab -- COMMAND",
    )
