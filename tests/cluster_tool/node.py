"""One node: namespaces of its own for network, processes and mounts, as a machine has.

Its first process is the power switch: when it ends, the kernel ends every other process of the
node, pods included, and removes their mounts. The disk and containerd's images stay.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil
import yaml

from cluster_tool import cgroups, images, network
from cluster_tool.binaries import binary
from cluster_tool.commands import run, try_to
from cluster_tool.image_files import venv
from cluster_tool.images import Image
from cluster_tool.processes import Processes, kill, start_ticks
from support.waiting import wait_for

DISK_BYTES = 4 << 30
"""As the node sees it: the file is sparse. Small enough to be filled in a moment."""
MOUNT_POINTS = (Path("/var/lib/kubelet"), Path("/var/lib/cni"))
"""Fixed in the programs, so each node mounts its own there; made on the host if missing."""
INSIDE = ("kubelet", "proxy", "containerd")
"""What runs in the machine."""
LENT = "/opt/lent"
"""This machine's venv in every container: images have links to it in place of torch's 5 GB."""

BOOT = """
set -e
mount -t tmpfs tmpfs /run
mkdir -p "$1/disk"
mount -o loop "$1/disk.img" "$1/disk"
mkdir -p "$1/disk/kubelet" "$1/disk/cni" "$1/disk/log"
mount --bind "$1/disk/kubelet" /var/lib/kubelet
mount --bind "$1/disk/cni" /var/lib/cni
mount --bind "$1/disk/log" /var/log
touch "$1/booted"
# The shell stays and takes in orphans, as the first process has to.
sleep infinity &
wait
"""


class Node:
    """Numbers begin with 1; in Kubernetes it is `node1`."""

    def __init__(self, number: int, num_nodes: int, folder: Path, processes: Processes) -> None:
        self.number = number
        self.name = f"node{number}"
        self.address = network.address(number)
        self._num_nodes = num_nodes
        self._cluster = folder
        self._folder = folder / self.name
        self._socket = self._folder / "containerd.sock"
        self._processes = processes

    def power_on(self) -> None:
        """A machine with containerd; the disk is what it was."""
        self._folder.mkdir(exist_ok=True)
        network.make_node(self.number, self._num_nodes)
        cgroups.make(network.namespace(self.number))
        self._make_disk()
        self._boot()
        self._write_settings()
        self._socket.unlink(missing_ok=True)
        self._start("containerd", "containerd", "--config", self._folder / "containerd.toml")
        wait_for(f"containerd of {self.name}", self._containerd_answers, seconds=60)

    def load(self, image: Image, name: str | None = None) -> None:
        images.load(image, self._socket, name)

    def join(self) -> None:
        """The kubelet registers the node, or takes up its work again."""
        kube = binary("kube")
        self._start(
            "kubelet",
            *(kube, "kubelet", f"--config={self._folder}/kubelet.yaml"),
            f"--kubeconfig={self._cluster}/{self.name}.kubeconfig",
            *(f"--hostname-override={self.name}", f"--node-ip={self.address}"),
        )
        self._start(
            "proxy",
            *(kube, "kube-proxy", f"--kubeconfig={self._cluster}/proxy.kubeconfig"),
            *(f"--hostname-override={self.name}", f"--cluster-cidr={network.PODS}"),
            # These are the whole machine's, and not for a namespace to set.
            *("--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s"),
            *("--conntrack-tcp-timeout-close-wait=0s", "--oom-score-adj=0"),
        )

    def power_off(self) -> None:
        """At once and without a word: the network goes first, or the kernel would still tell
        everybody that the connections are closed."""
        if Path("/sys/class/net", network.namespace(self.number)).exists():
            network.cut(self.number)
        machine = self._machine()
        if machine is not None:
            ticks = start_ticks(machine)
            if ticks is not None:
                kill(machine, ticks)
        for name in (*INSIDE, "machine"):
            self._processes.end(f"{self.name}-{name}")
        network.remove_node(self.number)
        cgroups.remove(network.namespace(self.number))
        wait_for(f"{self.name}'s disk to be let go", self._disk_is_free, seconds=20)

    @property
    def is_on(self) -> bool:
        return self._machine() is not None

    @property
    def is_whole(self) -> bool:
        """On, and all of it runs."""
        return self.is_on and all(
            self._processes.pid(f"{self.name}-{name}") for name in (*INSIDE, "machine")
        )

    @property
    def disk(self) -> Path:
        """The node's disk, mounted only in the node."""
        return Path(f"/proc/{self._machine()}/root{self._folder}/disk")

    def pod_pids(self, uid: str = "") -> set[int]:
        """The processes of its pods, or of one."""
        return cgroups.pids(network.namespace(self.number), uid)

    def _machine(self) -> int | None:
        """The first process in there: the only child of the one that made the namespaces."""
        maker = self._processes.pid(f"{self.name}-machine")
        if maker is None:
            return None
        try:
            children = psutil.Process(maker).children()
        except psutil.NoSuchProcess:
            return None
        return children[0].pid if children else None

    def _boot(self) -> None:
        booted = self._folder / "booted"
        booted.unlink(missing_ok=True)
        own = ("--mount", "--propagation", "slave", "--pid", "--fork", "--kill-child")
        self._processes.start(
            f"{self.name}-machine",
            [
                *("nsenter", f"--net=/run/netns/{network.namespace(self.number)}"),
                *("unshare", *own, "--mount-proc", "bash", "-c", BOOT, self.name, self._folder),
            ],
        )

        def up() -> bool:
            log = self._processes.log(f"{self.name}-machine")
            assert self._processes.pid(f"{self.name}-machine"), f"{self.name} is not up: {log}"
            return booted.exists()

        wait_for(f"{self.name} to boot", up, seconds=30)

    def do(self, *command: str | Path) -> None:
        """In the node, to its end."""
        run("nsenter", "--target", str(self._machine()), "--net", "--mount", *command)

    def _start(self, name: str, *command: str | Path) -> None:
        """In the node. Not by `ip netns exec`: that hides the cgroups."""
        enter = ("nsenter", "--target", str(self._machine()), "--net", "--mount", "--pid")
        self._processes.start(f"{self.name}-{name}", [*enter, *command])

    def _make_disk(self) -> None:
        disk = self._folder / "disk.img"
        if not disk.exists():
            with disk.open("wb") as file:
                os.truncate(file.fileno(), DISK_BYTES)
            run("mkfs.ext4", "-qF", "-m", "0", "-O", "^has_journal", disk)

    def _disk_is_free(self) -> bool:
        disk = self._folder / "disk.img"
        return not disk.exists() or not run("losetup", "--associated", disk).strip()

    def _containerd_answers(self) -> bool:
        return self._socket.exists() and try_to("ctr", "--address", self._socket, "version")

    def _write_settings(self) -> None:
        folder = self._folder
        (folder / "cni").mkdir(exist_ok=True)
        (folder / "cni" / "pods.conflist").write_text(json.dumps(self._pod_network()))
        (folder / "containerd.toml").write_text(self._containerd_settings())
        (folder / "container.json").write_text(json.dumps(self._container()))
        (folder / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet_settings()))

    def _pod_network(self) -> dict[str, object]:
        """A cable for each pod rather than a bridge: everything passes the node's own routing,
        which is where Services are translated."""
        ranges = [[{"subnet": network.pod_range(self.number)}]]
        addresses = {
            "type": "host-local",
            "dataDir": "/run/pod-addresses",
            "ranges": ranges,
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        cable = {"type": "ptp", "ipMasq": False, "ipam": addresses}
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [cable]}

    def _containerd_settings(self) -> str:
        # Without CAP_SYS_RESOURCE a pod cannot be given a better chance against the memory killer.
        return f"""
version = 2
root = "{self._folder}/containerd"
state = "/run/containerd"
[grpc]
  address = "{self._socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{self._folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{self._folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "{self._folder}/container.json"
"""

    def _container(self) -> dict[str, Any]:
        """What containerd begins each container with: its own default, and what is lent."""
        spec: dict[str, Any] = json.loads(run("ctr", "oci", "spec"))
        options = ["rbind", "ro", "nosuid", "nodev"]
        lent = {"destination": LENT, "type": "bind", "source": str(venv()), "options": options}
        spec["mounts"].append(lent)
        return spec

    def _kubelet_settings(self) -> dict[str, object]:
        keys = self._cluster / "keys"
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{keys}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{keys}/{self.name}.crt",
            "tlsPrivateKeyFile": f"{keys}/{self.name}.key",
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "volumePluginDir": f"{self._folder}/volume-plugins",
            "clusterDomain": "cluster.local",
            "clusterDNS": [network.HOST],
            "resolvConf": "",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{network.namespace(self.number)}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            # All nodes share this machine's few cores, and pods request a part of one: without
            # limits they start in half the time.
            "cpuCFSQuota": False,
            # Only the node's own disk is watched; images are on the machine's, which is not ours.
            "evictionHard": {"memory.available": "1%", "nodefs.available": "5%"},
            # A disk that was freed is believed sooner than after the usual five minutes.
            "evictionPressureTransitionPeriod": "10s",
            "imageGCHighThresholdPercent": 100,
            "shutdownGracePeriod": "0s",
        }
