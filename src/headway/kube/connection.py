"""The connection to the API server, by what a kubeconfig says of it. lightkube makes one by the
usual keys alone; here are the others: a proxy, the name in the server's certificate, and a login
command with a deadline."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import httpx2
from lightkube import Client, KubeConfig
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import Cluster, User
from lightkube.core.exceptions import ConfigError

from headway.errors import BadInput
from headway.kube.kubeconfig import has_user_config, user_config
from headway.kube.login import CommandLogin

FIELD_MANAGER = "headway"
CALL_SECONDS = 20.0


def kubeconfig_client(context: str | None, say: Callable[[str], None]) -> httpx2.Client:
    """Connect by the user's kubeconfig; by a pod's token only where nobody has named another
    cluster. `say` tells a user to sign in where that is needed."""
    if context is None and not has_user_config():
        with suppress(ConfigError):  # it is no pod
            inside = KubeConfig.from_service_account().get()
            assert inside is not None
            return _client(inside, user_auth(inside.user))
    written = user_config()
    config = KubeConfig.from_dict(dict(written.content)).get(context_name=context)
    assert config is not None
    cluster = written.named("cluster", config.context.cluster)
    auth = user_auth(config.user)
    if config.user is not None and config.user.exec is not None:
        user = written.named("user", config.context.user)
        auth = CommandLogin(user["exec"], cluster, say)
    return _client(config, auth, cluster.get("proxy-url"), cluster.get("tls-server-name"))


def in_cluster_client() -> httpx2.Client:
    """From a pod, with its token."""
    config = KubeConfig.from_service_account().get()
    assert config is not None
    return _client(config, user_auth(config.user))


def tell_cluster_once(http: httpx2.Client, namespace: str, say: Callable[[str], None]) -> None:
    """Say which cluster it is, before the first call that changes something."""
    is_told = False

    def tell(request: httpx2.Request) -> None:
        nonlocal is_told
        only_asks = request.method in ("GET", "HEAD") or "dryRun" in request.url.params
        if not (is_told or only_asks or request.url.path.endswith("reviews")):
            is_told = True
            say(f"cluster {str(http.base_url).rstrip('/')}, namespace {namespace}")

    hooks = http.event_hooks
    http.event_hooks = {**hooks, "request": [*hooks["request"], tell]}


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
