"""headway keep: what the coordinator's pod runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from headway.cli.output import say


def keep() -> None:
    """Supervise a run on Kubernetes (used in the coordinator's pod of headway run --on).

    Configured by HEADWAY_SPEC, HEADWAY_RUN_DIRECTORY, HEADWAY_KEY and, for what a target may leave
    out, HEADWAY_SPOT_LABEL, HEADWAY_SCARCITY, HEADWAY_KINDS and HEADWAY_PRICES."""
    from headway.clock import SystemClock, stamp
    from headway.kube.client import KubeClient
    from headway.kube.kinds import parse_kinds
    from headway.kube.node_prices import NodePrices
    from headway.kube.versions import require_launchers_version
    from headway.launch.keeper import Keeper
    from headway.launch.scarcity import ScarcityRules
    from headway.state.run_directory import RunDirectory, given_spec

    require_launchers_version()
    clock = SystemClock()
    resolved = given_spec()
    assert resolved is not None, "HEADWAY_SPEC is in the pod"
    label, _, value = os.environ.get("HEADWAY_SPOT_LABEL", "").partition("=")
    scarcity = os.environ.get("HEADWAY_SCARCITY")
    prices = os.environ.get("HEADWAY_PRICES")
    keeper = Keeper(
        KubeClient.in_cluster(),
        resolved,
        RunDirectory.create(os.environ["HEADWAY_RUN_DIRECTORY"], clock),
        key=Path(os.environ["HEADWAY_KEY"]),
        spot_label=(label, value) if label else None,
        scarcity=ScarcityRules.parse(scarcity) if scarcity else None,
        kinds=parse_kinds(os.environ.get("HEADWAY_KINDS")),
        rates=NodePrices.parse(prices) if prices else None,
        clock=clock,
        say=lambda text: say(f"{stamp(clock.now())} {text}"),
    )

    def stop(*_: object) -> None:
        keeper.is_stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    keeper.run()
