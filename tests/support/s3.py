"""A real S3 server for tests: versitygw over a folder, on the loopback."""

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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def s3_server(folder: Path) -> Iterator[int]:
    """Its port. Credentials are `test` and `test-secret`; the bucket `bucket` is there."""
    (folder / "bucket").mkdir(parents=True)
    port = free_port()
    process = subprocess.Popen(
        [
            str(versitygw()),
            *("--access", "test", "--secret", "test-secret", "--port", f"127.0.0.1:{port}"),
            *("posix", str(folder)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for("the S3 server", lambda: _answers(port), seconds=20)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=10)


def credentials(port: int) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
