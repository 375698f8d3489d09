"""What a worker's pod does before its node begins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from headway.clock import SystemClock
from headway.kube.names import FETCHED
from headway.launch.compiled_code import machine_kind, pack
from headway.launch.packages import python_here
from headway.member.protocol.keys import new_key
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, Resolved, resolve
from headway.state.run_directory import RunDirectory
from headway.state.store import Store
from support.s3 import credentials
from support.waiting import wait_for

SLOW_IMPORT = """
import sys
sys.path.insert(0, sys.argv[1])
from headway.cli.main import main
main()
"""
SLOW = """
import os, time
open(os.environ["BEGUN"], "w").close()
for _ in range(600):  # imports are many calls: a signal just before a single one would wait for it
    time.sleep(0.1)
"""


@contextmanager
def node_of(folder: Path, resolved: Resolved, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """As a pod runs it; `resolved` is what the run's ConfigMap has."""
    (folder / "spec.json").write_text(resolved.model_dump_json(by_alias=True, exclude_none=True))
    places = {
        "HEADWAY_SPEC": str(folder / "spec.json"),
        "HEADWAY_RUN_DIRECTORY": resolved.run_directory,
        "HEADWAY_LAUNCH": "a-launch",
        "HEADWAY_COORDINATOR": "127.0.0.1:1",
        "HEADWAY_KEY": str(folder / "key"),
        "HEADWAY_POD": "it-0-aaaaa",
        "JOB_COMPLETION_INDEX": "0",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "headway.cli.main", "node"],
        env={**os.environ, **places, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as node:
        try:
            yield node
        finally:
            node.kill()


@pytest.fixture
def resolved(tmp_path: Path) -> Resolved:
    """With code of its own, as a target has it."""
    (tmp_path / "run.yaml").write_text(
        "version: 1\nname: it\nmodel: {type: gpt2}\nbatch: {global: 4}\ndata: {train: prepared}\n"
    )
    digest = "2-" + "0" * 64
    return resolve(
        load_run(tmp_path / "run.yaml", [f"code={{path: {FETCHED}/code/{digest}}}"]),
        Hardware(cores=2, cuda_devices=0),
        nodes=1,
        parameters=None,
        train_set=tmp_path,
        validation_sets={},
    )


def test_code_that_others_have_put_into_the_storage_is_not_run(
    tmp_path: Path, resolved: Resolved
) -> None:
    """Neither its list there, nor the spec that is there, says what code it is."""
    directory = RunDirectory.create(resolved.run_directory, SystemClock())
    directory.write_spec(resolved.model_copy(update={"folder": "/elsewhere"}))
    assert resolved.run.code is not None
    name = resolved.run.code.path.removeprefix(f"{FETCHED}/")
    storage = Store(tmp_path / "storage")
    storage.write(f"{name}/mine.py", b"import os")
    storage.write(f"{name}.whole", b'{"mine.py": 9}')
    with node_of(tmp_path, resolved, HEADWAY_STORAGE=storage.root) as node:
        said, error = node.communicate(timeout=30)
    assert (node.returncode, said) == (1, f"fetching {name}\n")
    assert error.startswith(
        f"error: {storage.location(name)}.whole does not match what was uploaded"
    )


def test_packages_for_another_python_are_refused_by_name(
    tmp_path: Path, resolved: Resolved
) -> None:
    worker = python_here().model_copy(update={"python": "3.99"})
    packages = {"packages": f"{FETCHED}/packages/2-{'0' * 64}/site", "packages_for": worker}
    resolved = resolved.model_copy(update=packages)
    RunDirectory.create(resolved.run_directory, SystemClock()).write_spec(resolved)
    with node_of(tmp_path, resolved, HEADWAY_STORAGE=str(tmp_path / "storage")) as node:
        said, error = node.communicate(timeout=30)
    assert (node.returncode, said) == (2, "")
    have = python_here().python
    assert error == (
        f"error: code.requirements were resolved for Python 3.99, and this image has Python {have}"
        f"\nhint: in the target: python: {have}, then headway run --on TARGET again\n"
    )


def test_a_library_of_nccls_that_the_image_lacks(tmp_path: Path, resolved: Resolved) -> None:
    resolved = resolved.model_copy(update={"device": "cuda"})
    with node_of(tmp_path, resolved, NCCL_NET="AWS Libfabric") as node:
        said, error = node.communicate(timeout=30)
    assert (node.returncode, said) == (2, "")
    assert error == (
        "error: NCCL_NET is AWS Libfabric, and NCCL needs libnccl-net.so for it, which this image "
        "lacks\nhint: headway image build --push REGISTRY/NAME --on TARGET; or another NCCL_NET in "
        "pod.env of the target\n"
    )


def test_asked_to_leave_while_it_waits_for_its_storage(tmp_path: Path, resolved: Resolved) -> None:
    """It goes with the code of one that has left, and not minutes later."""
    with node_of(tmp_path, resolved) as node:
        assert node.stdout is not None
        assert "waiting for the run directory" in node.stdout.readline()
        node.send_signal(signal.SIGTERM)
        assert node.wait(10) == 6


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[int]]:
    """The status with which an S3 store answers everything."""
    status = [503]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status[0])
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        for name, value in credentials(server.server_port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        Thread(target=server.serve_forever, daemon=True).start()
        yield status
        server.shutdown()


@pytest.mark.long("waits for a store, as unit/train/test_outages.py does with a fake one")
def test_a_store_that_answers_errors_is_waited_for_and_one_that_refuses_is_not(
    tmp_path: Path, resolved: Resolved, answer: list[int]
) -> None:
    with node_of(tmp_path, resolved, HEADWAY_RUN_DIRECTORY="s3://bucket/runs/it") as node:
        assert node.stdout is not None
        assert "waiting for the run directory: s3://bucket/runs/it" in node.stdout.readline()
        answer[0] = 403
        assert node.wait(30) == 2
        assert node.stderr is not None
        assert "s3://bucket/runs/it cannot be read: Forbidden" in node.stderr.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="a first process needs root")
