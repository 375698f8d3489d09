"""The time of a step that `plan --measure` has found, kept in the user's cache: the next plan or
start of the same run on the same machine takes it in place of an estimate."""

from __future__ import annotations

import hashlib
import json
import platform
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway import __version__
from headway.clock import SystemClock, stamp
from headway.launch.hardware import this_machine
from headway.plan.figure import Figure
from headway.plan.step_time import StepTime, known_step_time
from headway.state.user_cache import cache_root

if TYPE_CHECKING:
    from headway.plan.fleet import Fleet
    from headway.plan.workload import CountedModel, Layout, Workload

VERSION = 1


def keep_step_time(workload: Workload, fleet: Fleet, layout: Layout, seconds: Figure) -> None:
    """A cache that cannot be written keeps nothing."""
    from headway.state.store import Store

    dated = replace(seconds, reason=f"{seconds.reason} ({stamp(SystemClock().now())[:10]})")
    record = {"version": VERSION, "step_seconds": asdict(dated)}
    folder, name = _file(workload, fleet, layout)
    with suppress(OSError):
        Store(folder).write(name, (json.dumps(record, indent=1) + "\n").encode())


def kept_step_time(workload: Workload, fleet: Fleet, layout: Layout) -> StepTime | None:
    """None: it was not measured on this machine, as it is now."""
    folder, name = _file(workload, fleet, layout)
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads((folder / name).read_text("utf-8"))
        if record["version"] == VERSION:
            return known_step_time(workload, fleet, layout, Figure(**record["step_seconds"]))
    return None


def _file(workload: Workload, fleet: Fleet, layout: Layout) -> tuple[Path, str]:
    """Named by all that a step's time depends on."""
    machine = this_machine()
    facts = {
        "model": _shape(workload.model),
        "teacher": _shape(workload.teacher),
        "batch": [workload.sequence_length, workload.global_batch, workload.micro],
        "arithmetic": [workload.precision, workload.optimizer, workload.compiles],
        "layout": asdict(layout),
        "workers": [fleet.nodes, fleet.devices_per_node],
        "machine": [platform.node(), machine.cores, machine.cuda_devices, machine.device_name],
        "software": [__version__, machine.torch_version],
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    return cache_root() / "measured-steps", f"{digest[:16]}.json"


def _shape(model: CountedModel | None) -> Any:
    return None if model is None else [model.type, dict(model.config)]
