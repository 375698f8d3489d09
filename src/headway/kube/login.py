"""A kubeconfig may name a command that prints a token, as those of clouds and single sign-on do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import httpx2

from headway.errors import BadInput

GROUP = "client.authentication.k8s.io"
VERSIONS = tuple(f"{GROUP}/{version}" for version in ("v1alpha1", "v1beta1", "v1"))
"""Of what is read, the token, nothing has changed between them."""
INFORMATION = "KUBERNETES_EXEC_INFO"
EXTENSION = f"{GROUP}/exec"
"""Of a cluster: what its administrator wants such commands to know."""
LOGIN_SECONDS = 300.0
"""For somebody to sign in with a browser and a second factor."""
QUIET_SECONDS = 3.0
"""Time after which it is said what is waited for."""
TOLD = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
"""What a command is told of the cluster, besides its certificate authority and its extension."""


class CommandLogin(httpx2.Auth):
    """Runs the command when there is no token yet, and when the one there is has expired."""

    def __init__(
        self,
        asked: Mapping[str, Any],
        cluster: Mapping[str, Any],
        say: Callable[[str], None],
        seconds: float = LOGIN_SECONDS,
    ) -> None:
        """`asked` and `cluster`: `exec` of the user and the cluster, as the kubeconfig has them."""
        self._asked = asked
        self._cluster = cluster
        self._say = say
        self._seconds = seconds
        self._bearer: str | None = None
        self._renewing = Lock()

    def sync_auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        used = self._bearer or self._renewed(None)
        request.headers["Authorization"] = used
        response = yield request
        if response.status_code == 401:
            request.headers["Authorization"] = self._renewed(used)
            yield request

    def _renewed(self, expired: str | None) -> str:
        """Unless another thread has done so meanwhile."""
        with self._renewing:
            if self._bearer is None or self._bearer == expired:
                self._bearer = f"Bearer {self._token()}"
            return self._bearer

    def _token(self) -> str:
        output = self._output()
        try:
            return str(json.loads(output)["status"]["token"])
        except (ValueError, KeyError, TypeError):
            raise BadInput(
                "the login in your kubeconfig failed: the command that it names printed no token",
                "Headway does not use certificates of such commands: ask for a login with a token",
            ) from None

    def _output(self) -> bytes:
        """What the command prints."""
        if self._asked.get("apiVersion") not in VERSIONS:
            raise _failed(f"auth exec api version {self._asked.get('apiVersion')} not implemented")
        mode = self._asked.get("interactiveMode", "IfAvailable")
        has_terminal = sys.stdin is not None and sys.stdin.isatty()
        if mode == "Always" and not has_terminal:
            raise _failed("the command that it names needs a terminal")
        is_interactive = has_terminal and mode != "Never"
        command = [str(self._asked.get("command")), *(self._asked.get("args") or ())]
        variables = {one["name"]: one["value"] for one in self._asked.get("env") or ()}
        told = {INFORMATION: json.dumps(self._information(is_interactive))}
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, **told, **variables},
                stdin=None if is_interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            raise _failed(str(error), self._asked.get("installHint")) from None
        with process:
            output, words = self._waited(process, " ".join(command))
        if process.returncode != 0:
            raise _failed(f"Exec {command[0]} returned {process.returncode}: {words}")
        return output

    def _waited(self, process: subprocess.Popen[bytes], command: str) -> tuple[bytes, str]:
        """What it prints for others, and for people. The latter is shown as it comes, if it takes
        long: it may say where to sign in."""
        shown, passed = 0, 0.0
        while True:
            pause = 1.0 if passed else QUIET_SECONDS
            try:
                output, words = process.communicate(timeout=min(pause, self._seconds))
                return output, words.decode(errors="replace").strip()
            except subprocess.TimeoutExpired as late:
                if not passed:
                    self._say(
                        f"waiting up to {self._seconds:.0f} s for the login command of your "
                        f"kubeconfig: {command}"
                    )
                passed += late.timeout
                so_far = (late.stderr or b"").decode(errors="replace")
                whole = so_far.rfind("\n") + 1
                for line in so_far[shown:whole].splitlines():
                    self._say(line)
                shown = max(shown, whole)
                if passed >= self._seconds:
                    process.kill()
                    for pipe in (process.stdout, process.stderr):  # a child of it may keep them
                        if pipe is not None:
                            pipe.close()
                    raise _failed(
                        f"{command} printed no token within {self._seconds:.0f} s"
                    ) from None

    def _information(self, is_interactive: bool) -> dict[str, Any]:
        """What kubectl tells such a command: some ask for it, and answer in the version named."""
        spec: dict[str, Any] = {"interactive": is_interactive}
        if self._asked.get("provideClusterInfo"):
            spec["cluster"] = {key: self._cluster[key] for key in TOLD if key in self._cluster}
            if (data := _authority(self._cluster)) is not None:
                spec["cluster"]["certificate-authority-data"] = data
            for one in self._cluster.get("extensions") or ():
                if one["name"] == EXTENSION:
                    spec["cluster"]["config"] = one["extension"]
        return {"apiVersion": self._asked["apiVersion"], "kind": "ExecCredential", "spec": spec}


def _authority(cluster: Mapping[str, Any]) -> str | None:
    """Certificates of the cluster, as a kubeconfig has them."""
    if (file := cluster.get("certificate-authority")) is not None:
        return b64encode(Path(file).read_bytes()).decode()
    data: str | None = cluster.get("certificate-authority-data")
    return data


def _failed(why: str, hint: str | None = None) -> BadInput:
    return BadInput(
        f"the login in your kubeconfig failed: {why.strip()}",
        " ".join(hint.split()) if hint else "make this work first: kubectl get pods",
    )
