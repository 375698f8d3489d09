"""Runs that their devices rule out, from names and exact counts, before anything starts.

Only what is certain is refused: a device that is not in the table has the benefit of the doubt, and
activations are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headway.memory_limits import byte_size
from headway.plan.accelerators import (
    DEVICES,
    ON_CPU,
    Device,
    find_device,
    most_memory_gib,
)
from headway.plan.memory_need import (
    least_bytes,
    least_bytes_of_worker,
    needed_and_present,
    offloaded_bytes,
    state_bytes,
)
from headway.plan.model_size import ModelSize
from headway.plan.unsupported_accelerators import family_of_kind, family_of_torch
from headway.spec.resolve import Hardware, Resolved, recomputed_blocks
from headway.spec.run_file import RunFile

Key = tuple[str, ...]
ACCELERATORS = ("resources", "accelerators")
PRECISION = ("precision",)
OFFLOAD = ("memory", "offload")
MODEL = (("model",), ("extends",))

NODE_DEVICES = (1, 2, 4, 8)
"""Numbers of devices that machines for rent have."""
MAX_COPY_NODES = 64
"""A copy of a model over more nodes than that is not hinted at."""
STATE_SHARE = 0.75
"""Share of a device's memory that the state may take on devices that a hint or a page names. The
rest is for activations, which are not counted here."""


@dataclass(frozen=True)
class DeviceRefusal:
    """Why a run cannot start."""

    keys: tuple[Key, ...]
    """Keys that may be to blame: the first one that the user has written is."""
    problem: str
    hint: str


def unsupported_accelerators(run: RunFile, machine: Hardware) -> DeviceRefusal | None:
    """The run asks for an accelerator that Headway cannot use, or would leave one unused."""
    wanted = run.resources.accelerators
    if wanted is not None and wanted.is_cpu:
        return None
    for one in wanted.choices if wanted is not None else ():
        if (family := family_of_kind(one.kind)) is not None:
            problem = f"{one} requested, but Headway does not run on {family.name}"
            return DeviceRefusal((ACCELERATORS,), f"resources.accelerators: {problem}", ON_CPU)
    torch = machine.torch_version or ""
    if (family := family_of_torch(torch)) is not None:
        problem = f"torch {torch} is built for {family.name}, and Headway does not run on them"
        return DeviceRefusal((), problem, ON_CPU)
    if machine.cuda_devices == 0 and machine.unsupported_devices:
        names = " and ".join(machine.unsupported_devices)
        return DeviceRefusal(
            (), f"this machine has {names}, and Headway does not run on them", ON_CPU
        )
    if machine.cuda_devices and torch.endswith("+cpu"):
        number = "1 GPU" if machine.cuda_devices == 1 else f"{machine.cuda_devices} GPUs"
        problem = f"this machine has {number}, but torch {torch} is built without CUDA"
        return DeviceRefusal((), problem, ON_CPU)
    return None


def missing_bf16(resolved: Resolved, machine: Hardware) -> DeviceRefusal | None:
    """The run computes in bf16 on devices that can only emulate it."""
    if resolved.is_script or resolved.run.precision != "bf16":
        return None
    for name in _device_names(resolved, machine):
        device = find_device(name)
        if device is not None and device.bf16_flops is None:
            return DeviceRefusal(
                (PRECISION, ACCELERATORS),
                f"precision: bf16 requested, but the {name} has no bf16 units",
                "to train in fp16: --set precision=fp16",
            )
    return None


def state_too_large(
    resolved: Resolved, machine: Hardware, parameters: int | None
) -> DeviceRefusal | None:
    """Weights, gradients and optimizer state alone do not fit. `parameters` is the least number
    that the model has, None if it is not known."""
    if parameters is None:
        return None
    if resolved.device == "cpu":
        return _too_large_for_memory(resolved, machine, parameters)
    needed = least_bytes_of_worker(resolved, parameters)
    for name in _device_names(resolved, machine):
        most = most_memory_gib(name)
        if most is not None and needed > most * 2**30:
            return DeviceRefusal(
                (ACCELERATORS, *MODEL),
                f"weights, gradients and optimizer state need at least {byte_size(needed)} on each "
                f"{name}, which has at most {most:g} GiB",
                _devices_hint("to shard it", name, resolved, parameters),
            )
    return None


def offload_too_large(
    resolved: Resolved, machine: Hardware, size: ModelSize | None
) -> DeviceRefusal | None:
    """The inputs of recomputed blocks alone do not fit into the host's memory."""
    if size is None or machine.memory_bytes is None:
        return None
    needed = offloaded_bytes(resolved, size)
    if needed <= machine.memory_bytes:
        return None
    blocks = min(recomputed_blocks(resolved.checkpoint_activations), size.num_layers)
    on = f" of {resolved.ranks_per_node} devices" if resolved.ranks_per_node > 1 else ""
    return DeviceRefusal(
        (OFFLOAD,),
        f"memory.offload: the inputs of {blocks} blocks{on} need at least "
        f"{byte_size(needed)} of the host's memory; {byte_size(machine.memory_bytes)} is available",
        "to offload less: --set batch.micro=1"
        if resolved.micro > 1
        else "to offload nothing: --set memory.offload=none",
    )


