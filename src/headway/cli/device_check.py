"""What `check` and `run` refuse because of the devices, here and on a target, before anything is
prepared, uploaded or started."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from headway.cli.model_shape import known_parameters, known_workload
from headway.errors import BadInput, SpecError
from headway.plan.accelerators import ON_CPU
from headway.plan.device_refusals import (
    DeviceRefusal,
    Key,
    missing_bf16,
    offload_too_large,
    state_too_large,
    unsupported_accelerators,
)
from headway.plan.fit import auto_layout
from headway.plan.machines import other_machine, too_much_for
from headway.plan.memory_need import least_size
from headway.plan.prices import unknown_price
from headway.plan.unsupported_accelerators import family_of_resource
from headway.spec.located_yaml import PRESET
from headway.spec.quantities import Sharding
from headway.spec.resolve import Hardware, resolve
from headway.spec.target_file import with_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headway.plan.model_size import ModelSize
    from headway.spec.load import Loaded, LoadedTarget
    from headway.spec.located_yaml import Mark
    from headway.spec.resolve import Resolved
    from headway.spec.run_file import RunFile
    from headway.spec.target_file import Target


def require_named_devices(loaded: Loaded, nodes: int = 1) -> None:
    """Raises if devices of the kind that the run file names cannot run it, on any machine, with as
    many nodes as it asks for, or `nodes` if those are more."""
    wanted = loaded.run.resources.accelerators
    nodes = max(nodes, loaded.run.resources.nodes.maximum)
    if wanted is not None and not wanted.is_cpu:
        machine = Hardware(cores=1, cuda_devices=wanted.count * nodes)
        _refuse(unsupported_accelerators(loaded.run, machine), loaded)
        _require_room(loaded, machine, nodes)


def require_devices_here(loaded: Loaded, machine: Hardware, nodes: int) -> None:
    """Raises if no machine, or not this one, can run it with that number of nodes."""
    require_named_devices(loaded, nodes)
    require_this_machine(loaded, machine, nodes)


def require_this_machine(loaded: Loaded, machine: Hardware, nodes: int) -> None:
    """Raises if this machine cannot run what another one could."""
    _refuse(unsupported_accelerators(loaded.run, machine), loaded)
    _require_room(loaded, machine, nodes)


def require_supported_on(loaded: Loaded, found: LoadedTarget) -> None:
    """Raises if the run or the target asks for an accelerator that Headway cannot use."""
    run = with_defaults(loaded.run, found.target)
    _refuse(unsupported_accelerators(run, Hardware(cores=1, cuda_devices=0)), loaded, found)
    _refuse(_unsupported_request(run, found.target), loaded, found)
    wanted, device = run.resources.accelerators, found.target.pod.device
    family = family_of_resource(device) if device is not None else None
    if wanted is not None and not wanted.is_cpu and family is not None:
        problem = f"{found.name}.pod.device: {device} requests {family.name}"
        refusal = DeviceRefusal(
            (("pod", "device"),), f"{problem}, and Headway does not run on them", ON_CPU
        )
        _refuse(refusal, loaded, found)
    _refuse(unknown_price(found.target.prices, found.target.accelerators), loaded, found)
    if found.target.machine is not None:
        _refuse(other_machine(run, found.target.machine), loaded, found)
        _refuse(too_much_for(found.target.machine, _amounts(found.target)), loaded, found)


def _unsupported_request(run: RunFile, target: Target) -> DeviceRefusal | None:
    """A pod of a run that names no accelerators, a script's above all, may request them itself."""
    wanted = run.resources.accelerators
    for name in target.pod.resources if wanted is None or not wanted.is_cpu else ():
        if (family := family_of_resource(name)) is not None:
            problem = f"pod.resources: {name} requests {family.name}"
            words = f"{problem}, and Headway does not run on them"
            return DeviceRefusal((("pod", "resources", name),), words, ON_CPU)
    return None


def _amounts(target: Target) -> dict[str, float]:
    """Resources of a worker's pod; memory in bytes."""
    from headway.kube.placement import amount_in_bytes, cores_of

    found = {}
    for name, amount in target.pod.resources.items():
        found[name] = float(cores_of(amount) if name == "cpu" else amount_in_bytes(amount))
    return found


def require_room_on(loaded: Loaded, resolved: Resolved, found: LoadedTarget) -> None:
    """Raises if the nodes of the target cannot run it."""
    from headway.kube.placement import amount_in_bytes

    memory = amount_in_bytes(found.target.pod.resources["memory"])
    node = Hardware(cores=1, cuda_devices=resolved.ranks_per_node, memory_bytes=memory)
    one = resolved.model_copy(update={"nodes": 1})
    if resolved.shard.unit == "all":  # a pod holds as much as if all were named
        wide = resolved.run.model_copy(update={"shard": Sharding("nodes", resolved.nodes)})
        one = one.model_copy(update={"run": wide})
    _refuse(_too_little_room(loaded, one, node), loaded, found)


def _require_room(loaded: Loaded, machine: Hardware, nodes: int) -> None:
    resolved = resolved_for(loaded, machine, nodes)
    _refuse(_too_little_room(loaded, resolved, machine), loaded)


def resolved_for(
    loaded: Loaded,
    machine: Hardware,
    nodes: int,
    *,
    train_set: str | Path = "",
    validation_sets: Mapping[str, str | Path] | None = None,
    is_one_host: bool = True,
) -> Resolved:
    """The run on that many nodes of a machine, or of several (not `is_one_host`) whose hardware
    `machine` adds up; its layout by what fits."""
    workload = known_workload(loaded)
    return resolve(
        loaded,
        machine,
        nodes=nodes,
        parameters=known_parameters(loaded, workload),
        train_set=train_set,
        validation_sets=validation_sets or {},
        auto=auto_layout(loaded.run, workload, machine, nodes, is_one_host=is_one_host),
    )


def _too_little_room(loaded: Loaded, resolved: Resolved, machine: Hardware) -> DeviceRefusal | None:
    size = least_size_of(loaded)
    return (
        missing_bf16(resolved, machine)
        or state_too_large(resolved, machine, size.parameters if size else None)
        or offload_too_large(resolved, machine, size)
    )


def least_size_of(loaded: Loaded) -> ModelSize | None:
    """From the run file, or from the config of a model in a folder of this machine."""
    model = loaded.run.model
    if model is None or model.from_ is None:
        return least_size(loaded.run)
    # Else a name on the hub, another run, or a folder that is refused elsewhere.
    with suppress(OSError, ValueError, BadInput):
        config = json.loads((loaded.folder / model.from_ / "config.json").read_text("utf-8"))
        return least_size(loaded.run, config) if isinstance(config, dict) else None
    return None


def _refuse(
    refusal: DeviceRefusal | None, loaded: Loaded, found: LoadedTarget | None = None
) -> None:
    if refusal is not None:
        where = _where(refusal.keys, loaded, found)
        raise SpecError(refusal.problem, str(where), refusal.hint)


def _where(keys: tuple[Key, ...], loaded: Loaded, found: LoadedTarget | None) -> Mark:
    """Position of the first of these keys that the user has written: presets are not theirs."""
    of_run = [loaded.located.keys[key] for key in keys if key in loaded.located.keys]
    of_target = [
        found.located.keys[(found.name, *key)]
        for key in keys
        if found is not None and (found.name, *key) in found.located.keys
    ]
    written = [mark for mark in [*of_run, *of_target] if not mark.file.endswith(PRESET)]
    return written[0] if written else loaded.located.mark(())
