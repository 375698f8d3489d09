"""A real S3 server for tests: versitygw over a folder."""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def _answers(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex((address, port)) == 0


@contextmanager
def s3_server(
    folder: Path,
    address: str = LOOPBACK,
    keys: tuple[str, str] = KEYS,
    region: str = REGION,
) -> Iterator[int]:
    """Its port. It takes these keys, and the bucket `bucket` is there."""
    (folder / "bucket").mkdir(parents=True)
    port = free_port(address)
    access, secret = keys
    process = subprocess.Popen(
        [
            str(versitygw()),
            *("--access", access, "--secret", secret, "--port", f"{address}:{port}"),
            *("--region", region, "posix", str(folder)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for("the S3 server", lambda: _answers(address, port), seconds=20)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=10)


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
