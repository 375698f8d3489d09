"""A real Slurm on this machine: a controller and nodes, each in namespaces of its own, so that a
node can lose its power. Needs root, and the Debian packages slurm-wlm and munge."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from support.waiting import wait_for

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
CONTROLLER, SUBNET = "headway-slurm", "10.79.0"
START_SECONDS = 60.0
LOST_SECONDS = 10
"""Without an answer of a node, after which Slurm declares it lost. Default: 300."""
REQUEUE_SECONDS = 5
"""Until a requeued job may begin. Default: 120."""
CONFIGURATION = f"""\
ClusterName=headway
SlurmctldHost=controller({SUBNET}.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=FOLDER/munge,cred_expire={REQUEUE_SECONDS}
StateSaveLocation=FOLDER/state
SlurmdSpoolDir=FOLDER/%n
SlurmctldPidFile=FOLDER/controller.pid
SlurmdPidFile=FOLDER/%n.pid
SlurmctldLogFile=FOLDER/controller.log
SlurmdLogFile=FOLDER/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
SlurmdParameters=config_overrides
SlurmdTimeout={LOST_SECONDS}
KillWait=5
"""


def missing_programs() -> list[str]:
    found = os.environ["PATH"] + ":/usr/sbin"
    return [name for name in PROGRAMS if shutil.which(name, path=found) is None]


class Slurm:
    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.nodes = {f"n{number}": f"{SUBNET}.{10 + number}" for number in range(1, nodes + 1)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._remove_network()
        try:
            self._make_network()
            self._configure()
            munge = ("munged", "--foreground", f"--socket={self.folder}/munge", "--force")
            files = {"key-file": "key", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
            options = [f"--{what}={self.folder}/munge.{end}" for what, end in files.items()]
            self._start("munge", CONTROLLER, *munge, *options)
            wait_for("munge", (self.folder / "munge").exists, START_SECONDS)
            self._start("controller", CONTROLLER, "slurmctld", "-D")
            for node in self.nodes:
                self._start(node, _namespace(node), "slurmd", "-D", "-N", node)
            wait_for("Slurm's nodes", self._is_ready, START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._remove_network()

    def run(self, *command: str, folder: Path | None = None) -> str:
        """What the command prints, on the controller's machine."""
        done = subprocess.run(
            [*_inside(CONTROLLER), *command],
            cwd=folder or self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, script: str, folder: Path) -> str:
        """The job's number."""
        return self.run("sbatch", "--parsable", script, folder=folder).strip()

    def job(self, number: str) -> Mapping[str, str]:
        words = self.run("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def cut_power(self, node: str) -> None:
        """Kills all that the node runs, and nobody hears of it."""
        _ip("link", "set", f"port-{node}", "down", inside=CONTROLLER)
        process = self._processes.pop(node)
        process.kill()
        process.wait()

    def _start(self, name: str, namespace: str, *command: str) -> None:
        """In a namespace of processes, which ends with its first one."""
        script = (
            f"hostname {name}; mount --bind hosts /etc/hosts; "
            "mount --bind /dev/null /etc/resolv.conf; "  # a server there would not be reached
            '"$@"; exit'  # the shell stays, to reap orphans
        )
        alone = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
        with (self.folder / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*_inside(namespace), *alone, "sh", "-c", script, "sh", *command],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _is_ready(self) -> bool:
        for name, process in self._processes.items():
            assert process.poll() is None, (self.folder / f"{name}.out").read_text()
        with suppress(AssertionError):
            states = self.run("sinfo", "--noheader", "--Node", "--format=%T").split()
            return states == ["idle"] * len(self.nodes)
        return False

    def _environment(self) -> dict[str, str]:
        mine = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        return {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin", **mine}

    def _configure(self) -> None:
        lines = CONFIGURATION.replace("FOLDER", str(self.folder)).splitlines()
        lines += [f"NodeName={name} NodeAddr={address}" for name, address in self.nodes.items()]
        (self.folder / "slurm.conf").write_text(
            "\n".join([*lines, "PartitionName=all Nodes=ALL Default=YES", ""])
        )
        for name in ("state", *self.nodes):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)

    def _make_network(self) -> None:
        _ip("netns", "add", CONTROLLER)
        _ip("link", "add", "bridge", "type", "bridge", inside=CONTROLLER)
        _ip("addr", "add", f"{SUBNET}.1/24", "dev", "bridge", inside=CONTROLLER)
        for device in ("bridge", "lo"):
            _ip("link", "set", device, "up", inside=CONTROLLER)
        hosts = {"localhost": "127.0.0.1", "controller": f"{SUBNET}.1", **self.nodes}
        lines = [f"{address} {name}\n" for name, address in hosts.items()]
        (self.folder / "hosts").write_text("".join(lines))
        for node, address in self.nodes.items():
            name, port = _namespace(node), f"port-{node}"
            _ip("netns", "add", name)
            ends = ("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip(*ends, inside=CONTROLLER)
            _ip("link", "set", port, "master", "bridge", "up", inside=CONTROLLER)
            _ip("addr", "add", f"{address}/24", "dev", "eth0", inside=name)
            for device in ("eth0", "lo"):
                _ip("link", "set", device, "up", inside=name)

    def _remove_network(self) -> None:
        for name in (CONTROLLER, *map(_namespace, self.nodes)):
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", name)


def _namespace(node: str) -> str:
    return f"{CONTROLLER}-{node}"


def _inside(namespace: str) -> tuple[str, str]:
    """Unlike `ip netns exec` it keeps /sys, where slurmd looks for cgroups."""
    return "nsenter", f"--net=/run/netns/{namespace}"


def _ip(*words: str, inside: str | None = None) -> None:
    within = _inside(inside) if inside else ()
    subprocess.run([*within, "ip", *words], check=True, capture_output=True)
