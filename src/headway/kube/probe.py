"""What a probe's pod runs: it does what `headway target check` asks of it, and answers what it saw.

    python3 probe.py PORT

It needs the standard library only, for it runs in the workers' image, from a ConfigMap; the
coordinator's pod runs the same server with more tasks (`headway probe`). Answers are JSON
(`kube/probe_protocol.py`). Every task ends by itself before the client's patience does.

If nobody asks anything, it does by itself what needs no other pod, and prints it: a client that
cannot reach the pod reads the log.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import hashlib
import hmac
import json
import os
import platform
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Content = dict[str, Any]
Task = Callable[[Content], Content]

KEY_HEADER = "X-Headway-Key"
"""The API server takes Authorization for itself."""
MOST_BYTES = 2**20
ALONE_SECONDS = 25.0
ALONE = "alone: "
"""Begins the line that it prints if nobody asks."""
LISTEN_SECONDS = 120.0
GREETING = b"headway probe\n"
PART_BYTES = 2**18
MEGABYTE = 10**6
NAME_SECONDS = 12.0
"""For all attempts to resolve a name."""
HEADWAY_SECONDS = 17.0
CLOCK_OFFSET = "PROBE_CLOCK_OFFSET_SECONDS"
"""Seconds that this clock pretends to be wrong by: for tests, which cannot change the clock of one
container."""


# What is here


def facts(_: Content) -> Content:
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "torch": installed_version("torch"),
        "headway": installed_version("headway"),
        "lacking": lacking(),
        "nvidia": len([one for one in glob.glob("/dev/nvidia*") if re.search(r"nvidia\d+$", one)]),
        "nvidia_driver": len(glob.glob("/proc/driver/nvidia/gpus/*")),
        "amd": len(glob.glob("/dev/dri/renderD*")) if os.path.exists("/dev/kfd") else 0,
        "fabric": len(glob.glob("/dev/infiniband/uverbs*")),
        "nccl_plugin_error": nccl_plugin_error(),
        "user": os.getuid(),
        "time": time.time() + float(os.environ.get(CLOCK_OFFSET, "0")),
    }


def installed_version(name: str) -> Any:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def nccl_plugin_error() -> str | None:
    """Why NCCL's network plugin cannot be loaded; without it, NCCL uses TCP and says nothing."""
    try:
        ctypes.CDLL("libnccl-net.so")
    except OSError as error:
        return str(error)
    return None


def lacking() -> list[str]:
    """What keeps Headway from being brought into this image, by the program that would do it; it is
    in the pod if the image is the user's own."""
    folder = os.environ.get("HEADWAY_PROBE_BOOTSTRAP", "")
    if not folder:
        return []
    sys.path.insert(0, folder)
    try:
        import bootstrap  # type: ignore[import-not-found]
    finally:
        sys.path.remove(folder)
    found: list[str] = bootstrap.problems(bootstrap.read_plan(folder), bootstrap.this_image())
    return found


# Names


def resolve(asked: Content) -> Content:
    """A name several times, since each attempt may ask another server."""
    answer: Content = {"milliseconds": [], "addresses": [], "error": None, "servers": servers()}
    looking = threading.Thread(
        target=_resolve, args=(asked["name"], asked["times"], answer), daemon=True
    )
    looking.start()
    looking.join(NAME_SECONDS)
    if looking.is_alive() and not answer["milliseconds"]:
        answer["error"] = f"no answer within {NAME_SECONDS:.0f} s"
    return dict(answer)


def _resolve(name: str, times: int, answer: Content) -> None:
    for _ in range(times):
        began = time.monotonic()
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError as error:
            answer["error"] = str(error)
            return
        answer["addresses"] = sorted({str(one[4][0]) for one in found})
        answer["milliseconds"] = [*answer["milliseconds"], 1000 * (time.monotonic() - began)]


def servers() -> list[str]:
    with open("/etc/resolv.conf") as file:  # the kubelet makes it
        words = [line.split() for line in file]
    return [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"]


# Traffic


def listen(asked: Content) -> Content:
    """On as many ports as asked for, of those that the system gives out, as collectives do; for a
    while."""
    return {"ports": [listening(0).getsockname()[1] for _ in range(asked["num_ports"])]}


def listening(port: int) -> socket.socket:
    """Greets whoever connects, takes what they send, and says how much it was."""
    listener = bound(port)
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    return listener


def bound(port: int) -> socket.socket:
    """For both families, where there are two."""
    try:
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError):
        return socket.create_server(("", port))


def _accept(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_take, args=(connection,), daemon=True).start()


def _take(connection: socket.socket) -> None:
    total, place = 0, bytearray(PART_BYTES)
    try:
        with connection:
            connection.settimeout(LISTEN_SECONDS)
            connection.sendall(GREETING)
            while True:
                count = connection.recv_into(place)
                if not count:
                    break
                total += count
            connection.sendall(struct.pack("!Q", total))
    except OSError:
        return  # the other side says what went wrong


