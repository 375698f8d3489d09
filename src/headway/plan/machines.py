"""Known machines: their devices, what pods can have of them, and the network between them.

Nothing in this file has run on any of them. Figures of AWS are those of Karpenter's own list of
instance types (what is left for pods; 2026-08). Those of Google Cloud are the machine's less what
GKE documents that it keeps. A machine that is not here gets the benefit of the doubt everywhere.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headway.memory_limits import byte_size
from headway.plan.accelerators import find_device, folded_name
from headway.plan.device_refusals import ACCELERATORS, DeviceRefusal
from headway.spec.quantities import Accelerators
from headway.spec.run_file import RunFile

CPU = "cpu"
"""Name of any machine without accelerators."""
ANY_GPU = "gpu"
MACHINE = ("machine",)
EFA = "vpc.amazonaws.com/efa"
POD_SHARE = 0.95
"""Of what a machine has for pods: the rest is for pods that the cluster runs on every machine."""
NEARBY = 6
"""Machines that a hint names at most."""

Place = Literal["AWS", "GKE", "premises"]


@dataclass(frozen=True)
class Machine:
    name: str
    """Value of the label node.kubernetes.io/instance-type; on premises a name of ours."""
    place: Place
    device: str
    """As in `plan.accelerators`."""
    num_devices: int
    cpu: float | None = None
    """Cores that pods can have. None: the node says."""
    memory_mib: int | None = None
    fabric: Mapping[str, int] = field(default_factory=dict)
    """Resources of network devices that skip the kernel, and their number."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What makes NCCL use them, and fail if it cannot: else it falls back to TCP silently."""
    network_gbit: float | None = None
    """Network of the whole machine, Gbit/s in one direction, as its provider states it. None: not
    known."""
    not_filled: str = ""
    """What its network needs besides, which a target cannot say by itself."""

    @property
    def accelerators(self) -> Accelerators:
        return Accelerators(self.device, self.num_devices)

    def pod_amounts(self) -> dict[str, str]:
        """For the one worker's pod of a machine: nearly all of it, whole cores and GiB."""
        if self.cpu is None or self.memory_mib is None:
            return {}
        amounts = {
            "cpu": str(math.floor(self.cpu * POD_SHARE)),
            "memory": f"{math.floor(self.memory_mib * POD_SHARE / 1024)}Gi",
        }
        return amounts | {name: str(number) for name, number in self.fabric.items()}


def _aws(
    name: str, device: str, number: int, cpu_milli: int, memory_mib: int, gbit: float, efa: int = 0
) -> Machine:
    fabric = {EFA: efa} if efa else {}
    # The name of AWS' plugin for NCCL: with it, NCCL ends if the image lacks the plugin.
    variables = {"NCCL_NET": "AWS Libfabric"} if efa else {}
    return Machine(
        *(name, "AWS", device, number, cpu_milli / 1000, memory_mib, fabric, variables),
        network_gbit=gbit,
    )


def _gke(
    name: str, device: str, number: int, cpu: int, memory_gib: int, lacks: str = ""
) -> Machine:
    steps = ((4, 0.25), (4, 0.20), (8, 0.10), (112, 0.06), (math.inf, 0.02))
    left, kept = float(memory_gib), 100 / 1024
    for width, share in steps:
        kept += min(left, width) * share
        left = max(0.0, left - width)
    kept_cpu = 0.06 + 0.01 + 2 * 0.005 + max(0, cpu - 4) * 0.0025
    memory = math.floor((memory_gib - kept) * 1024)
    return Machine(name, "GKE", device, number, cpu - kept_cpu, memory, not_filled=lacks)


def _premises(name: str, device: str, number: int) -> Machine:
    # One network device for each accelerator; their resource has another name at every site.
    return Machine(name, "premises", device, number, variables={"NCCL_NET": "IB"})


_TCPX = "GPUDirect-TCPX (networks, a daemon beside the worker, libraries of the host)"
_TCPXO = "GPUDirect-TCPXO (networks, a daemon beside the worker, libraries of the host)"
_RDMA = "GPUDirect RDMA (networks, libraries of the host)"

