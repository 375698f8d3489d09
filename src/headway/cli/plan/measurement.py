"""Steps of the real thing, run on this machine and timed, in place of an estimate."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headway.clock import SystemClock
from headway.errors import BadInput, RunFailed
from headway.plan.step_time import StepTime, measured_step_time, passes_of

if TYPE_CHECKING:
    from headway.plan.fleet import Fleet
    from headway.plan.workload import Layout, Workload
    from headway.spec.load import Loaded
    from headway.spec.resolve import Resolved
    from headway.spec.run_file import RunFile

STEADY_SECONDS = 10.0
"""For which short steps are measured: a burst of something else weighs less."""
MEASURE_SECONDS = 180.0
"""Of steps, after which no further one is begun."""
LIMIT_SECONDS = 290.0
"""Of everything: imports, building, steps."""
NEVER = 10**6
"""Steps until something that is not measured is due."""


MOST_PASSES, FEWER_PASSES = 8, (4, 8)
"""Of a step with more passes than that, two with fewer are measured, and it is calculated from
them: a step of a large batch takes minutes."""


class StartedSteps(Protocol):
    def __call__(
        self, folder: Path, runs: Sequence[Resolved], environment: Mapping[str, str]
    ) -> list[list[float]]:
        """Seconds of each step that was measured, of each run."""
        ...


def measured_here(
    loaded: Loaded,
    workload: Workload,
    fleet: Fleet,
    layout: Layout,
    run_steps: StartedSteps | None = None,
) -> StepTime:
    """Runs five steps of the run or more, after two that warm up, in the workers that it would have
    on this machine, and gives their time. Of the training set if it is prepared, else of random
    tokens. Works in a temporary folder: the run directory, prepared sets and trackers are left
    alone. Takes the time of imports and of seven steps, of which it measures at least ten seconds;
    ends after five minutes with an error that says so. Raises BadInput if this machine has other
    devices than `fleet`."""
    from headway.cli.device_check import require_devices_here
    from headway.cli.preflight import require_train_extra
    from headway.cli.run_sets import prepared_here
    from headway.launch.hardware import this_machine
    from headway.plan.fit import copy_nodes
    from headway.spec.resolve import AutoLayout, resolve
    from headway.state.run_directory import RunDirectory

    require_train_extra("headway plan --measure")
    machine = this_machine()
    _require_this_machine(fleet, machine.cuda_devices)
    train_set = prepared_here(loaded)
    num_passes = passes_of(workload, fleet, layout).number
    passes = (num_passes,) if num_passes <= MOST_PASSES else FEWER_PASSES
    with tempfile.TemporaryDirectory(prefix="headway-measure-") as temporary:
        folder = Path(temporary)
        data = train_set or _random_set(folder / "random", workload, loaded.run)
        short = _steps_only(loaded, data)
        require_devices_here(short, machine, fleet.nodes)
        resolved = resolve(
            *(short, machine),
            nodes=fleet.nodes,
            parameters=workload.model.size.parameters,
            train_set=data,
            validation_sets={},
            auto=AutoLayout(
                shards=layout.shard_devices > 1,
                recomputes=layout.recomputes,
                shard_nodes=copy_nodes(layout, fleet.devices_per_node),
            ),
        )
        runs = [_with_passes(resolved, one, num_passes, folder) for one in passes]
        for one in runs:
            RunDirectory.create(one.run_directory, SystemClock()).write_spec(one)
        found = (run_steps or _steps_of_workers)(folder, runs, _environment(resolved))
    where = f"this machine, with {'its training set' if train_set else 'random tokens'}"
    seconds = found[-1]
    if len(passes) > 1:
        few, many = passes
        each = (statistics.mean(found[1]) - statistics.mean(found[0])) / (many - few)
        seconds = [one + (num_passes - many) * max(0.0, each) for one in found[1]]
        where += f", by steps of {few} and {many} of its {num_passes} passes"
    return measured_step_time(workload, fleet, layout, seconds, where)


def _with_passes(resolved: Resolved, passes: int, all_passes: int, folder: Path) -> Resolved:
    """The run with a batch of so many passes for each worker."""
    changed: dict[str, object] = {"run_directory": str(folder / f"passes-{passes}")}
    if passes < all_passes:
        changed["global_batch"] = passes * resolved.micro * resolved.num_workers
    return resolved.model_copy(update=changed)


def _require_this_machine(fleet: Fleet, cuda_devices: int) -> None:
    has = f"{cuda_devices} GPU{'s' if cuda_devices > 1 else ''}" if cuda_devices else "no GPU"
    if fleet.device is None and not cuda_devices:
        return
    if fleet.device is not None and fleet.num_devices <= cuda_devices:
        return
    raise BadInput(
        f"--measure runs steps on this machine, which has {has}, and the plan is for {fleet}",
        "leave out --on and --nodes, or run it on such a machine",
    )


def _steps_only(loaded: Loaded, train_set: str) -> Loaded:
    """The run with nothing but steps."""
    from headway.spec.data_config import DataSetConfig
    from headway.spec.quantities import Interval, Length
    from headway.spec.run_file import EvaluationConfig, WatchConfig
    from headway.spec.stepped_interval import SteppedInterval

    run, never = loaded.run, Interval(NEVER, "steps")
    data = run.data.model_copy(update={"train": DataSetConfig(path=train_set), "validation": {}})
    run = run.model_copy(
        update={
            "data": data,
            "train_for": Length(NEVER, "steps"),
            "evaluation": EvaluationConfig(every=never),
            "checkpoint": run.checkpoint.model_copy(update={"every": SteppedInterval((), never)}),
            "watch": WatchConfig(),
            "track": [],
            "storage": "runs",
        }
    )
    return replace(loaded, run=run)


def _random_set(folder: Path, workload: Workload, run: RunFile) -> str:
    from headway.data.random_set import write_random_set

    write_random_set(
        folder,
        vocab_size=workload.model.config["vocab_size"],
        num_sequences=2 * workload.global_batch,
        sequence_length=workload.sequence_length,
        is_windowed=run.objective.type == "masked",
    )
    return str(folder)


def _environment(resolved: Resolved) -> dict[str, str]:
    """As `headway run` gives it to workers here."""
    from headway.launch.local_run import LOOPBACK
    from headway.worker_environment import DEFAULTS, NCCL_DEFAULTS, allocator_defaults

    return {**DEFAULTS, **NCCL_DEFAULTS, **LOOPBACK, **allocator_defaults(resolved.device)}


def _steps_of_workers(
    folder: Path, runs: Sequence[Resolved], environment: Mapping[str, str]
) -> list[list[float]]:
    from headway.prove.judge import ProofFailed
    from headway.prove.program import Program

    job = {
        "runs": [one.run_directory for one in runs],
        "store": str(folder / "store-"),
        "least_seconds": STEADY_SECONDS / len(runs),
        "most_seconds": MEASURE_SECONDS / len(runs),
    }
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    program = Program(folder, SystemClock(), LIMIT_SECONDS)
    try:
        lines = list(
            program.ranks(
                "headway.train.measure_steps",
                runs[0].num_workers,
                str(path),
                environment=environment,
            )
        )
    except ProofFailed as error:
        raise RunFailed(_words(str(error)), _instead(runs[0])) from None
    return [line["seconds"] for line in lines]


def _words(failure: str) -> str:
    """Of what a worker said, the last line is the cause; its log is gone with the folder."""
    if "took too long" in failure or "not reached in time" in failure:
        return f"no step was measured within {LIMIT_SECONDS / 60:.0f} minutes"
    return f"the steps to measure could not be run: {failure.splitlines()[-1].strip()}"


def _instead(resolved: Resolved) -> str:
    fewer = max(resolved.micro, resolved.global_batch // 8)
    if fewer < resolved.global_batch:
        return (
            "measure a smaller batch, whose steps take as much less: "
            f"--set batch.global={fewer} --measure"
        )
    return "plan without --measure, or measure on a faster machine"
