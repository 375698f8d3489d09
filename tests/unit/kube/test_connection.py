"""Kubeconfigs that say more than an address and a token."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import KubeConfig

from headway.errors import BadInput
from headway.kube.api_errors import ClusterUnreachable
from headway.kube.client import KubeClient
from headway.kube.connection import kubeconfig_client
from headway.kube.kubeconfig import used_context
from support.fake_kube import fake_kube

NAME = "kubernetes.internal"
CONFIG_MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "one", "namespace": "ml"},
    "data": {},
}


def edit(folder: Path, **cluster: Any) -> KubeClient:
    """With these keys of the cluster; None: without."""
    file = folder / "kubeconfig"
    config = yaml.safe_load(file.read_text())
    keys = {**config["clusters"][0]["cluster"], **cluster}
    config["clusters"][0]["cluster"] = {key: one for key, one in keys.items() if one is not None}
    file.write_text(yaml.safe_dump(config))
    return KubeClient.from_kubeconfig(None, "ml")


@pytest.fixture(autouse=True)
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))


def test_a_proxy_is_used(tmp_path: Path) -> None:
    """The fake API server takes the proxy's part: nothing else could answer for that name."""
    with fake_kube(tmp_path) as kube:
        kube.job("it")
        proxy = yaml.safe_load((tmp_path / "kubeconfig").read_text())
        address = proxy["clusters"][0]["cluster"]["server"]
        client = edit(tmp_path, **{"server": "http://api.invalid", "proxy-url": address})
        assert client.job("headway-it") is not None
        assert [job.metadata is not None for job in client.jobs({})] == [True]


def test_a_proxy_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with fake_kube(tmp_path), pytest.raises(BadInput, match="proxy-url of your kubeconfig cannot"):
        edit(tmp_path, **{"proxy-url": "gopher://proxy:70"})


def test_a_server_may_have_another_name_in_its_certificate(tmp_path: Path) -> None:
    """As behind a tunnel or a load balancer with an address of its own."""
    with fake_kube(tmp_path, certified(tmp_path)) as kube:
        kube.job("it")
        plain = {"insecure-skip-tls-verify": None, "certificate-authority": "server.crt"}
        with pytest.raises(ClusterUnreachable, match="IP address mismatch"):
            edit(tmp_path, **plain).job("headway-it")
        named = edit(tmp_path, **{"tls-server-name": NAME})
        assert named.job("headway-it") is not None
        assert named.jobs({}) != []


def test_a_context_without_a_user(tmp_path: Path) -> None:
    with fake_kube(tmp_path) as kube:
        kube.job("it")
        file = tmp_path / "kubeconfig"
        config = yaml.safe_load(file.read_text())
        del config["contexts"][0]["context"]["user"]
        file.write_text(yaml.safe_dump(config))
        assert KubeClient.from_kubeconfig(None, "ml").job("headway-it") is not None


def test_several_files_are_merged_as_kubectl_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first that has an entry wins; paths are relative to the file that has them; files that
    are missing are passed over."""
    with fake_kube(tmp_path, certified(tmp_path)) as kube:
        kube.job("it")
        whole = yaml.safe_load((tmp_path / "kubeconfig").read_text())
        cluster = whole["clusters"][0]["cluster"]
        trusted = {
            "server": cluster["server"],
            "certificate-authority": "server.crt",
            "tls-server-name": NAME,
        }
        wrong = {"server": "http://api.invalid"}
        (tmp_path / "one").mkdir()
        first = {**whole, "clusters": [{"name": "other", "cluster": wrong}], "users": None}
        second = {
            "current-context": "other",
            "clusters": [{"name": "lab", "cluster": trusted}, {"name": "other", "cluster": wrong}],
            "users": whole["users"],
            "contexts": [{"name": "lab", "context": {"cluster": "other", "user": "me"}}],
        }
        (tmp_path / "one" / "config").write_text(yaml.safe_dump(first))
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(second))
        listed = [tmp_path / "one" / "config", tmp_path / "missing", tmp_path / "kubeconfig"]
        monkeypatch.setenv("KUBECONFIG", ":".join(map(str, ["", *listed])))
        assert KubeClient.from_kubeconfig(None, "ml").job("headway-it") is not None


def test_a_pod_with_its_own_token_has_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", "/nowhere")
    assert used_context(None) is None


def test_none_of_several_files_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/a:/nowhere/b")
    with pytest.raises(BadInput, match="Configuration files /nowhere/a:/nowhere/b not found"):
        KubeClient.from_kubeconfig(None, "ml")


@pytest.mark.parametrize("content", ["{", "- 1"])
def test_a_file_that_is_no_kubeconfig(tmp_path: Path, content: str) -> None:
    (tmp_path / "kubeconfig").write_text(content)
    with pytest.raises(BadInput, match=r"cannot connect to a cluster: .*kubeconfig is not"):
        KubeClient.from_kubeconfig(None, "ml")


def test_the_cluster_is_told_once_before_something_is_changed_there(tmp_path: Path) -> None:
    said: list[str] = []
    with fake_kube(tmp_path) as kube:
        kube.job("it")
        client = KubeClient.from_kubeconfig(None, "ml", said.append)
        client.job("headway-it")
        client.apply(CONFIG_MAP, dry_run=True)
        assert said == []
        client.apply(CONFIG_MAP)
        client.apply(CONFIG_MAP)
        (words,) = said
    address = yaml.safe_load((tmp_path / "kubeconfig").read_text())["clusters"][0]["cluster"]
    assert words == f"cluster {address['server']}, namespace ml"


@pytest.fixture
def in_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook or a CI job on some cluster, with a service account."""
    inside = KubeConfig.from_server("https://cluster.of.the.pod", namespace="ci")
    monkeypatch.setattr(KubeConfig, "from_service_account", lambda *_: inside)


@pytest.mark.usefixtures("in_a_pod")
def test_in_a_pod_the_cluster_is_the_one_that_the_user_names(tmp_path: Path) -> None:
    with fake_kube(tmp_path) as kube:
        kube.job("it")
        assert KubeClient.from_kubeconfig(None, "ml").job("headway-it") is not None


@pytest.mark.usefixtures("in_a_pod")
def test_in_a_pod_a_context_is_never_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(BadInput, match="config not found"):
        KubeClient.from_kubeconfig("prod", "ml")
    assert str(kubeconfig_client(None, print).base_url) == "https://cluster.of.the.pod"


def certified(folder: Path) -> ssl.SSLContext:
    """By `server.crt`, which is for NAME alone."""
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    where = f"-keyout {folder}/server.key -out {folder}/server.crt"
    named = f"-subj /CN={NAME} -addext subjectAltName=DNS:{NAME}"
    subprocess.run(f"{made} {where} {named}".split(), check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    return context
