"""etcd, the API server, the controller manager and the scheduler, as processes of the host."""

from __future__ import annotations

from pathlib import Path

from cluster_tool import network
from cluster_tool.api import Api
from cluster_tool.binaries import binary
from cluster_tool.certificates import Authority
from cluster_tool.processes import Processes
from support.waiting import wait_for

SERVER = f"https://{network.HOST}:6443"
ETCD = "http://127.0.0.1:12379"
ETCD_PEERS = "http://127.0.0.1:12380"
"""Not the usual ports: somebody may have an etcd of his own here."""
QUICK = ("--kube-api-qps=1000", "--kube-api-burst=2000")
"""At the usual 20 requests a second, 5,000 pods would wait for the clients, not for the server."""


class ControlPlane:
    """Listens on the bridge's address, so only the nodes and this machine reach it."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder = folder
        self.kubeconfig = folder / "admin.kubeconfig"
        self._keys = folder / "keys"
        self._processes = processes

    def introduce(self, nodes: dict[str, str]) -> None:
        """Keys and kubeconfigs for everyone; nodes are given with their addresses."""
        authority = Authority(self._keys)
        authority.new_key("tokens")
        inside = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
        hosts = (network.HOST, network.API_SERVICE, *inside)
        authority.issue("server", "kube-apiserver", hosts=hosts)
        authority.issue("to-kubelets", "kube-apiserver", "system:masters")
        users = {
            "admin": ("admin", "system:masters"),
            "manager": ("system:kube-controller-manager", None),
            "scheduler": ("system:kube-scheduler", None),
            "proxy": ("system:kube-proxy", None),
            "dns": ("dns", "system:masters"),
            **{name: (f"system:node:{name}", "system:nodes") for name in nodes},
        }
        for name, (user, group) in users.items():
            authority.issue(name, user, group, [nodes[name]] if name in nodes else [])
            authority.kubeconfig(name, SERVER, self.folder / f"{name}.kubeconfig")

    def start(self) -> None:
        """Returns before it is ready: nodes can be made meanwhile."""
        self._processes.start("etcd", self._etcd())
        self.start_api()

    def start_controllers(self) -> None:
        """Once the API server is ready: the manager gives up on one that is not in 10 s."""
        self._processes.start("manager", self._manager())
        self._processes.start("scheduler", self._scheduler())

    def restart_controllers(self) -> None:
        """As where several compete for a lease: they end when they cannot renew it. They would
        otherwise retry later and later, and see nothing for up to a minute after the server is
        back."""
        for name in ("manager", "scheduler"):
            self._processes.end(name)
        self.start_controllers()

    def be_patient_with_nodes(self, seconds: int) -> None:
        """They may be silent for so long: thousands that share a core with the server are late."""
        self._processes.end("manager")
        patience = f"--node-monitor-grace-period={seconds}s"
        self._processes.start("manager", [*self._manager(), patience])

    def start_api(self, *options: str) -> None:
        self._processes.start("api", [*self._api(), *options])

    def stop_api(self) -> None:
        """Without a word, as when its machine dies."""
        self._processes.end("api")

    @property
    def api_runs(self) -> bool:
        return self._processes.pid("api") is not None

    def wait_ready(self, api: Api, seconds: float = 90.0) -> None:
        def ready() -> bool:
            assert self.api_runs, f"the API server has ended: {self._processes.log('api')}"
            return api.answers()

        wait_for("the API server", ready, seconds)

    def _etcd(self) -> list[str | Path]:
        return [
            *("etcd", "--data-dir", self.folder / "etcd", "--unsafe-no-fsync"),
            *("--listen-client-urls", ETCD, "--advertise-client-urls", ETCD),
            *("--listen-peer-urls", ETCD_PEERS, "--initial-advertise-peer-urls", ETCD_PEERS),
            *("--initial-cluster", f"default={ETCD_PEERS}"),
        ]

    def _api(self) -> list[str | Path]:
        keys = self._keys
        return [
            *(binary("kube"), "kube-apiserver", f"--etcd-servers={ETCD}"),
            *(f"--bind-address={network.HOST}", f"--advertise-address={network.HOST}"),
            f"--service-cluster-ip-range={network.SERVICES}",
            f"--client-ca-file={keys}/ca.crt",
            *(f"--tls-cert-file={keys}/server.crt", f"--tls-private-key-file={keys}/server.key"),
            f"--kubelet-certificate-authority={keys}/ca.crt",
            f"--kubelet-client-certificate={keys}/to-kubelets.crt",
            f"--kubelet-client-key={keys}/to-kubelets.key",
            # Nobody here can resolve a node's name.
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-key-file={keys}/tokens.key",
            f"--service-account-signing-key-file={keys}/tokens.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
            # For thousands of simulated nodes.
            *("--max-requests-inflight=1600", "--max-mutating-requests-inflight=800"),
            # Debian's etcd is too old for these two: watches that ask for them break off again and
            # again, instead of falling back once.
            "--feature-gates=WatchList=false,SizeBasedListCostEstimate=false",
        ]

    def _manager(self) -> list[str | Path]:
        return [
            *(binary("kube"), "kube-controller-manager", *QUICK),
            f"--kubeconfig={self.folder}/manager.kubeconfig",
            f"--service-account-private-key-file={self._keys}/tokens.key",
            f"--root-ca-file={self._keys}/ca.crt",
            "--use-service-account-credentials",
            # A claim that was seen before its volume is looked at again after that.
            "--pvclaimbinder-sync-period=1s",
            *("--bind-address=127.0.0.1", "--leader-elect=false"),
        ]

    def _scheduler(self) -> list[str | Path]:
        return [
            *(binary("kube"), "kube-scheduler", *QUICK),
            f"--kubeconfig={self.folder}/scheduler.kubeconfig",
            *("--bind-address=127.0.0.1", "--leader-elect=false"),
        ]
