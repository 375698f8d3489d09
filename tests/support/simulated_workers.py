"""Real worker programs on the simulated device, or on the CPU, forked from a process that has
imported torch and transformers but nothing of Headway: a worker imports Headway itself, in a second
or two, and may so run a copy of src with a mistake in it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

DEADLINE_SECONDS = 120.0
if TYPE_CHECKING:
    from support.simulated_streams import Fault, Launch

PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.utils.tensorboard",
    "pyarrow",
    "pydantic",
    "msgspec",
    "tokenizers",
    "transformers.models.auto.modeling_auto",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.bert.modeling_bert",
    "transformers.models.llama.modeling_llama",
    "support.simulated_device",
)


@dataclass(frozen=True)
class WorkerEnd:
    code: int
    log: str
    record: dict[str, Any]
    """What it did on the simulated device, as `support.simulated_device.main` writes it; empty if
    it did not come to its end, or was on the CPU."""

    @property
    def launches(self) -> list[Launch]:
        """Its collectives."""
        from support.simulated_streams import Launch

        found = self.record["launches"]
        return [Launch(one["op"], tuple(one["ranks"]), one["num_bytes"]) for one in found]


class WorkerPrograms:
    """The forking process. `start` runs the workers of one start of a run to their end."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.simulated_workers"],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def start(
        self,
        resolved: Any,
        device: str,
        source: Path | None = None,
        fault: Fault | None = None,
    ) -> list[WorkerEnd]:
        """How each worker ended. `source`: a copy of src to run instead of ours."""
        from headway.clock import SystemClock
        from headway.state.run_directory import RunDirectory
        from support.chains import launched

        if device == "sim":  # its devices have no number and no name to be asked for
            resources = resolved.run.resources.model_copy(update={"accelerators": None})
            run = resolved.run.model_copy(update={"resources": resources})
            resolved = resolved.model_copy(update={"device": device, "run": run})
        directory = RunDirectory.create(resolved.run_directory, SystemClock())
        directory.write_spec(resolved)
        generation = launched(directory, launch := uuid4().hex)
        with tempfile.TemporaryDirectory() as scratch:
            environments = [
                {
                    "HEADWAY_RANK": str(rank),
                    "HEADWAY_DEVICE": "0" if device == "sim" else str(rank),
                    "HEADWAY_TEST_RECORD": f"{scratch}/{rank}.record",
                    "HEADWAY_STORE": f"{scratch}/store",
                    "HEADWAY_LAUNCH": launch,
                    "HEADWAY_SPEC": str(directory.store.path("spec.json")),
                    "HEADWAY_GENERATION": str(generation),
                    **({} if fault is None else {"HEADWAY_TEST_FAULT": json.dumps(asdict(fault))}),
                }
                for rank in range(resolved.num_workers)
            ]
            logs = [f"{scratch}/{rank}.log" for rank in range(resolved.num_workers)]
            request = {
                "source": str(source) if source else None,
                "simulated": device == "sim",
                "directory": directory.location,
                "environments": environments,
                "logs": logs,
            }
            codes = self._ask(request)
            return [
                WorkerEnd(code, Path(log).read_text(), _record(Path(log).with_suffix(".record")))
                for code, log in zip(codes, logs, strict=True)
            ]

    def _ask(self, request: dict[str, Any]) -> list[int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], DEADLINE_SECONDS)
        assert ready, f"the workers did not end within {DEADLINE_SECONDS:.0f} s"
        codes: list[int] = json.loads(self._process.stdout.readline())
        return codes


def _record(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.exists() else {}


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in PRELOADED:
        import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        pids = [
            _fork(request, environment, log)
            for environment, log in zip(request["environments"], request["logs"], strict=True)
        ]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(codes), file=answers, flush=True)


def _fork(request: dict[str, Any], environment: dict[str, str], log: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(os.pipe()[0], 0)  # never at its end: that would be a request to stop
        sys.stdin = open(0)  # noqa: SIM115
        os.environ.update(environment)
        if request["source"] is not None:
            sys.path.insert(0, request["source"])
        program = "support.simulated_device" if request["simulated"] else "headway.train.__main__"
        code = import_module(program).main([request["directory"]])
    except BaseException:  # noqa: BLE001 - whatever it is, the test must show it
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