# EFA of machines of one or four small devices is left out: their plugin gains little there, and
# an image without it would not train.
# fmt: off
MACHINES: tuple[Machine, ...] = (
    _aws("p4d.24xlarge",      "A100-40GB", 8,  95690, 1082712,   400, efa=4),
    _aws("p4de.24xlarge",     "A100-80GB", 8,  95690, 1082712,   400, efa=4),
    _aws("p5.4xlarge",        "H100",      1,  15890,  240830,   100),
    _aws("p5.48xlarge",       "H100",      8, 191450, 1938410,  3200, efa=32),
    _aws("p5e.48xlarge",      "H200",      8, 191450, 1938410,  3200, efa=32),
    _aws("p5en.48xlarge",     "H200",      8, 191450, 1937332,  3200, efa=16),
    _aws("p6-b200.48xlarge",  "B200",      8, 191450, 1937332,  3200, efa=8),
    _aws("p3dn.24xlarge",     "V100-32GB", 8,  95690,  718987,   100),
    _aws("g4dn.xlarge",       "T4",        1,   3920,   14481,     5),
    _aws("g4dn.2xlarge",      "T4",        1,   7910,   29636,    10),
    _aws("g4dn.4xlarge",      "T4",        1,  15890,   59946,    20),
    _aws("g4dn.12xlarge",     "T4",        4,  47810,  178933,    50),
    _aws("g4dn.metal",        "T4",        8,  95690,  355262,   100),
    _aws("g5.xlarge",         "A10G",      1,   3920,   14162,   2.5),
    _aws("g5.2xlarge",        "A10G",      1,   7910,   29317,     5),
    _aws("g5.4xlarge",        "A10G",      1,  15890,   57691,    10),
    _aws("g5.8xlarge",        "A10G",      1,  31850,  118312,    25),
    _aws("g5.12xlarge",       "A10G",      4,  47810,  173400,    40),
    _aws("g5.16xlarge",       "A10G",      1,  63770,  239554,    25),
    _aws("g5.24xlarge",       "A10G",      4,  95690,  355262,    50),
    _aws("g5.48xlarge",       "A10G",      8, 191450,  723299,   100),
    _aws("g6.xlarge",         "L4",        1,   3920,   14162,   2.5),
    _aws("g6.2xlarge",        "L4",        1,   7910,   29317,     5),
    _aws("g6.4xlarge",        "L4",        1,  15890,   57691,    10),
    _aws("g6.8xlarge",        "L4",        1,  31850,  118312,    25),
    _aws("g6.12xlarge",       "L4",        4,  47810,  178933,    40),
    _aws("g6.16xlarge",       "L4",        1,  63770,  234021,    25),
    _aws("g6.24xlarge",       "L4",        4,  95690,  355262,    50),
    _aws("g6.48xlarge",       "L4",        8, 191450,  718987,   100),
    _aws("g6e.xlarge",        "L40S",      1,   3920,   29317,   2.5),
    _aws("g6e.2xlarge",       "L40S",      1,   7910,   59627,     5),
    _aws("g6e.4xlarge",       "L40S",      1,  15890,  118312,    20),
    _aws("g6e.8xlarge",       "L40S",      1,  31850,  239554,    25),
    _aws("g6e.12xlarge",      "L40S",      4,  47810,  360157,   100),
    _aws("g6e.16xlarge",      "L40S",      1,  63770,  476504,    35),
    _aws("g6e.24xlarge",      "L40S",      4,  95690,  721682,   200),
    _aws("g6e.48xlarge",      "L40S",      8, 191450, 1449132,   400, efa=4),
    _gke("a2-highgpu-1g",     "A100-40GB", 1,  12,   85),
    _gke("a2-highgpu-2g",     "A100-40GB", 2,  24,  170),
    _gke("a2-highgpu-4g",     "A100-40GB", 4,  48,  340),
    _gke("a2-highgpu-8g",     "A100-40GB", 8,  96,  680),
    _gke("a2-ultragpu-1g",    "A100-80GB", 1,  12,  170),
    _gke("a2-ultragpu-2g",    "A100-80GB", 2,  24,  340),
    _gke("a2-ultragpu-4g",    "A100-80GB", 4,  48,  680),
    _gke("a2-ultragpu-8g",    "A100-80GB", 8,  96, 1360),
    _gke("a3-highgpu-1g",     "H100",      1,  26,  234),
    _gke("a3-highgpu-2g",     "H100",      2,  52,  468),
    _gke("a3-highgpu-4g",     "H100",      4, 104,  936),
    _gke("a3-highgpu-8g",     "H100",      8, 208, 1872, _TCPX),
    _gke("a3-megagpu-8g",     "H100",      8, 208, 1872, _TCPXO),
    _gke("a3-ultragpu-8g",    "H200",      8, 224, 2952, _RDMA),
    _gke("a4-highgpu-8g",     "B200",      8, 224, 3968, _RDMA),
    _gke("g2-standard-4",     "L4",        1,   4,   16),
    _gke("g2-standard-8",     "L4",        1,   8,   32),
    _gke("g2-standard-12",    "L4",        1,  12,   48),
    _gke("g2-standard-16",    "L4",        1,  16,   64),
    _gke("g2-standard-24",    "L4",        2,  24,   96),
    _gke("g2-standard-32",    "L4",        1,  32,  128),
    _gke("g2-standard-48",    "L4",        4,  48,  192),
    _gke("g2-standard-96",    "L4",        8,  96,  384),
    _premises("dgx-a100-40gb", "A100-40GB", 8),
    _premises("dgx-a100",      "A100-80GB", 8),
    _premises("hgx-a100-4",    "A100-80GB", 4),
    _premises("hgx-h100",      "H100",      8),
    _premises("hgx-h100-4",    "H100",      4),
    _premises("hgx-h200",      "H200",      8),
    _premises("hgx-b200",      "B200",      8),
)
# fmt: on

