"""The API server's answers, as plain dictionaries: just enough for the cluster and its faults.

Headway has a client of its own; this one shares nothing with it, so a test can believe it.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
from pathlib import Path
from typing import Any

import httpx
import yaml

Object = dict[str, Any]
"""Of Kubernetes, as it is in JSON."""


class ApiError(Exception):
    """An answer that is not what was asked for."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """Paths are those of the API: `/api/v1/nodes`."""

    def __init__(self, kubeconfig: Path, connections: int = 10) -> None:
        content = yaml.safe_load(kubeconfig.read_text())
        context = _named(content["contexts"], content["current-context"])["context"]
        cluster = _named(content["clusters"], context["cluster"])["cluster"]
        user = _named(content["users"], context["user"])["user"]
        headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        self._client = httpx.Client(
            base_url=cluster["server"],
            headers=headers,
            verify=_trust(cluster, user, kubeconfig.parent),
            timeout=30.0,
            limits=httpx.Limits(max_connections=connections),
            trust_env=False,
        )

    def get(self, path: str, **parameters: str) -> Object:
        return self._ask("GET", path, params=parameters)

    def items(self, path: str, **parameters: str) -> list[Object]:
        found: list[Object] = self.get(path, **parameters)["items"]
        return found

    def find(self, path: str) -> Object | None:
        """None if it is not there."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def text(self, path: str, **parameters: str) -> str:
        """For answers that are not objects, as logs."""
        answer = self._client.get(path, params=parameters)
        if answer.is_error:
            raise ApiError(answer.status_code, answer.text)
        return answer.text

    def create(self, path: str, body: Object) -> Object:
        return self._ask("POST", path, json=body)

    def patch(self, path: str, body: Object | list[Object]) -> Object:
        """Merged into what is there, or a list of operations."""
        kind = "json-patch" if isinstance(body, list) else "merge-patch"
        headers = {"Content-Type": f"application/{kind}+json"}
        return self._ask("PATCH", path, json=body, headers=headers)

    def delete(self, path: str, **parameters: str) -> None:
        """It need not be there."""
        try:
            self._ask("DELETE", path, params=parameters)
        except ApiError as error:
            if error.status != 404:
                raise

    def answers(self) -> bool:
        """Whether it says that it is ready."""
        try:
            return self.text("/readyz") == "ok"
        except (ApiError, httpx.TransportError):
            return False

    def close(self) -> None:
        self._client.close()

    def _ask(self, method: str, path: str, **more: Any) -> Object:
        answer = self._client.request(method, path, **more)
        if answer.is_error:
            raise ApiError(answer.status_code, answer.text)
        content: Object = answer.json()
        return content


def _named(entries: list[Object], name: str) -> Object:
    return next(entry for entry in entries if entry["name"] == name)


def _trust(cluster: Object, user: Object, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(
        cadata=(_content(cluster, "certificate-authority", folder) or b"").decode() or None
    )
    certificate = _content(user, "client-certificate", folder)
    key = _content(user, "client-key", folder)
    assert (certificate and key) or "token" in user, (
        "the tests' kubeconfig must have a client certificate or a token in it"
    )
    if certificate and key:
        with tempfile.NamedTemporaryFile() as both:
            both.write(certificate + b"\n" + key)
            both.flush()
            context.load_cert_chain(both.name)
    return context


def _content(entry: Object, name: str, folder: Path) -> bytes | None:
    """A kubeconfig has it inside, or names a file beside it."""
    if f"{name}-data" in entry:
        return base64.b64decode(entry[f"{name}-data"])
    return (folder / entry[name]).read_bytes() if name in entry else None
