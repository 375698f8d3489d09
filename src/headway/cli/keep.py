"""headway keep: what the coordinator's pod runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from uuid import uuid4

from headway.cli.output import say


def keep() -> None:
    """Supervise a run on Kubernetes (used in the coordinator's pod of headway run --on).

    Configured by HEADWAY_SPEC, HEADWAY_RUN_DIRECTORY, HEADWAY_KEY and, for what a target may leave
    out, HEADWAY_SPOT_LABEL, HEADWAY_SCARCITY, HEADWAY_KINDS, HEADWAY_PRICES and HEADWAY_LEASE."""
    from headway.clock import SystemClock, stamp
    from headway.kube.client import KubeClient
    from headway.kube.kinds import parse_kinds
    from headway.kube.lease_object import only_while
    from headway.kube.node_prices import NodePrices
    from headway.kube.versions import require_launchers_version
    from headway.launch.keeper import Keeper
    from headway.launch.lease import LeaseKeeper
    from headway.launch.scarcity import ScarcityRules
    from headway.state.run_directory import RunDirectory, given_spec

    require_launchers_version()
    clock = SystemClock()
    resolved = given_spec()
    assert resolved is not None, "HEADWAY_SPEC is in the pod"
    label, _, value = os.environ.get("HEADWAY_SPOT_LABEL", "").partition("=")
    scarcity = os.environ.get("HEADWAY_SCARCITY")
    prices = os.environ.get("HEADWAY_PRICES")
    lease_name = os.environ.get("HEADWAY_LEASE")
    process = uuid4().hex[:8]
    is_stopping = False
    keeper: Keeper | None = None

    def stop(*_: object) -> None:
        nonlocal is_stopping
        is_stopping = True
        if keeper is not None:
            keeper.is_stopping = True

    def say_with_time(text: str) -> None:
        say(f"{stamp(clock.now())} {text}")

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    location = os.environ["HEADWAY_RUN_DIRECTORY"]
    RunDirectory.create(location, clock)
    while not is_stopping:
        kube = KubeClient.in_cluster()
        lease = None
        if lease_name is not None:
            lease = LeaseKeeper.of_pod(lease_name, process, say_with_time)
            only_while(lease.is_held, kube)
        keeper = Keeper(
            kube,
            resolved,
            RunDirectory(location),
            key=Path(os.environ["HEADWAY_KEY"]),
            spot_label=(label, value) if label else None,
            scarcity=ScarcityRules.parse(scarcity) if scarcity else None,
            kinds=parse_kinds(os.environ.get("HEADWAY_KINDS")),
            rates=NodePrices.parse(prices) if prices else None,
            lease=lease,
            clock=clock,
            say=say_with_time,
        )
        keeper.is_stopping = is_stopping
        keeper.run()
        if lease is None:
            return
