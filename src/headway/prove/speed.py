"""Tokens/s and MFU of three presets, beside a bare loop, DDP and FSDP2 in the same processes; and a
run of one of them beside its plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headway.clock import SystemClock
from headway.launch.local_run import LOOPBACK
from headway.memory_limits import byte_size
from headway.plan.accelerators import find_device
from headway.prove.devices import Devices
from headway.prove.judge import ProofFailed
from headway.prove.program import Program
from headway.prove.report import CheckResult
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, resolve
from headway.state.run_directory import RunDirectory
from headway.worker_environment import DEFAULTS

Baseline = Literal["bare", "ddp", "fsdp2"]
BASELINES: Mapping[Baseline, str] = {"bare": "a bare loop", "ddp": "DDP", "fsdp2": "FSDP2"}
PLANNED_FIGURES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "step_seconds": ("seconds a step", "{:.3f}".format),
    "tokens_per_second": ("tokens/s", "{:,.0f}".format),
    "memory_bytes": ("memory of a device", byte_size),
}
"""How each figure of `headway plan --json` is called and written."""
RANGE = ("value", "low", "high")
"""Numbers of a figure in a plan."""
MEASURED = ("tokens_per_second", "other_tokens_per_second", "ratio", "mfu", "other_mfu", "rounds")
"""Numbers of a comparison that its row has."""
GPU_SECONDS, CPU_SECONDS = 12.0, 6.0
"""Of measuring each preset beside each other loop."""
NEVER = 1_000_000
PLANNED, CPU_PLANNED_STEPS, GPU_PLANNED_STEPS = "planned", 12, 40
RUN_FILE = """\
version: 1
name: {name}
extends: {preset}
data: {{train: {train_set}, sequence_length: {length}}}
batch: {{global: {global_batch}, micro: {micro}}}
train_for: {steps} steps
precision: {precision}
elastic: restart
shard: {shard}
threads: 1
track: []
evaluation: {{every: {never} steps}}
checkpoint: {{every: {never} steps}}
"""


@dataclass(frozen=True)
class SpeedCase:
    preset: str
    length: int
    micro: int
    least_gib: float = 0.0
    """Memory of a device on which Headway's model and the other's fit beside each other: 40 bytes
    a parameter, and the activations of a micro-batch."""
    config: tuple[tuple[str, int], ...] = ()
    """Fields of the model's config that make it small enough for a CPU."""

    @property
    def title(self) -> str:
        return self.preset + (", scaled down" if self.config else "")

    def run_file(
        self,
        name: str,
        train_set: str,
        workers: int,
        precision: str,
        steps: int = NEVER,
        shard: str = "none",
    ) -> str:
        """Return a run file with a micro-batch for each worker, and only the last save."""
        content = RUN_FILE.format(
            name=name,
            preset=self.preset,
            train_set=json.dumps(train_set),
            length=self.length,
            global_batch=self.micro * workers,
            micro=self.micro,
            steps=steps,
            precision=precision,
            shard=shard,
            never=NEVER,
        )
        config = f"model: {{config: {json.dumps(dict(self.config))}}}\n" if self.config else ""
        return content + config


ON_GPU = (
    SpeedCase("tiny", 128, 16),
    SpeedCase("gpt2-small", 1024, 8, least_gib=14.0),
    SpeedCase("gpt2-medium", 1024, 4, least_gib=22.0),
    SpeedCase("qwen3-0.6b", 1024, 4, least_gib=40.0),
    SpeedCase("gpt2-xl", 1024, 4, least_gib=100.0),
)
_GPT2 = {"n_layer": 2, "n_head": 4, "n_embd": 256, "n_positions": 256, "vocab_size": 2048}
_QWEN3 = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 384,
    "vocab_size": 2048,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
ON_CPU = (
    SpeedCase("tiny", 128, 4),
    SpeedCase("gpt2-small", 256, 4, config=tuple(_GPT2.items())),
    SpeedCase("qwen3-0.6b", 256, 4, config=tuple(_QWEN3.items())),
)


def cases_for(device_name: str | None, is_cpu: bool) -> list[SpeedCase]:
    """Tiny, and the two largest presets that fit the device; of a device that is not in the table,
    its memory is taken to be that of the smallest ones."""
    if is_cpu:
        return list(ON_CPU)
    device = find_device(device_name) if device_name else None
    memory = device.memory_gib if device else 15.0
    fit = [case for case in ON_GPU if case.least_gib <= memory]
    return [fit[0], *fit[1:][-2:]]


def fastest_precision(device_name: str | None, is_cpu: bool) -> str:
    """Return fp16 for devices without bf16 units, such as a T4."""
    if is_cpu:
        return "fp32"
    device = find_device(device_name or "")
    return "fp16" if device is not None and device.bf16_flops is None else "bf16"


