"""headway facts: what the coordinator's pod of `headway target check` runs before it starts."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

from headway.cli.node import TERMINATION_LOG


def facts() -> None:
    """Find what no run says of its target (used in a pod of headway target check).

    Configured by HEADWAY_RUN_DIRECTORY and HEADWAY_REVIEWS. What it finds is in the status of its
    pod."""
    from headway.kube.check_objects import REVIEWS
    from headway.launch.target_facts import target_facts

    location = os.environ["HEADWAY_RUN_DIRECTORY"]
    content = location.rsplit("/", 1)[1].encode()
    found = target_facts(location, content, json.loads(os.environ[REVIEWS]))
    TERMINATION_LOG.write_text(json.dumps(asdict(found)))
