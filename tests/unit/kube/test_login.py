"""Logins by a command that the kubeconfig names, as on EKS and GKE and with single sign-on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.errors import BadInput
from headway.http_server import TEXT
from headway.kube.client import KubeClient
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
        answer = kube.answer

        def noting(method: str, where: str, content: bytes, headers: Any) -> tuple[int, bytes]:
            self.tokens.append(headers["Authorization"])
            return answer(method, where, content, headers)

        kube.answer = noting  # type: ignore[method-assign]

    def by(self, command: str, version: str = "v1beta1") -> KubeClient:
        file = self.folder / "kubeconfig"
        config = yaml.safe_load(file.read_text())
        config["users"][0]["user"]["exec"] = {
            "apiVersion": f"client.authentication.k8s.io/{version}",
            "command": "sh",
            "args": ["-c", command],
            "interactiveMode": "IfAvailable",
            "provideClusterInfo": True,
        }
        file.write_text(yaml.safe_dump(config))
        return KubeClient.from_kubeconfig(None, "ml")


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
