"""The cluster's names: CoreDNS on the host, at the bridge's address."""

from __future__ import annotations

import sys
from pathlib import Path

from cluster_tool import network, slow_dns
from cluster_tool.binaries import binary
from cluster_tool.processes import Processes
from support.waiting import wait_for

PORT = 53
HIDDEN_PORT = 1053
"""Where CoreDNS listens while a slow proxy is in front of it."""


class Dns:
    def __init__(self, folder: Path, processes: Processes) -> None:
        self._folder = folder
        self._processes = processes

    def start(self) -> None:
        self._start(PORT)

    def wait_ready(self) -> None:
        wait_for("DNS", lambda: slow_dns.resolves(network.HOST, PORT), seconds=60)

    def slow_down(self, seconds: float) -> None:
        """Every answer comes that much later."""
        self._processes.end("dns")
        self._start(HIDDEN_PORT)
        wait_for("DNS", lambda: slow_dns.resolves(network.HOST, HIDDEN_PORT), seconds=60)
        between = [sys.executable, slow_dns.__file__, network.HOST, str(PORT), str(HIDDEN_PORT)]
        self._processes.start("slow-dns", [*between, str(seconds)])

    def speed_up(self) -> None:
        self._processes.end("slow-dns")
        self._processes.end("dns")
        self._start(PORT)
        self.wait_ready()

    def stop(self) -> None:
        """Nobody answers."""
        self._processes.end("dns")

    def start_again(self) -> None:
        self._start(PORT)
        self.wait_ready()

    @property
    def is_stopped(self) -> bool:
        return "dns" not in self._processes.names()

    @property
    def is_slow(self) -> bool:
        return "slow-dns" in self._processes.names()

    def _start(self, port: int) -> None:
        settings = self._folder / "Corefile"
        # A record that lives longer than a second would hide that a pod has moved.
        settings.write_text(f"""
cluster.local:{port} in-addr.arpa:{port} {{
    bind {network.HOST}
    errors
    kubernetes {{
        kubeconfig {self._folder}/dns.kubeconfig
        ttl 1
    }}
}}
.:{port} {{
    bind {network.HOST}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
""")
        self._processes.start("dns", [binary("coredns"), "-conf", settings])