def test_asked_to_leave_while_it_imports(tmp_path: Path) -> None:
    """As the first process of a pod, which the kernel would let ignore it."""
    (tmp_path / "typer.py").write_text(SLOW)
    begun = tmp_path / "begun"
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", sys.executable, "-c", SLOW_IMPORT, str(tmp_path)],
        env={**os.environ, "BEGUN": str(begun)},
    ) as outside:
        wait_for("the import", begun.exists, 20)
        (first,) = (
            int(pid)
            for pid in Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
        )
        os.kill(first, signal.SIGTERM)
        assert outside.wait(10) == 143


@pytest.mark.trap(15)
@pytest.mark.parametrize("writer", ["this run", "another run"])
def test_compiled_code_is_fetched_if_this_run_has_written_it(
    tmp_path: Path, resolved: Resolved, writer: str
) -> None:
    memory = resolved.run.memory.model_copy(update={"compile": True})
    run = resolved.run.model_copy(update={"code": None, "memory": memory})
    plain = resolved.model_copy(update={"run": run})
    directory = RunDirectory.create(plain.run_directory, SystemClock())
    directory.write_spec(plain)
    keys = {"this run": new_key(), "another run": new_key()}
    (tmp_path / "key").write_text(keys["this run"])
    (tmp_path / "library.so").write_text("compiled")
    name, files = f"compiled/{machine_kind()}", {"library.so": tmp_path / "library.so"}
    directory.store.write(name, pack(files, bytes.fromhex(keys[writer]), name))
    with node_of(tmp_path, plain, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache")) as node:
        assert node.stdout is not None
        line = node.stdout.readline()
    if writer == "this run":
        assert line.startswith("fetched compiled code: 1 files")
    else:
        assert f"{name} is not used: it was changed, or written by an earlier start" in line
    assert (tmp_path / "cache" / "library.so").exists() == (writer == "this run")
