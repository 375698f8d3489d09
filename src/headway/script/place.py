"""The place of a script's worker among the others, in torchrun's words: its rank, and where rank 0
listens."""

from __future__ import annotations

import os
import random
import re
import socket
from collections.abc import Mapping
from contextlib import closing, suppress

import msgspec

from headway.errors import BadInput
from headway.script.stand_still import STACKS_FOLDER

PORTS = range(20000, 30000)
"""Below Linux' ephemeral ports and the node ports of Kubernetes."""
PORT_TRIES = 100
KEPT = ("HEADWAY_OUTPUT", "HEADWAY_SCRATCH", "HEADWAY_RUN")
"""Of our variables, those that are given to the command. The others are between our processes."""
VARIABLE = re.compile(r"\$(?:\{(HEADWAY_[A-Z_]+)\}|(HEADWAY_[A-Z_]+))")


class Master(msgspec.Struct, frozen=True):
    """What rank 0 tells the others before they start."""

    address: str
    port: int
    restarts: int
    """Generations of the run before this one."""
    is_untried: bool
    """Whether no start since the launch has worked, failed or lost a member."""
    has_finished: bool = False
    """Whether the script has finished since the launch: there is nothing to start."""


class Place(msgspec.Struct, frozen=True):
    rank: int
    num_workers: int
    local_rank: int
    ranks_per_node: int

    @property
    def node(self) -> int:
        """Number of its node in this generation."""
        return self.rank // self.ranks_per_node

    @property
    def num_nodes(self) -> int:
        return self.num_workers // self.ranks_per_node

    @property
    def node_ranks(self) -> range:
        """Ranks of its node."""
        first = self.node * self.ranks_per_node
        return range(first, first + self.ranks_per_node)


def torchrun_variables(place: Place, master: Master, run: str) -> dict[str, str]:
    """As torch 2.15 gives them (local_elastic_agent.py). The script's rank 0 serves the store
    itself, as without `--rdzv-backend`."""
    world, nodes = str(place.num_workers), str(place.num_nodes)
    return {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(place.ranks_per_node),
        "GROUP_RANK": str(place.node),
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_NAME": "default",
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": master.address,
        "MASTER_PORT": str(master.port),
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_RESTART_COUNT": str(master.restarts),
        # Not bounded: losses with progress in between do not count.
        "TORCHELASTIC_MAX_RESTARTS": str(2**31 - 1),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def visible_devices(given: Mapping[str, str], place: Place) -> dict[str, str]:
    """On one machine that stands for several nodes, each has devices of its own: the script takes
    the one with the number LOCAL_RANK, and finds those of its node. Elsewhere nothing is
    changed."""
    first = int(given["HEADWAY_DEVICE"]) - place.local_rank
    if first == 0:
        return {}
    numbers = range(first, first + place.ranks_per_node)
    visible = given.get("CUDA_VISIBLE_DEVICES")
    names = None if visible is None else visible.split(",")
    shown = [str(number) if names is None else names[number % len(names)] for number in numbers]
    return {"CUDA_VISIBLE_DEVICES": ",".join(shown)}


def command_environment(
    given: Mapping[str, str], place: Place, master: Master, heartbeat: str
) -> dict[str, str]:
    """Environment of the command: that of this worker, without what only our processes use."""
    paths = [str(STACKS_FOLDER), given.get("PYTHONPATH", "")]
    others = {name: value for name, value in given.items() if not name.startswith("HEADWAY_")}
    return {
        # A rank whose collective fails ends, instead of waiting for ever.
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        **others,
        **{name: given[name] for name in KEPT if name in given},
        "HEADWAY_HEARTBEAT": heartbeat,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        **visible_devices(given, place),
        **torchrun_variables(place, master, given["HEADWAY_RUN"]),
    }


def replace_variables(arguments: list[str], environment: Mapping[str, str]) -> list[str]:
    """`$HEADWAY_OUTPUT` and its like in arguments: there is no shell that would do it."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in environment:
            known = ", ".join(f"${one}" for one in sorted(environment) if one.startswith("HEADWAY"))
            raise BadInput(f"command: there is no ${name}", f"use one of {known}")
        return environment[name]

    return [VARIABLE.sub(value, argument) for argument in arguments]


def free_port() -> int:
    """A port at which nothing listens. Another process may take it before rank 0 does: then the
    script fails, and is started again with another one."""
    for port in random.SystemRandom().sample(PORTS, PORT_TRIES):
        if _is_free(port):
            return port
    raise BadInput(
        f"{PORT_TRIES} ports between {PORTS.start} and {PORTS.stop - 1} are all in use here"
    )


def _is_free(port: int) -> bool:
    """On all addresses, as torch's store listens."""
    for family in (socket.AF_INET6, socket.AF_INET):
        with suppress(OSError), closing(socket.socket(family, socket.SOCK_STREAM)) as trial:
            if family == socket.AF_INET6:
                trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            trial.bind(("", port))
            return True
    return False
