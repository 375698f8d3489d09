"""The connection to the API server, by what a kubeconfig says of it. lightkube makes one by the
usual keys alone; here are the others: a proxy, the name in the server's certificate, and a login
command with a deadline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import httpx2
import yaml
from lightkube import Client, KubeConfig
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import Cluster, User

from headway.errors import BadInput
from headway.kube.login import CommandLogin

FIELD_MANAGER = "headway"
CALL_SECONDS = 20.0


def kubeconfig_client(context: str | None, say: Callable[[str], None]) -> httpx2.Client:
    """By the user's kubeconfig. `say`: to somebody who may have to sign in."""
    config = KubeConfig.from_env().get(context_name=context)
    if config is None:
        raise BadInput("no kubeconfig found", "set KUBECONFIG to its path")
    if config.fname is None:  # in a pod
        return _client(config, user_auth(config.user))
    written = yaml.safe_load(config.fname.read_text())
    cluster = _named(written, "cluster", config.context.cluster)
    user = _named(written, "user", config.context.user)
    auth = user_auth(config.user)
    if config.user is not None and config.user.exec is not None:
        auth = CommandLogin(user["exec"], cluster, config.fname.parent, say)
    return _client(config, auth, cluster.get("proxy-url"), cluster.get("tls-server-name"))


def in_cluster_client() -> httpx2.Client:
    """From a pod, with its token."""
    config = KubeConfig.from_service_account().get()
    assert config is not None
    return _client(config, user_auth(config.user))


def objects_client(http: httpx2.Client, namespace: str) -> Client:
    """lightkube's, with the connections of the other."""
    # What concerns TLS and the login is `http`'s.
    cluster = Cluster(server=str(http.base_url), insecure=True)
    return Client(
        KubeConfig.from_one(cluster=cluster, user=User()),
        namespace,
        timeout=http.timeout,
        field_manager=FIELD_MANAGER,
        trust_env=False,
        transport=_Through(http),
    )


class _Through(httpx2.BaseTransport):
    """Sends what another client asks for."""

    def __init__(self, http: httpx2.Client) -> None:
        self._http = http

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._http.send(request, stream=True)


def _client(
    config: SingleConfig,
    auth: httpx2.Auth | None,
    proxy: str | None = None,
    server_name: str | None = None,
) -> httpx2.Client:
    """`server_name`: the name that its certificate must have, if not that of its address."""
    verify = verify_cluster(config.cluster, config.user or User(), config.abs_file)

    def name_server(request: httpx2.Request) -> None:
        request.extensions["sni_hostname"] = server_name

    try:
        return httpx2.Client(
            base_url=config.cluster.server,
            verify=verify,
            auth=auth,
            proxy=proxy or None,
            timeout=httpx2.Timeout(CALL_SECONDS),
            event_hooks={"request": [name_server]} if server_name else {},
        )
    except (ValueError, ImportError) as error:
        raise BadInput(f"the proxy-url of your kubeconfig cannot be used: {error}") from None


def _named(written: Mapping[str, Any], kind: str, name: str | None) -> Mapping[str, Any]:
    """A cluster or user of a kubeconfig."""
    for one in written.get(f"{kind}s") or ():
        if one["name"] == name:
            found: Mapping[str, Any] = one[kind] or {}
            return found
    return {}
