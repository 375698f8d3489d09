"""An API server that only keeps what it is given: for what commands make of its answers. What
Kubernetes does with objects is for the real one to show. It can be away, refuse and fail."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR, socket
from ssl import SSLContext
from threading import Thread, current_thread
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from headway.clock import SystemClock
from headway.http_server import TEXT, HttpServer, Pages, Resource
from headway.kube.names import INSTANCE, QUEUE, STORAGE, SUSPECT
from headway.launch.claim_server import ServedClaim
from headway.member.protocol.sockets import bound_to
from support.fake_pods import PODS, FakePods, WatchCut, patch_pod
from support.fake_port_forward import END_SECONDS, FakePortForward
from support.fake_reviews import FakeReviews

Object = dict[str, Any]
DELETED_AT = "2026-11-16T09:00:00Z"
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
CONFIG = """\
apiVersion: v1
kind: Config
current-context: lab
clusters:
- {{name: lab, cluster: {{server: "{address}", insecure-skip-tls-verify: true}}}}
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
        self.is_away = False
        """Connections are closed without an answer..."""
        self.num_cut = 0
        """... so many up to now."""
        self.failing: dict[str, int] = {}
        """How many more calls that begin so (`DELETE /api/v1/...`) are answered with 500."""
        self.refusing: dict[str, list[tuple[int, str]]] = {}
        """Status and message for the next calls that begin so."""
        self.retry_after_seconds: int | None = None
        """What answers ask a client to wait for."""
        self.calls: list[str] = []
        """All that were answered, such as `GET /apis/...`."""
        self.pod_patches: list[Any] = []
        self.page = 500
        """Most objects in a list."""
        self.pods = FakePods()
        self.reviews = FakeReviews()
        self.job_status: Object = {}
        """Of Jobs that are made."""
        self.default_queue: str | None = None
        """Of Jobs that are made without one."""
        self.storage_pod: Object = READY
        """Status of a pod that serves the claim."""
        self.printed: dict[str, dict[str, str]] = {}
        """By pod and container."""
        self.port_forward = FakePortForward()
        self.proxy_error: tuple[int, str] | None = None
        """Status and message instead of a pod's answer."""
        self.gateway_error = 0
        """Status of an answer that is neither the API server's nor the pod's."""
        self.connections: dict[Thread, socket] = {}
        """Of clients, by the thread that serves each."""
        self._claim = claim
        self._served: HttpServer | None = None

    def put(self, path: str, content: Object) -> Object:
        content["metadata"].setdefault("uid", path)
        is_new = path not in self.objects
        self.objects[path] = content
        if path.startswith(f"{PODS}/"):
            self.pods.note("ADDED" if is_new else "MODIFIED", content)
        return content

    def job(self, run: str, suspend: bool = False, queue: str | None = None, **status: Any) -> None:
        """As the workers' Job of a run is."""
        labels = {INSTANCE: run, "app.kubernetes.io/managed-by": "headway"}
        labels["app.kubernetes.io/component"] = "worker"
        if queue is not None:
            labels[QUEUE] = queue
        metadata = {"name": f"headway-{run}", "namespace": "ml", "labels": labels}
        spec = {"parallelism": 2, "completions": 2, "suspend": suspend, "template": {}}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
        path = f"/apis/batch/v1/namespaces/ml/jobs/headway-{run}"
        self.put(path, {**job, "spec": spec, "status": status})

    def coordinator(self, run: str) -> None:
        """As a run's ReplicaSet is."""
        labels = {INSTANCE: run, "app.kubernetes.io/managed-by": "headway"}
        labels["app.kubernetes.io/component"] = "coordinator"
        metadata = {"name": f"headway-{run}-coordinator", "namespace": "ml", "labels": labels}
        made = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata}
        self.put(coordinator_path(run), {**made, "spec": {"replicas": 1, "selector": {}}})

    def named(self, kind: str) -> list[str]:
        """Names of all objects of a kind, such as `jobs`."""
        return [path.rsplit("/", 1)[1] for path in self.objects if path.split("/")[-2] == kind]

    def answer(self, method: str, where: str, content: bytes, headers: Any) -> tuple[int, bytes]:
        path, query = urlsplit(where).path, parse_qs(urlsplit(where).query)
        self.calls.append(f"{method} {path}")
        for call, count in self.failing.items():
            if count > 0 and f"{method} {path}".startswith(call):
                self.failing[call] = count - 1
                return self._status(500, "etcd is busy")
        for call, answers in self.refusing.items():
            if answers and f"{method} {path}".startswith(call):
                return self._status(*answers.pop(0))
        if any(path.startswith(prefix) for prefix in self.forbidden):
            return self._status(403, f"{path} is forbidden: you may not {method} it")
        if path not in self.objects:
            asked = self.reviews.answer(method, path, "dryRun" in query, content)
            if asked is not None:
                return tuple(asked)
        if "/proxy/" in path:
            if self.proxy_error is not None:
                return self._status(*self.proxy_error)
            if self.gateway_error:
                return self.gateway_error, b"<html>Bad gateway</html>"
            return self._proxied(method, where.partition("/proxy")[2], content, headers)
        if path.endswith("/log"):
            return self._log(path.split("/")[-2], query.get("container", [""])[0])
        if path.startswith(f"{PODS}/") and method in ("PATCH", "DELETE"):
            return self._changed_pod(method, path, content)
        if path.endswith("/scale") and path.removesuffix("/scale") not in self.objects:
            return self._status(404, f"{path} not found")
        if method == "PATCH":
            return self._changed(path, json.loads(content))
        if method == "PUT":
            return self._replaced(path, json.loads(content))
        if method == "POST":
            return self._created(path, json.loads(content))
        if method == "DELETE":
            return self._deleted(path, json.loads(content or b"{}"))
        if (found := self.objects.get(path)) is not None:
            return 200, json.dumps(found).encode()
        if path.rsplit("/", 1)[1] in ("jobs", "pods", "events", *self.others):
            return 200, self._listed(path, query)
        return self._status(404, f"{path} not found")

    def _created(self, path: str, content: Object) -> tuple[int, bytes]:
        path = f"{path}/{content['metadata']['name']}"
        if path in self.objects:
            return self._status(409, f"{path} already exists")
        content["metadata"].setdefault("uid", str(uuid4()))
        made = self._patched(path, content)
        made["metadata"].setdefault("creationTimestamp", "2026-11-17T00:00:00Z")
        return 201, json.dumps(made).encode()

    def _replaced(self, path: str, content: Object) -> tuple[int, bytes]:
        """Refused if the object is not the one that was read."""
        version = self.objects[path]["metadata"].get("resourceVersion", "1")
        if content["metadata"].get("resourceVersion", "1") != version:
            return self._status(409, f"{path} has been modified")
        content["metadata"]["resourceVersion"] = str(int(version) + 1)
        return 200, json.dumps(self.put(path, content)).encode()

    def _changed(self, path: str, patch: Object) -> tuple[int, bytes]:
        """Refused if the patch is for another object or version than the one that is there."""
        path = path.removesuffix("/status")
        there = self.objects.get(path, {"metadata": {}})["metadata"]
        asked = patch.get("metadata", {})
        if asked.get("resourceVersion") not in (None, there.get("resourceVersion")):
            return self._status(409, f"{path} has been modified")
        if asked.get("uid") not in (None, there.get("uid")):
            return self._status(409, f"{path} has another uid than {asked['uid']}")
        return 200, json.dumps(self._patched(path, patch)).encode()

    def _patched(self, path: str, patch: Object) -> Object:
        there = self.objects.get(path.removesuffix("/scale"))
        if there is not None:
            version = there["metadata"].get("resourceVersion", "0")
            there["metadata"]["resourceVersion"] = str(int(version) + 1)
            for part in patch.keys() & {"spec", "status"}:
                there[part] = _merged(there.get(part, {}), patch[part])
            if "ownerReferences" in patch.get("metadata", {}):
                there["metadata"]["ownerReferences"] = patch["metadata"]["ownerReferences"]
            annotations = patch.get("metadata", {}).get("annotations", {})
            there["metadata"]["annotations"] = _merged(
                there["metadata"].get("annotations", {}), annotations
            )
            return there
        status = {"status": self.job_status} if patch["kind"] == "Job" else {}
        if patch["kind"] == "Job" and self.default_queue is not None:
            patch["metadata"]["labels"].setdefault(QUEUE, self.default_queue)
        made = self.put(path, {**patch, **status})
        if path.split("/")[-2:-1] == ["jobs"] and "headway-storage-" in path:
            labels = made["metadata"]["labels"]
            pod = {"metadata": {"name": "serving", "labels": labels}, "status": self.storage_pod}
            self.put("/api/v1/namespaces/ml/pods/serving", {**pod, "spec": {"containers": []}})
        if "headway-storage-" in path and made["kind"] == "Secret":
            self._serve(made)
        return made

    def _changed_pod(self, method: str, path: str, content: bytes) -> tuple[int, bytes]:
        """One that is deleted stays as long as it has finalizers."""
        pod = self.objects.get(path)
        if pod is None:
            return self._status(404, f"{path} not found")
        metadata = pod["metadata"]
        if method == "PATCH":
            self.pod_patches.append(json.loads(content))
            patch_pod(pod, self.pod_patches[-1])
        else:
            metadata["deletionTimestamp"] = metadata.get("deletionTimestamp") or DELETED_AT
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            del self.objects[path]
            self.pods.note("DELETED", pod)
        else:
            self.pods.note("MODIFIED", pod)
        return 200, json.dumps(pod).encode()

    def watch(self, where: str) -> Iterator[bytes]:
        query = parse_qs(urlsplit(where).query)
        self.calls.append(f"WATCH {urlsplit(where).path}")
        wanted = _pairs(query, "labelSelector")
        return self.pods.watch(
            int(query["resourceVersion"][0]),
            wanted,
        )

    def _serve(self, secret: Object) -> None:
        from base64 import b64decode

        key = b64decode(secret["data"]["key"]).decode()
        resources = ServedClaim(self._claim, key, SystemClock()).resources
        self._start_pod({"/healthz": lambda: (TEXT, b"ok\n")}, resources)

    def serve_pages(self, pages: Pages, resources: Mapping[str, Resource] | None = None) -> None:
        """As the pod does that is asked by port-forward or proxy."""
        if self._served is not None:
            self._served.__exit__()
        self._start_pod(pages, resources or {})

    def _start_pod(self, pages: Pages, resources: Mapping[str, Resource]) -> None:
        self._served = HttpServer(bound_to("127.0.0.1", 0), pages, SystemClock(), resources)
        self._served.__enter__()

    def _deleted(self, path: str, options: Object) -> tuple[int, bytes]:
        gone = self.objects.get(path)
        if gone is None:
            return self._status(404, f"{path} not found")
        for part, wanted in options.get("preconditions", {}).items():
            if wanted != gone["metadata"].get(part):
                return self._status(409, f"{path} has another {part} than {wanted}")
        del self.objects[path]
        run = gone["metadata"]["labels"][INSTANCE]
        for other, one in list(self.objects.items()):
            labels = one["metadata"].get("labels", {})
            # A pod that marks a lost machine has no kubelet that would end it.
            if labels.get(INSTANCE) == run and SUSPECT not in labels:
                del self.objects[other]
        return self._status(200, "deleted")

    def _listed(self, path: str, query: dict[str, list[str]]) -> bytes:
        wanted = _pairs(query, "labelSelector")
        fields = _pairs(query, "fieldSelector")
        phase, name = fields.get("status.phase", ""), fields.get("metadata.name", "")
        items = [
            one
            for place, one in self.objects.items()
            if place.startswith(f"{path}/")
            and wanted.items() <= one["metadata"].get("labels", {}).items()
            and phase in ("", one["status"].get("phase"))
            and name in ("", one["metadata"]["name"])
        ]
        if path == PODS:
            self.pods.num_lists += 1
        start = int(query.get("continue", ["0"])[0])
        end = start + min(self.page, int(query.get("limit", [str(self.page)])[0]))
        metadata = {"resourceVersion": str(self.pods.version)}
        if end < len(items):
            metadata["continue"] = str(end)
        return json.dumps({"metadata": metadata, "items": items[start:end]}).encode()

    def _proxied(self, method: str, where: str, content: bytes, headers: Any) -> tuple[int, bytes]:
        assert self._served is not None, STORAGE
        connection = HTTPConnection("127.0.0.1", self._served.port, timeout=10)
        kept = {name: headers[name] for name in ("X-Headway-Key", "Range") if headers[name]}
        connection.request(method, where, content, kept)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def refusal_to_forward(self, where: str) -> tuple[int, bytes] | None:
        path = urlsplit(where).path
        self.calls.append(f"FORWARD {path}")
        if any(path.startswith(prefix) for prefix in self.forbidden):
            return self._status(403, f"{path} is forbidden: you may not get it")
        if self.port_forward.refusal is not None:
            return self._status(*self.port_forward.refusal)
        if path.removesuffix("/portforward") not in self.objects:
            return self._status(404, f"{path} not found")
        return None

    def forward(self, connection: socket, key: str) -> None:
        assert self._served is not None, STORAGE
        self.port_forward.serve(connection, key, self._served.port)

    def end(self) -> None:
        """No thread is left: some tests count them."""
        for thread, connection in list(self.connections.items()):
            with suppress(OSError):
                connection.shutdown(SHUT_RDWR)
            thread.join(END_SECONDS)
        if self._served is not None:
            self._served.__exit__()

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
        status: Object = {"kind": "Status", "code": code, "message": message}
        if self.retry_after_seconds is not None:
            status["details"] = {"retryAfterSeconds": self.retry_after_seconds}
        return code, json.dumps(status).encode()


