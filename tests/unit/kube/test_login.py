"""Logins by a command that the kubeconfig names, as on EKS and GKE and with single sign-on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from headway.errors import BadInput
from headway.http_server import TEXT
from headway.kube.api_errors import RequestRefused
from headway.kube.client import KubeClient
from headway.kube.login import CommandLogin
from support.fake_kube import READY, FakeKube, fake_kube

POD = "headway-it-coordinator-x"
POD_PATH = f"/api/v1/namespaces/ml/pods/{POD}"
VERSIONS = ["v1alpha1", "v1beta1", "v1"]


class Login:
    """Of a kubeconfig: a shell command, and what the API server was told afterwards."""

    def __init__(self, kube: FakeKube, folder: Path) -> None:
        self.kube = kube
        self.folder = folder
        self.tokens: list[str] = []
        self.said: list[str] = []
        answer = kube.answer

        def noting(method: str, where: str, content: bytes, headers: Any) -> tuple[int, bytes]:
            self.tokens.append(headers["Authorization"])
            return answer(method, where, content, headers)

        kube.answer = noting  # type: ignore[method-assign]

    def by(self, command: str, version: str = "v1beta1", **cluster: Any) -> KubeClient:
        """`cluster`: what the kubeconfig says besides."""
        file = self.folder / "kubeconfig"
        config = yaml.safe_load(file.read_text())
        config["clusters"][0]["cluster"] |= cluster
        config["users"][0]["user"]["exec"] = {
            "apiVersion": f"client.authentication.k8s.io/{version}",
            "command": "sh",
            "args": ["-c", command],
            "interactiveMode": "IfAvailable",
            "provideClusterInfo": True,
        }
        file.write_text(yaml.safe_dump(config))
        return KubeClient.from_kubeconfig(None, "ml", self.said.append)

    @property
    def server(self) -> str:
        config = yaml.safe_load((self.folder / "kubeconfig").read_text())
        return str(config["clusters"][0]["cluster"]["server"])


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Login]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with fake_kube(tmp_path) as kube:
        pod = {"metadata": {"name": POD, "labels": {}}, "spec": {"containers": []}}
        kube.put(POD_PATH, {**pod, "status": READY})
        kube.serve_pages({"/hello": lambda: (TEXT, b"hello")})
        yield Login(kube, tmp_path)


def credential(**status: str) -> str:
    return "echo " + repr(json.dumps({"kind": "ExecCredential", "status": status}))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_token_is_used_for_objects_and_for_pods(login: Login, version: str) -> None:
    client = login.by(credential(token="mine"), version)
    client.first_pods({}, 1)
    assert login.tokens == ["Bearer mine"]
    assert client.request_to_pod(POD, 7461, "/hello") == b"hello"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_command_is_told_the_version_to_answer_in(login: Login, version: str) -> None:
    client = login.by(
        f'printf %s "$KUBERNETES_EXEC_INFO" > {login.folder}/told; {credential(token="mine")}',
        version,
    )
    client.first_pods({}, 1)
    told = json.loads((login.folder / "told").read_text())
    assert told["apiVersion"] == f"client.authentication.k8s.io/{version}"
    assert told["kind"] == "ExecCredential"
    assert told["spec"]["interactive"] is False, "there is no terminal"


def test_the_command_is_told_of_the_cluster_if_it_asks_for_that(login: Login) -> None:
    mine = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "team"}}
    client = login.by(
        f'printf %s "$KUBERNETES_EXEC_INFO" > {login.folder}/told; {credential(token="mine")}',
        extensions=[{"name": "another", "extension": 1}, mine],
        **{"tls-server-name": "kube.internal"},
    )
    client.first_pods({}, 1)
    told = json.loads((login.folder / "told").read_text())["spec"]["cluster"]
    assert told == {
        "server": login.server,
        "tls-server-name": "kube.internal",
        "insecure-skip-tls-verify": True,
        "config": {"audience": "team"},
    }


def test_one_login_is_enough_for_all_calls_and_another_follows_when_it_expires(
    login: Login,
) -> None:
    count = f"echo x >> {login.folder}/logins"
    client = login.by(f"{count}; {credential(token='mine')}")
    client.first_pods({}, 1)
    client.request_to_pod(POD, 7461, "/hello")
    client.call("GET", "api/v1/namespaces/ml/pods")
    logins = login.folder / "logins"
    assert logins.read_text() == "x\n"
    login.kube.refusing["GET /api/v1/namespaces/ml/pods"] = [(401, "Unauthorized")]
    client.first_pods({}, 1)
    assert logins.read_text() == "x\nx\n"


def test_what_a_login_says_to_its_user_is_shown_while_it_waits(login: Login) -> None:
    """It ends when somebody has read it."""
    said = f"until grep -q sign.in$ {login.folder}/shown; do sleep 0.1; done"
    login.by(f"echo open https://sign.in >&2; {said}; {credential(token='mine')}")
    (login.folder / "shown").touch()
    heard: list[str] = []

    def show(words: str) -> None:
        heard.append(words)
        (login.folder / "shown").write_text(words)

    KubeClient.from_kubeconfig(None, "ml", show).first_pods({}, 1)
    first, second = heard
    assert first.startswith("waiting up to 300 s for the login command of your kubeconfig: sh -c ")
    assert second == "open https://sign.in"


def test_a_login_that_does_not_end_is_ended() -> None:
    asked = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": ["600"]}
    said: list[str] = []
    login = CommandLogin(asked, {}, said.append, seconds=0.2)
    with pytest.raises(BadInput, match="sleep 600 printed no token within 0 s"):
        next(login.sync_auth_flow(httpx2.Request("GET", "http://api")))
    assert said == ["waiting up to 0 s for the login command of your kubeconfig: sleep 600"]


def test_a_login_that_needs_a_terminal_says_so(tmp_path: Path) -> None:
    asked = {"apiVersion": "client.authentication.k8s.io/v1", "command": "true"}
    login = CommandLogin(asked | {"interactiveMode": "Always"}, {}, tmp_path, print)
    with pytest.raises(BadInput, match="needs a terminal"):
        next(login.sync_auth_flow(httpx2.Request("GET", "http://api")))


def test_how_to_install_a_login_that_is_not_there(tmp_path: Path) -> None:
    asked = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin"}
    login = CommandLogin(
        asked | {"installHint": "gcloud components\n install it"}, {}, tmp_path, print
    )
    with pytest.raises(BadInput) as caught:
        next(login.sync_auth_flow(httpx2.Request("GET", "http://api")))
    assert caught.value.hint == "gcloud components install it"


@pytest.mark.trap(8)
@pytest.mark.parametrize(
    ("code", "said", "words", "hint"),
    [
        (
            401,
            "Unauthorized",
            "pods: you are not logged in to the cluster",
            "log in again, and check with: kubectl get pods",
        ),
        (
            403,
            'pods is forbidden: User "arn:aws:iam::1:user/ann" cannot list resource "pods"',
            'pods: pods is forbidden: User "arn:aws:iam::1:user/ann" cannot list resource "pods"',
            "ask the administrator of the namespace for ",
        ),
    ],
)
def test_an_identity_that_the_cluster_does_not_know_or_let_is_named(
    login: Login, code: int, said: str, words: str, hint: str
) -> None:
    client = login.by(credential(token="mine"))
    login.kube.refusing["GET /api/v1/namespaces/ml/pods"] = [(code, said)] * 3
    with pytest.raises(RequestRefused) as caught:
        client.first_pods({}, 1)
    assert caught.value.message == words
    assert (caught.value.hint or "").startswith(hint)


@pytest.mark.trap(8)
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo expired >&2; exit 255", "Exec sh returned 255: expired"),
        (credential(clientCertificateData="pem"), "the command that it names printed no token"),
        ("echo hello", "the command that it names printed no token"),
    ],
)
def test_a_login_that_fails_says_so(login: Login, command: str, words: str) -> None:
    with pytest.raises(BadInput, match=f"the login in your kubeconfig failed: {words}"):
        login.by(command).first_pods({}, 1)
