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
    memory_bytes: int | None = None
    """Memory that a worker may use, if it is known to differ from the device's."""
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

    def __str__(self) -> str:
        kind = self.device.name if self.device else "cpu"
        nodes = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        return f"{nodes}{kind}:{self.devices_per_node}"
