"""Two keepers of a run over a fake API server, each with its coordinator's process: one acts, and
the other takes over."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.kube.names import INDEX, labels
from headway.member.protocol.keys import new_key, read_key
from headway.member.worker.session import Session
from headway.member.worker.session_view import View
from support.fake_kube import FakeKube, fake_kube
from support.fake_pods import PODS
from support.waiting import wait_for

pytestmark = [
    pytest.mark.local,
    pytest.mark.long("what a standby decides is in unit tests"),
]

KEEPER = Path(__file__).parents[1] / "support" / "standing_keeper.py"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/ml/leases/headway-it-coordinator"
RUN_FILE = "version: 1\nname: it\nmodel: {type: gpt2}\nbatch: {global: 4}\n"
LONG = 90.0
FIRST, SECOND = 17460, 17470


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    (tmp_path / "key").write_text(new_key())
    with fake_kube(tmp_path) as kube:
        metadata = {"name": "headway-it-coordinator", "namespace": "ml"}
        made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
        kube.put(LEASE, made)
        kube.job("it", startTime="2026-11-16T09:00:00Z")
        kube.coordinator("it")
        pod = {"name": "pod-a", "namespace": "ml", "labels": labels("it", "worker")}
        pod |= {"annotations": {INDEX: "0"}, "creationTimestamp": "2026-11-16T09:00:00Z"}
        spec = {"nodeName": "machine", "containers": []}
        kube.put(f"{PODS}/pod-a", {"metadata": pod, "spec": spec, "status": {"phase": "Running"}})
        yield kube


@contextmanager
def keeper(folder: Path, port: int, name: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(KEEPER), str(port), name, str(folder)]
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            finally:
                process.kill()


def holder(kube: FakeKube) -> str:
    found: str = kube.objects[LEASE].get("spec", {}).get("holderIdentity", "")
    return found


def answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port + 1}{path}", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def member(folder: Path, monkeypatch: pytest.MonkeyPatch, *ports: int) -> Iterator[Session]:
    """Of a name with several addresses, which here differ by their ports."""
    resolve = socket.getaddrinfo

    def several(host: str, *arguments: Any, **options: Any) -> Any:
        if host != "headway-it.ml.svc":
            return resolve(host, *arguments, **options)
        return [one for port in ports for one in resolve("127.0.0.1", port, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", several)
    key = read_key(folder / "key")
    with Session(f"headway-it.ml.svc:{FIRST}", key, "it", "pod-a.1/0") as session:
        session.be_ready()
        yield session


def test_the_other_takes_over(
    kube: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with keeper(tmp_path, FIRST, "a_1") as first:
        wait_for("the first to act", lambda: holder(kube) == "a_1", LONG)
        with (
            keeper(tmp_path, SECOND, "b_1") as second,
            member(tmp_path, monkeypatch, FIRST, SECOND) as session,
        ):
            session.wait_for("a place", lambda view: view.domain is not None, LONG)
            wait_for("the standby", lambda: answers(SECOND, "/healthz"), LONG)
            wait_for("the first's pages", lambda: answers(FIRST, "/status"), LONG)
            assert not answers(SECOND, "/status"), "it is for the one that acts"
            generation = session.view.generation.number
            first.send_signal(signal.SIGKILL)  # its coordinator reads the end of its input

            def is_back(view: View) -> bool:
                return view.connected and view.incarnation == 2

            view = session.wait_for("the second coordinator", is_back, LONG)
            assert view.generation.number == generation, "training has not noticed"
            assert holder(kube) == "b_1"
            wait_for("its pages", lambda: answers(SECOND, "/status"), LONG)
            second.send_signal(signal.SIGTERM)
            assert second.wait(LONG) == 0
            assert holder(kube) == "", "given up, so that nobody waits"


def test_without_the_api_server_it_stops_and_comes_back(
    kube: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with keeper(tmp_path, FIRST, "a_1") as process:
        with member(tmp_path, monkeypatch, FIRST) as session:
            session.wait_for("a place", lambda view: view.domain is not None, LONG)
            kube.is_away = True
            session.wait_for("its end", lambda view: not view.connected, LONG)
            kube.is_away = False
        assert process.wait(LONG) == 0, "the next keeper of this process begins anew"


def test_without_a_lease_one_acts_at_once(
    kube: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with keeper(tmp_path, FIRST, ""), member(tmp_path, monkeypatch, FIRST) as session:
        session.wait_for("a place", lambda view: view.domain is not None, LONG)
        wait_for("its pages", lambda: answers(FIRST, "/status"), LONG)
    assert holder(kube) == ""
    assert os.listdir(tmp_path / "members")
