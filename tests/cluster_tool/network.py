"""The network: a bridge with the control plane's address, and a namespace for each node.

Nodes and the host know the way to each other's pods, so nothing is translated between them.
"""

from __future__ import annotations

import socket
from pathlib import Path

from cluster_tool.commands import run, try_to

BRIDGE = "headway-kube"
"""Begins the name of all that is made here: devices, namespaces, cgroups."""
HOST = "10.90.0.1"
"""Of the API server and of DNS."""
NODES = "10.90.0.0/24"
PODS = "10.91.0.0/16"
SERVICES = "10.92.0.0/16"
API_SERVICE = "10.92.0.1"
MAX_NODES = 99
"""A device's name has 15 letters."""


def namespace(node: int) -> str:
    """Also the name of its device on the bridge, and of its cgroups."""
    return f"{BRIDGE}-{node}"


def address(node: int) -> str:
    return f"10.90.0.{node + 10}"


def pod_range(node: int) -> str:
    return f"10.91.{node}.0/24"


def _hardware(node: int) -> str:
    """The same after a restart, as a machine's is: neighbours remember it."""
    return f"02:00:0a:5a:00:{node:02x}"


def make_bridge(folder: Path) -> None:
    """Of which there is one: it tells in which folder the cluster is."""
    made = try_to("ip", "link", "add", BRIDGE, "address", _hardware(0), "type", "bridge")
    assert made, (
        f"a test cluster is up already, in {folder_of_cluster()}: "
        "`python -m cluster_tool down` takes it away"
    )
    run("ip", "link", "set", BRIDGE, "alias", folder)
    run("ip", "address", "add", f"{HOST}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")


def folder_of_cluster() -> Path | None:
    """Of the one that is up on this machine."""
    try:
        alias = Path("/sys/class/net", BRIDGE, "ifalias").read_text().strip()
    except FileNotFoundError:
        return None
    return Path(alias) if alias else None


def remove_bridge() -> None:
    try_to("ip", "link", "delete", BRIDGE)


def make_node(node: int, num_nodes: int) -> None:
    name = namespace(node)
    run("ip", "netns", "add", name)
    inside = ("peer", "name", "eth0", "address", _hardware(node), "netns", name)
    run("ip", "link", "add", name, "type", "veth", *inside)
    run("ip", "link", "set", name, "master", BRIDGE, "up")
    run("ip", "-n", name, "link", "set", "lo", "up")
    run("ip", "-n", name, "address", "add", f"{address(node)}/24", "dev", "eth0")
    run("ip", "-n", name, "link", "set", "eth0", "up")
    run("ip", "-n", name, "route", "add", "default", "via", HOST)
    run("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    for other in range(1, num_nodes + 1):
        if other != node:
            run("ip", "-n", name, "route", "add", pod_range(other), "via", address(other))
    run("ip", "route", "replace", pod_range(node), "via", address(node))


def remove_node(node: int) -> None:
    """Its device on the bridge goes with it."""
    try_to("ip", "netns", "delete", namespace(node))
    # A pod's process that is just ending can hold the namespace for a moment.
    try_to("ip", "link", "delete", namespace(node))


def cut(node: int) -> None:
    run("ip", "link", "set", namespace(node), "down")


def mend(node: int) -> None:
    run("ip", "link", "set", namespace(node), "up")


def block(destination: str, port: int) -> None:
    """Nothing gets from the control plane's address to that port of those addresses."""
    run("iptables", "-A", "OUTPUT", *_rule(destination, port))


def unblock(destination: str, port: int) -> None:
    while try_to("iptables", "-D", "OUTPUT", *_rule(destination, port)):
        pass


def _rule(destination: str, port: int) -> list[str]:
    return ["-d", destination, "-p", "tcp", "--dport", str(port), "-j", "DROP"]


def block_into(node: int, ports: str) -> None:
    """New connections from pods of other nodes to those ports of this node's pods are lost."""
    run(*_command(node, "-I", ports))


def unblock_into(node: int, ports: str) -> None:
    while try_to(*_command(node, "-D", ports)):
        pass


def _command(node: int, action: str, ports: str) -> list[str]:
    inside = ["nsenter", f"--net=/run/netns/{namespace(node)}", "iptables", action, "FORWARD"]
    new = ["-s", PODS, "-d", pod_range(node), "-p", "tcp", "--syn", "--dport", ports]
    return [*inside, *new, "-j", "DROP"]


def connects(address: str, port: int) -> bool:
    """Whether the control plane's machine gets through."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((address, port)) == 0


def traces() -> list[str]:
    """Devices and namespaces of a cluster that are on this machine."""
    devices = (path.name for path in Path("/sys/class/net").glob(f"{BRIDGE}*"))
    spaces = (path.name for path in Path("/run/netns").glob(f"{BRIDGE}*"))
    return sorted(
        [*(f"device {name}" for name in devices), *(f"namespace {name}" for name in spaces)]
    )
