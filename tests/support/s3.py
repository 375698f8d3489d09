"""A real S3 server for tests: versitygw over a folder."""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil

from support.waiting import wait_for

VERSION = "v1.8.0"
REPOSITORY = Path(__file__).parents[2]
READY_MADE = REPOSITORY.parent / "shared" / "kube" / "bin"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headway-tests"


def versitygw() -> Path:
    """The server's binary: named by HEADWAY_TEST_VERSITYGW, ready-made, or built with Go."""
    named = os.environ.get("HEADWAY_TEST_VERSITYGW")
    if named:
        return Path(named)
    binary = CACHE / f"versitygw-{VERSION}"
    if binary.is_file():
        return binary
    CACHE.mkdir(parents=True, exist_ok=True)
    packed = READY_MADE / "versitygw.xz"
    if packed.is_file():
        content = packed.read_bytes()
        sums = (READY_MADE / "SHA256SUMS").read_text()
        assert hashlib.sha256(content).hexdigest() in sums, f"{packed} is not what it should be"
        made = CACHE / f"versitygw.{os.getpid()}"
        made.write_bytes(lzma.decompress(content))
    else:
        go = shutil.which("go")
        assert go, "versitygw needs Go to be built, or HEADWAY_TEST_VERSITYGW"
        module = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
        environment = {**os.environ, "GOBIN": str(CACHE), "CGO_ENABLED": "0"}
        subprocess.run([go, "install", module], env=environment, check=True, timeout=600)
        made = CACHE / "versitygw"
    made.chmod(0o755)
    made.replace(binary)
    return binary


LOOPBACK = "127.0.0.1"
KEYS = ("test", "test-secret")
REGION = "us-east-1"


def free_port(address: str = LOOPBACK) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def _has_ended_or_listens(process: subprocess.Popen[bytes], port: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        connections = psutil.Process(process.pid).net_connections("tcp")
        listening = [one for one in connections if one.status == psutil.CONN_LISTEN]
        return process.poll() is not None or port in [one.laddr.port for one in listening]
    return True


@contextmanager
def s3_server(
    folder: Path,
    address: str = LOOPBACK,
    keys: tuple[str, str] = KEYS,
    region: str = REGION,
    choose_port: Callable[[str], int] = free_port,
) -> Iterator[int]:
    """Start an S3 server over `folder` and yield its port. It accepts `keys` and serves one bucket,
    `bucket`."""
    (folder / "bucket").mkdir(parents=True)
    access, secret = keys
    with tempfile.TemporaryFile("w+") as log:
        for _ in range(5):
            port = choose_port(address)
            process = subprocess.Popen(
                [
                    str(versitygw()),
                    *("--access", access, "--secret", secret, "--port", f"{address}:{port}"),
                    *("--region", region, "posix", str(folder)),
                ],
                stdout=log,
                stderr=log,
            )
            try:
                # Another test may have taken the port in the meantime. Then that one answers, and
                # this server has ended.
                wait_for("the S3 server", partial(_has_ended_or_listens, process, port), seconds=20)
                if process.poll() is None:
                    yield port
                    return
            finally:
                process.terminate()
                process.wait(timeout=10)
        log.seek(0)
        raise AssertionError(f"the S3 server does not start: {log.read()}")


def credentials(
    port: int,
    address: str = LOOPBACK,
    keys: tuple[str, str] = KEYS,
    region: str = REGION,
) -> dict[str, str]:
    access, secret = keys
    return {
        "AWS_ACCESS_KEY_ID": access,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_DEFAULT_REGION": region,
        "AWS_ENDPOINT_URL": f"http://{address}:{port}",
    }
