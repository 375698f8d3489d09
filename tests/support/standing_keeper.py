"""A keeper in a process of its own, over a fake API server: `python standing_keeper.py PORT NAME
FOLDER`. With a NAME it holds the run's Lease or stands by. Ports are PORT and the two after it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from headway.clock import SystemClock
from headway.kube.client import KubeClient
from headway.kube.lease_object import KubeLease, only_while
from headway.launch import keeper as keeper_module
from headway.launch.coordinator_process import CoordinatorProcess
from headway.launch.keeper import Keeper
from headway.launch.lease import DURATION_SECONDS, BootClock, LeaseKeeper
from headway.member.coordinator.record import GenerationRecord, StoreRecord
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, resolve
from headway.state.run_directory import RunDirectory
from headway.state.store import Store


class KeeperOverFolder(Keeper):
    """Its record is a folder: the coordinator's process is in no pod."""

    def _record(self) -> GenerationRecord:
        return StoreRecord(Store(FOLDER / "members"), "it")

    def _coordinator(self, folder: Path) -> CoordinatorProcess:
        return CoordinatorProcess(
            "it",
            str(FOLDER / "members"),
            folder,
            ["--max", "4", "--first", "1", "--http", f"127.0.0.1:{PORT + 2}"],
            self.clock,
            key=FOLDER / "key",
            address=f"127.0.0.1:{PORT}",
        )


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def main(name: str) -> None:
    clock = SystemClock()
    vars(keeper_module)["HTTP_PORT"] = PORT + 1
    resolved = resolve(
        load_run(FOLDER / "run.yaml", ["data.train=prepared", "elastic=live"]),
        Hardware(cores=2, cuda_devices=0),
        nodes=2,
        parameters=None,
        train_set=FOLDER,
        validation_sets={},
    )
    kube = KubeClient.from_kubeconfig(None, "ml")
    lease = None
    if name:
        own = KubeClient.from_kubeconfig(None, "ml")
        object_ = KubeLease(own, "headway-it-coordinator", BootClock(), DURATION_SECONDS)
        lease = LeaseKeeper(object_, name, BootClock(), say)
        only_while(lease.is_held, kube)
    keeper = KeeperOverFolder(
        kube,
        resolved,
        RunDirectory.create(FOLDER / "it", clock),
        key=FOLDER / "key",
        spot_label=None,
        scarcity=None,
        lease=lease,
        clock=clock,
        say=say,
    )

    def stop(*_: object) -> None:
        keeper.is_stopping = True

    signal.signal(signal.SIGTERM, stop)
    keeper.run()


if __name__ == "__main__":
    PORT, FOLDER = int(sys.argv[1]), Path(sys.argv[3])
    main(sys.argv[2])