def connect(asked: Content) -> Content:
    """To each port, all at once. A probe greets, unless the port is among the `silent`: a proxy in
    between may accept connections that go nowhere."""
    host, ports, seconds = asked["host"], asked["ports"], asked["seconds"]

    def one(port: int) -> Content:
        return _connect(host, port, seconds, port not in asked["silent"])

    with ThreadPoolExecutor(len(ports)) as threads:
        return {"ports": list(threads.map(one, ports))}


def _connect(host: str, port: int, seconds: float, greets: bool) -> Content:
    began = time.monotonic()
    try:
        with socket.create_connection((host, port), timeout=seconds) as connection:
            if greets and _received(connection, len(GREETING)) != GREETING:
                return {"port": port, "milliseconds": None, "error": "something else answers there"}
    except TimeoutError:
        return {"port": port, "milliseconds": None, "error": f"no answer within {seconds:g} s"}
    except OSError as error:
        return {"port": port, "milliseconds": None, "error": error.strerror or str(error)}
    return {"port": port, "milliseconds": 1000 * (time.monotonic() - began), "error": None}


def send(asked: Content) -> Content:
    """As much as goes through one connection in that time."""
    block, seconds = bytes(PART_BYTES), asked["seconds"]
    try:
        with socket.create_connection((asked["host"], asked["port"]), timeout=5.0) as connection:
            _received(connection, len(GREETING))
            began = time.monotonic()
            while time.monotonic() - began < seconds:
                connection.sendall(block)
            connection.shutdown(socket.SHUT_WR)
            (count,) = struct.unpack("!Q", _received(connection, 8))
            return {"num_bytes": count, "seconds": time.monotonic() - began, "error": None}
    except (OSError, struct.error) as error:
        return {"num_bytes": 0, "seconds": seconds, "error": f"{type(error).__name__}: {error}"}


def _received(connection: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        part = connection.recv(count - len(content))
        if not part:
            break
        content += part
    return content


# A claim


def claim_write(asked: Content) -> Content:
    """Everything that a run does to files, in a folder of its own below the claim."""
    root, folder = asked["root"], os.path.join(asked["root"], asked["folder"])
    steps: dict[str, Any] = {}
    answer: Content = {"steps": steps, "num_bytes": 0, "seconds": 0.0, "sha256": ""}
    found = os.stat(root)
    answer["owner"] = f"{found.st_uid}:{found.st_gid}"
    answer["mode"] = oct(found.st_mode & 0o7777)[2:]
    first, second = os.path.join(folder, "written"), os.path.join(folder, "renamed")
    digest, block = hashlib.sha256(), os.urandom(MEGABYTE)

    def write() -> None:
        began = time.monotonic()
        with open(first, "wb") as file:
            while answer["num_bytes"] < asked["megabytes"] * MEGABYTE:
                file.write(block)
                digest.update(block)
                answer["num_bytes"] += len(block)
                if time.monotonic() - began > asked["seconds"]:
                    break
            file.flush()
            os.fsync(file.fileno())
        answer["seconds"] = time.monotonic() - began

    def append() -> None:
        with open(second, "ab") as file:
            file.write(b"more")
        digest.update(b"more")

    tried: list[tuple[str, Callable[[], Any]]] = [
        ("make a folder", lambda: os.makedirs(folder, exist_ok=True)),
        ("write", write),
        ("link", lambda: os.link(first, os.path.join(folder, "linked"))),
        ("rename", lambda: os.replace(first, second)),
        ("append", append),
    ]
    for name, step in tried:
        try:
            step()
        except OSError as error:
            steps[name] = error.strerror or str(error)
            break
        steps[name] = None
    answer["sha256"] = digest.hexdigest()
    return answer


def claim_read(asked: Content) -> Content:
    """What another pod has written: when it is seen here, and how fast it is read."""
    path = os.path.join(asked["root"], asked["folder"], "renamed")
    began, num_bytes, digest = time.monotonic(), 0, ""
    while True:
        try:
            digest, num_bytes, seconds = _read(path)
            if digest == asked["sha256"]:
                break
            error = "it has other content here"
        except OSError as wrong:
            error = wrong.strerror or str(wrong)
        if time.monotonic() - began > asked["seconds"]:
            return {"waited": 0.0, "num_bytes": num_bytes, "seconds": 0.0, "error": error}
        time.sleep(0.1)
    waited = max(0.0, time.monotonic() - began - seconds)
    return {"waited": waited, "num_bytes": num_bytes, "seconds": seconds, "error": None}


def _read(path: str) -> tuple[str, int, float]:
    began, digest, total = time.monotonic(), hashlib.sha256(), 0
    with open(path, "rb") as file:
        while True:
            part = file.read(MEGABYTE)
            if not part:
                return digest.hexdigest(), total, time.monotonic() - began
            digest.update(part)
            total += len(part)


def claim_create(asked: Content) -> Content:
    """A name that only one of all pods may get, in both ways that there are."""
    folder = os.path.join(asked["root"], asked["folder"])
    first: dict[str, bool] = {}
    try:
        mine = os.path.join(folder, "of-" + asked["who"])
        with open(mine, "wb") as file:
            file.write(asked["who"].encode())
        try:
            os.link(mine, os.path.join(folder, "only-one-links"))
            first["link"] = True
        except FileExistsError:
            first["link"] = False
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            os.close(os.open(os.path.join(folder, "only-one-creates"), flags, 0o666))
            first["O_EXCL"] = True
        except FileExistsError:
            first["O_EXCL"] = False
    except OSError as error:
        return {"first": first, "error": error.strerror or str(error)}
    return {"first": first, "error": None}


def claim_remove(asked: Content) -> Content:
    folder = os.path.join(asked["root"], asked["folder"])
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.dirname(asked["folder"]):
        with contextlib.suppress(OSError):  # another check may be under way
            os.rmdir(os.path.dirname(folder))
    return {"is_gone": not os.path.exists(folder)}


# What needs Headway, if this image has it


def with_headway(asked: Content) -> Content:
    """A task of `headway probe`, in a process of its own; its error if there is no Headway."""
    command = ["headway", "probe", asked["run"], json.dumps(asked["content"])]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=HEADWAY_SECONDS, check=False
        )
    except FileNotFoundError:
        return {"answer": None, "error": "the image has no Headway"}
    except subprocess.TimeoutExpired:
        return {"answer": None, "error": f"no answer within {HEADWAY_SECONDS:.0f} s"}
    if done.returncode:
        return {"answer": None, "error": done.stderr.strip()[-300:] or "no reason given"}
    return {"answer": json.loads(done.stdout), "error": None}