_BY_NAME: Mapping[str, Machine] = {machine.name: machine for machine in MACHINES}


def find_machine(name: str) -> Machine | None:
    return _BY_NAME.get(name)


def machine_names() -> list[str]:
    return [*_BY_NAME, CPU]


def machine_on_premises(device: str, number: int) -> Machine | None:
    """By what its nodes have: nobody labels them with a type."""
    return next(
        (
            one
            for one in MACHINES
            if one.place == "premises" and (one.device, one.num_devices) == (device, number)
        ),
        None,
    )


def other_machine(run: RunFile, name: str) -> DeviceRefusal | None:
    """The run asks for another kind of accelerator than the machines of a target have, or for more
    of them. Of several kinds one is enough."""
    machine = find_machine(name)
    if machine is None and name != CPU:
        near = difflib.get_close_matches(name, machine_names(), n=1)
        return DeviceRefusal(
            (MACHINE,),
            f"machine: {name} is not a machine that Headway knows",
            f"did you mean {near[0]}?"
            if near
            else "leave it out; known are p5.48xlarge, "
            "a3-megagpu-8g, hgx-h100 and others: docs/guides/gpus.md",
        )
    wanted = run.resources.accelerators
    if wanted is None or wanted.is_cpu:
        return None
    if machine is not None and any(_has(machine, one) for one in wanted.choices):
        return None
    return DeviceRefusal(
        (ACCELERATORS, MACHINE),
        f"resources.accelerators: {wanted} requested, but a machine of the target ({name}) has "
        + (str(machine.accelerators) if machine is not None else "no accelerator"),
        _instead(wanted, machine),
    )


def _has(machine: Machine, wanted: Accelerators) -> bool:
    return wanted.count <= machine.num_devices and _is_kind(wanted.kind, machine.device)


def _is_kind(kind: str, device: str) -> bool:
    """A name alone, such as A100, means every board of that name, as for labels."""
    family = folded_name(device).split("-")[0]
    if folded_name(kind) in (ANY_GPU, family):
        return True
    found = find_device(kind)
    if found is None:  # a name of a board that the table does not have: H100-NVL
        return False
    return found.name == device


def _instead(wanted: Accelerators, machine: Machine | None) -> str:
    """What the target could run, and the machines that would do."""
    here = str(machine.accelerators) if machine is not None else f"{CPU}:1"
    hint = f"to run it there: --set resources.accelerators={here}"
    fitting = [one for one in MACHINES if any(_has(one, each) for each in wanted.choices)]
    fitting.sort(key=lambda one: one.num_devices)  # the smallest that do
    if not fitting:
        return hint
    named = ", ".join(one.name for one in fitting[:NEARBY])
    more = " and others" if len(fitting) > NEARBY else ""
    return (
        f"{hint}; machines that have {wanted}: {named}{more}; a target of such: headway target "
        f"add NAME --machine {fitting[0].name}"
    )


def too_much_for(name: str, amounts: Mapping[str, float]) -> DeviceRefusal | None:
    """Pods of a target ask for more than any such machine has: they would wait forever. Memory is
    in bytes."""
    machine = find_machine(name)
    if machine is None:
        return None
    for resource, most in _most(machine).items():
        if amounts.get(resource, 0) > most:
            words = byte_size(int(most)) if resource == "memory" else f"{most:g}"
            key = ("pod", "resources", resource)
            problem = f"{'.'.join(key)}: more than a machine of the target has ({name}: {words})"
            filled = machine.pod_amounts()
            hint = f"{resource}: {filled[resource]}" if resource in filled else "a smaller number"
            return DeviceRefusal((key, MACHINE), problem, hint)
    return None


def _most(machine: Machine) -> dict[str, float]:
    """Certain bounds: how much of a machine is kept from pods differs between clusters."""
    found: dict[str, float] = {}
    if machine.cpu is not None and machine.memory_mib is not None:
        found = {"cpu": math.ceil(machine.cpu), "memory": machine.memory_mib * 2**20 * 1.1}
    if machine.place == "AWS":
        # Smaller machines have one or two as well, which the table leaves out.
        found[EFA] = machine.fabric.get(EFA, 2)
    return found