def _too_large_for_memory(
    resolved: Resolved, machine: Hardware, parameters: int
) -> DeviceRefusal | None:
    memory, nodes = machine.memory_bytes, resolved.nodes
    if memory is None or least_bytes(resolved, nodes, parameters) <= memory:
        return None
    problem = needed_and_present(resolved, nodes, memory, parameters)
    if resolved.num_workers > 1 and state_bytes(parameters, resolved.run.precision) <= memory:
        flags = "--nodes 1 " if nodes > 1 else ""
        hint = f"to start one worker: {flags}--set resources.accelerators=cpu:1"
        return DeviceRefusal((ACCELERATORS, *MODEL), problem, hint)
    hint = _devices_hint("on a machine or target with GPUs", "H100", resolved, parameters)
    return DeviceRefusal(MODEL, problem, hint)


def fewest_devices(device: Device, parameters: int, precision: str) -> int | None:
    """The smallest number of such devices in a node that hold the state and leave room for
    activations; sharded if there are several. None if a node of them does not."""
    room = device.memory_gib * 2**30 * STATE_SHARE
    fitting = (n for n in NODE_DEVICES if state_bytes(parameters, precision, n) <= room)
    return next(fitting, None)


def fewest_nodes(device: Device, parameters: int, precision: str) -> int | None:
    """The same for a copy of the model over several nodes."""
    room = device.memory_gib * 2**30 * STATE_SHARE
    sizes = range(2, MAX_COPY_NODES + 1)
    shards = ((nodes, nodes * NODE_DEVICES[-1]) for nodes in sizes)
    return next((n for n, s in shards if state_bytes(parameters, precision, s) <= room), None)


def _device_names(resolved: Resolved, machine: Hardware) -> Iterator[str]:
    """Of the GPUs: as the run file says, and as the driver says."""
    wanted = resolved.run.resources.accelerators
    if resolved.device == "cpu":
        return
    if wanted is not None:
        yield from (one.kind for one in wanted.choices)
    if machine.device_name is not None:
        yield machine.device_name


def _devices_hint(aim: str, name: str, resolved: Resolved, parameters: int) -> str:
    """Devices of that name that hold the state, in a node or in several; if the name is not known,
    the smallest of another name that do."""
    precision, wanted = resolved.run.precision, resolved.run.resources.accelerators
    named = find_device(name)
    others = sorted(DEVICES, key=lambda device: device.memory_gib)
    for device in [*([named] if named else []), *others]:
        if precision == "bf16" and device.bf16_flops is None:
            continue
        number, kind = fewest_devices(device, parameters, precision), device.name
        if device is named and resolved.device != "cpu":
            is_named = wanted is not None and name in {one.kind for one in wanted.choices}
            kind = name if is_named else kind
            number = number and max(number, resolved.ranks_per_node)
        if number is not None:
            shard = " --set shard=node" if number > 1 else ""
            return f"{aim}: --set resources.accelerators={kind}:{number}{shard}"
        nodes = fewest_nodes(device, parameters, precision)
        if device is named and nodes is not None:
            return (
                f"on {nodes} nodes of a target: --set resources.nodes={nodes} "
                f"--set resources.accelerators={kind}:{NODE_DEVICES[-1]} "
                f'--set "shard={nodes} nodes"'
            )
    return "use a smaller model: no node in Headway's table of devices holds this one"