class SpeedTrials:
    """Trials on `devices`, on the text of the run at `trained`."""

    def __init__(
        self, program: Program, devices: Devices, hardware: Hardware, trained: RunDirectory
    ) -> None:
        self.program = program
        self.devices = devices
        self.hardware = hardware
        self._trained = trained

    @property
    def most_workers(self) -> int:
        """All GPUs; on the CPU no more than it has cores."""
        most = self.devices.num_devices
        return min(most, self.hardware.cores) if self.devices.is_cpu else most

    def measure(self, workers: int, baselines: Sequence[Baseline]) -> Iterator[CheckResult]:
        """Yield a row for each comparison. There is no limit on the figures: they are the
        machine's, too."""
        cases = cases_for(self.hardware.device_name, self.devices.is_cpu)
        jobs = [self._job(case, workers, one) for case in cases for one in baselines]
        path = self.program.folder / f"speed-{workers}.json"
        path.write_text(json.dumps(jobs))
        environment = {**DEFAULTS, **LOOPBACK, **self.devices.environment(workers)}
        for line in self.program.ranks(
            "headway.train.baselines", workers, str(path), environment=environment
        ):
            yield speed_row(line)

    def beside_plan(self, workers: int) -> list[CheckResult]:
        """Run one preset as users do, and return its plan beside what the run measured. No plan
        knows the speed of a CPU."""
        case = (ON_CPU if self.devices.is_cpu else ON_GPU)[1]
        steps = CPU_PLANNED_STEPS if self.devices.is_cpu else GPU_PLANNED_STEPS
        self._write(PLANNED, case, workers, "none", steps)
        words = [f"{PLANNED}.yaml", *self.devices.options(workers)]
        environment = self.devices.environment(workers)
        self.program.headway("run", *words, environment=environment)
        outcome = self.program.headway("plan", PLANNED, "--json", environment=environment)
        return planned_rows(json.loads(outcome)["rows"], case.title)

    def _job(self, case: SpeedCase, workers: int, against: Baseline) -> dict[str, Any]:
        name = f"speed-{case.preset.replace('.', '-')}-{against}"
        file = self._write(name, case, workers, "node" if against == "fsdp2" else "none")
        resolved = resolve(
            load_run(file, self.devices.overrides(workers)),
            self.hardware.model_copy(
                update={"cuda_devices": 0 if self.devices.is_cpu else workers}
            ),
            nodes=1,
            parameters=None,
            train_set=self._train_set,
            validation_sets={},
        )
        RunDirectory.create(resolved.run_directory, SystemClock()).write_spec(resolved)
        return {
            "run": resolved.run_directory,
            "preset": case.title,
            "against": against,
            "store": str(self.program.folder / f"{name}.store"),
            "seconds": CPU_SECONDS if self.devices.is_cpu else GPU_SECONDS,
        }

    def _write(
        self, name: str, case: SpeedCase, workers: int, shard: str, steps: int = NEVER
    ) -> Path:
        file = self.program.folder / f"{name}.yaml"
        file.write_text(
            case.run_file(name, self._train_set, workers, self._precision, steps, shard)
        )
        return file

    @property
    def _train_set(self) -> str:
        if not self._trained.has_spec():
            raise ProofFailed("there is no run of one worker whose data could be used")
        return self._trained.read_spec().train_set

    @property
    def _precision(self) -> str:
        return fastest_precision(self.hardware.device_name, self.devices.is_cpu)


def speed_row(found: Mapping[str, Any]) -> CheckResult:
    """Return the row of a comparison that `headway.train.baselines` has printed."""
    speed, other = found["tokens_per_second"], found["other_tokens_per_second"]
    low, high = found["quartiles"]
    mfu = "" if found["mfu"] is None else f", MFU {found['mfu']:.1%}"
    return CheckResult(
        name=f"speed beside {BASELINES[found['against']]}: {found['preset']}",
        outcome="passed",
        figure=f"{speed:,.0f} tokens/s, {found['against']} {other:,.0f}, ratio "
        f"{found['ratio']:.3f} ({low:.3f} to {high:.3f}){mfu}",
        numbers={
            **{name: found[name] for name in MEASURED if found[name] is not None},
            "lower_quartile": low,
            "upper_quartile": high,
        },
    )


def planned_rows(rows: Mapping[str, Any], preset: str) -> list[CheckResult]:
    """Return a row for each figure of `headway plan RUN --json`, which has no `rows` for figures
    that were neither planned nor measured."""
    return [
        _planned_row(rows.get(figure) or {"planned": None, "measured": None}, figure, preset)
        for figure in PLANNED_FIGURES
    ]


def _planned_row(row: Mapping[str, Any], figure: str, preset: str) -> CheckResult:
    name, written = PLANNED_FIGURES[figure]
    measured, numbers = row["measured"], {}
    words = "not measured" if measured is None else written(measured)
    if row["planned"]:
        planned = [row["planned"][one] for one in RANGE]
        numbers = {f"planned_{one}": value for one, value in zip(RANGE, planned, strict=True)}
        value, low, high = map(written, planned)
        words += f", planned {value} ({low} to {high})"
    else:
        words += ", not planned"
    if measured is not None:
        numbers["measured"] = measured
    return CheckResult(
        name=f"{name} beside its plan: {preset}", outcome="passed", figure=words, numbers=numbers
    )
