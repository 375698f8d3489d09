"""An API server that only keeps what it is given: for what commands make of its answers. What
Kubernetes does with objects is for the real one to show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from headway.clock import SystemClock
from headway.kube.names import INSTANCE, STORAGE
from headway.launch.serving import Server

Object = dict[str, Any]
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
CONFIG = """\
apiVersion: v1
kind: Config
current-context: lab
clusters: [{{name: lab, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: me, user: {{}}}}]
contexts: [{{name: lab, context: {{cluster: lab, user: me, namespace: ml}}}}]
"""


class FakeKube:
    def __init__(self, claim: Path) -> None:
        self.objects: dict[str, Object] = {}
        """By path."""
        self.forbidden: set[str] = set()
        """Paths that begin so are answered with 403."""
        self.others: tuple[str, ...] = ()
        """Kinds that it knows besides."""
        self.job_status: Object = {}
        """Of Jobs that are made."""
        self.storage_pod: Object = READY
        """Status of a pod that serves the claim."""
        self.printed: dict[str, dict[str, str]] = {}
        """By pod and container."""
        self._claim = claim
        self._served: Server | None = None

    def put(self, path: str, content: Object) -> Object:
        content["metadata"].setdefault("uid", path)
        self.objects[path] = content
        return content

    def job(self, run: str, suspend: bool = False, queue: str | None = None, **status: Any) -> None:
        """As the workers' Job of a run is."""
        labels = {INSTANCE: run, "app.kubernetes.io/managed-by": "headway"}
        labels["app.kubernetes.io/component"] = "worker"
        if queue is not None:
            labels["kueue.x-k8s.io/queue-name"] = queue
        metadata = {"name": f"headway-{run}", "namespace": "ml", "labels": labels}
        spec = {"parallelism": 2, "completions": 2, "suspend": suspend, "template": {}}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
        path = f"/apis/batch/v1/namespaces/ml/jobs/headway-{run}"
        self.put(path, {**job, "spec": spec, "status": status})

    def named(self, kind: str) -> list[str]:
        """Names of all objects of a kind, such as `jobs`."""
        return [path.rsplit("/", 1)[1] for path in self.objects if path.split("/")[-2] == kind]

    def answer(self, method: str, where: str, content: bytes, headers: Any) -> tuple[int, bytes]:
        path, query = urlsplit(where).path, parse_qs(urlsplit(where).query)
        if any(path.startswith(prefix) for prefix in self.forbidden):
            return self._status(403, f"{path} is forbidden: you may not {method} it")
        if "/proxy/" in path:
            return self._proxied(method, where.partition("/proxy")[2], content, headers)
        if path.endswith("/log"):
            return self._log(path.split("/")[-2], query.get("container", [""])[0])
        if method == "PATCH":
            return 200, json.dumps(self._patched(path, json.loads(content))).encode()
        if method == "DELETE":
            return self._deleted(path)
        if (found := self.objects.get(path)) is not None:
            return 200, json.dumps(found).encode()
        if path.rsplit("/", 1)[1] in ("jobs", "pods", "events", *self.others):
            return 200, self._listed(path, query)
        return self._status(404, f"{path} not found")

    def _patched(self, path: str, patch: Object) -> Object:
        there = self.objects.get(path)
        if there is not None:
            there["spec"] = there.get("spec", {}) | patch.get("spec", {})
            annotations = patch.get("metadata", {}).get("annotations", {})
            merged = there["metadata"].get("annotations", {}) | annotations
            there["metadata"]["annotations"] = {k: v for k, v in merged.items() if v is not None}
            return there
        status = {"status": self.job_status} if patch["kind"] == "Job" else {}
        made = self.put(path, {**patch, **status})
        if path.split("/")[-2:-1] == ["jobs"] and "headway-storage-" in path:
            labels = made["metadata"]["labels"]
            pod = {"metadata": {"name": "serving", "labels": labels}, "status": self.storage_pod}
            self.put("/api/v1/namespaces/ml/pods/serving", {**pod, "spec": {"containers": []}})
        if "headway-storage-" in path and made["kind"] == "Secret":
            self._serve(made)
        return made

    def _serve(self, secret: Object) -> None:
        from base64 import b64decode

        key = b64decode(secret["data"]["key"]).decode()
        self._served = Server(("127.0.0.1", 0), {}, SystemClock(), (self._claim, key))
        self._served.start()

    def _deleted(self, path: str) -> tuple[int, bytes]:
        gone = self.objects.pop(path, None)
        if gone is None:
            return self._status(404, f"{path} not found")
        run = gone["metadata"]["labels"][INSTANCE]
        for other, one in list(self.objects.items()):
            if one["metadata"].get("labels", {}).get(INSTANCE) == run:
                del self.objects[other]
        return self._status(200, "deleted")

    def _listed(self, path: str, query: dict[str, list[str]]) -> bytes:
        wanted = dict(
            pair.split("=") for pair in ",".join(query.get("labelSelector", [])).split(",") if pair
        )
        phase = ",".join(query.get("fieldSelector", [])).partition("status.phase=")[2]
        items = [
            one
            for place, one in self.objects.items()
            if place.startswith(f"{path}/")
            and wanted.items() <= one["metadata"].get("labels", {}).items()
            and phase in ("", one["status"].get("phase"))
        ]
        return json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()

    def _proxied(self, method: str, where: str, content: bytes, headers: Any) -> tuple[int, bytes]:
        assert self._served is not None, STORAGE
        connection = HTTPConnection("127.0.0.1", self._served.port, timeout=10)
        kept = {name: headers[name] for name in ("X-Headway-Key", "Range") if headers[name]}
        connection.request(method, where, content, kept)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def _log(self, pod: str, container: str) -> tuple[int, bytes]:
        """As the real one: of several containers one has to be named."""
        containers = self.printed[pod]
        if not container and len(containers) > 1:
            named = f"choose one of: [{' '.join(containers)}]"
            return self._status(400, f"a container name must be specified for pod {pod}, {named}")
        text = containers[container] if container else next(iter(containers.values()))
        stamp = "2026-11-16T09:00:00.000000001Z"
        return 200, "".join(f"{stamp} {line}\n" for line in text.splitlines()).encode()

    def _status(self, code: int, message: str) -> tuple[int, bytes]:
        return code, json.dumps({"kind": "Status", "code": code, "message": message}).encode()


@contextmanager
def fake_kube(folder: Path) -> Iterator[FakeKube]:
    """With `folder/kubeconfig` for it; the claim is `folder/claim`."""
    (folder / "claim").mkdir()
    kube = FakeKube(folder / "claim")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer is one packet

        def _do(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, answer = kube.answer(self.command, self.path, content, self.headers)
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_PATCH = do_DELETE = do_PUT = do_POST = _do

        def log_message(self, *_: object) -> None:
            """Not in the middle of what a test prints."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    (folder / "kubeconfig").write_text(CONFIG.format(port=server.server_address[1]))
    try:
        yield kube
    finally:
        server.shutdown()
        server.server_close()
