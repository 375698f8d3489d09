"""The devices that a plan is for: how many of which kind, in how many nodes, joined by what."""

from __future__ import annotations

from dataclasses import dataclass

from headway.plan.accelerators import Device


@dataclass(frozen=True)
class Fleet:
    device: Device | None
    """None: workers compute on the CPU."""
    devices_per_node: int
    """Workers of a node: one for each device."""
    nodes: int
    host_bytes: int | None = None
    """Memory of a node's machine or pod, for all its workers; None: not known."""
    is_one_host: bool = False
    """Nodes are processes of one machine, and share its memory."""
    network_bytes_per_second: float | None = None
    """From a node to another, one direction; None: not known."""
    on_demand_nodes: int | None = None
    """Number of nodes that are kept off spot machines; None: all of them."""

    @property
    def spot_nodes(self) -> int:
        return 0 if self.on_demand_nodes is None else max(0, self.nodes - self.on_demand_nodes)

    @property
    def num_devices(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def nodes_per_host(self) -> int:
        return self.nodes if self.is_one_host else 1

    @property
    def workers_per_host(self) -> int:
        return self.nodes_per_host * self.devices_per_node

    def __str__(self) -> str:
        kind = self.device.name if self.device else "cpu"
        nodes = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        return f"{nodes}{kind}:{self.devices_per_node}"