TASKS: dict[str, Task] = {
    "facts": facts,
    "resolve": resolve,
    "listen": listen,
    "connect": connect,
    "send": send,
    "claim-write": claim_write,
    "claim-read": claim_read,
    "claim-create": claim_create,
    "claim-remove": claim_remove,
    "with-headway": with_headway,
}


# The server


class ProbeServer:
    """Answers POST /TASK of whoever has the key, and GET /healthz."""

    def __init__(self, port: int, key: str, tasks: dict[str, Task], server: str = "probe") -> None:
        self.is_asked = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(200 if self.path == "/healthz" else 404, {})

            def do_POST(self) -> None:
                given = self.headers.get(KEY_HEADER, "")
                if not hmac.compare_digest(given.encode(), key.encode()):
                    self.close_connection = True
                    self._answer(403, {"error": "this needs the key"})
                    return
                length = int(self.headers.get("Content-Length") or 0)
                if length > MOST_BYTES:
                    self.close_connection = True
                    self._answer(413, {"error": f"at most {MOST_BYTES} bytes"})
                    return
                content = json.loads(self.rfile.read(length) or b"{}")
                outer.is_asked.set()
                task = tasks.get(self.path.strip("/"))
                if task is None:
                    self._answer(404, {"error": f"no task {self.path}"})
                    return
                try:
                    answer, status = task(content), 200
                except Exception as error:  # noqa: BLE001 - the client says it
                    answer, status = {"error": f"{type(error).__name__}: {error}"}, 500
                self._answer(status, answer)

            def _answer(self, status: int, content: Content) -> None:
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def version_string(self) -> str:
                return server

            def log_message(self, *_: object) -> None:
                """The log is for what it found alone."""

        self._http = _DualStack(("", port), Handler)
        self.port = self._http.server_address[1]

    def start(self) -> ProbeServer:
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


class _DualStack(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        self.socket.close()
        self.socket = bound(int(self.server_address[1]))
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "probe", self.socket.getsockname()[1]


def serve(port: int, tasks: dict[str, Task], alone: Callable[[], Content], server: str) -> int:
    """Until SIGTERM. What was written to a claim goes with it, also if the client was killed."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        # As the first process of a pod it has no default handler.
        signal.signal(number, lambda *_: over.set())
    with open(os.environ["HEADWAY_KEY"]) as file:
        key = file.read().strip()
    answering = ProbeServer(port, key, tasks, server).start()
    print(f"probe: listens on port {answering.port}", flush=True)
    deadline = time.monotonic() + ALONE_SECONDS
    while not over.wait(0.5):
        if deadline and (answering.is_asked.is_set() or time.monotonic() > deadline):
            deadline = 0.0
            if not answering.is_asked.is_set():
                print(ALONE + json.dumps(alone()), flush=True)
    root, folder = (os.environ.get(f"HEADWAY_PROBE_{one}", "") for one in ("ROOT", "FOLDER"))
    if root and folder:
        claim_remove({"root": root, "folder": folder})
    return 0


def alone() -> Content:
    """What can be found without another pod."""
    found: Content = {"facts": facts({})}
    if name := os.environ.get("HEADWAY_PROBE_SERVICE"):
        found["resolve"] = resolve({"name": name, "times": 5})
    return found


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1]), TASKS, alone, "probe"))