def coordinator_path(run: str) -> str:
    return f"/apis/apps/v1/namespaces/ml/replicasets/headway-{run}-coordinator"


def _merged(there: Object, patch: Object) -> Object:
    """As a merge patch does it."""
    merged = dict(there)
    for key, value in patch.items():
        if isinstance(value, dict):
            value = _merged(merged.get(key) or {}, value)
        merged[key] = value
    return {key: value for key, value in merged.items() if value is not None}


def _pairs(query: dict[str, list[str]], selector: str) -> dict[str, str]:
    """Labels or fields that are asked for."""
    pairs = ",".join(query.get(selector, [])).split(",")
    return dict(pair.split("=") for pair in pairs if pair)


@contextmanager
def fake_kube(folder: Path, tls: SSLContext | None = None) -> Iterator[FakeKube]:
    """With `folder/kubeconfig` for it; the claim is `folder/claim`."""
    (folder / "claim").mkdir()
    kube = FakeKube(folder / "claim")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer is one packet

        def setup(self) -> None:
            super().setup()
            kube.connections[current_thread()] = self.connection

        def finish(self) -> None:
            super().finish()
            del kube.connections[current_thread()]

        def _do(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if kube.is_away:
                kube.num_cut += 1
                self._cut()
                return
            if "watch=true" in self.path:
                self._watch()
                return
            if "/portforward" in self.path:
                self._forward()
                return
            self._answer(*kube.answer(self.command, self.path, content, self.headers))

        def _forward(self) -> None:
            refusal = kube.refusal_to_forward(self.path)
            if refusal is not None:
                self._answer(*refusal)
                return
            kube.forward(self.connection, self.headers["Sec-WebSocket-Key"])
            self._cut()

        def _answer(self, code: int, answer: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def _watch(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            try:
                for line in kube.watch(self.path):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")
            except (WatchCut, OSError):
                self._cut()

        def _cut(self) -> None:
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(SHUT_RDWR)

        do_GET = do_PATCH = do_DELETE = do_PUT = do_POST = _do

        def log_message(self, *_: object) -> None:
            """Not in the middle of what a test prints."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    address = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    (folder / "kubeconfig").write_text(CONFIG.format(address=address))
    try:
        yield kube
    finally:
        kube.is_away = True
        kube.port_forward.is_over.set()
        kube.pods.end_watches(is_cut=True)
        server.shutdown()
        server.server_close()
        kube.end()
