"""What a user types to add the test cluster as a target: its image, and the volumes it lends."""

from __future__ import annotations

import json

from support.lab import Lab


def add_target(lab: Lab, name: str = "lab", *more: str) -> str:
    """Types `headway target add`, and nothing into a file. The lab's own targets.yaml goes, so that
    only what was found is used. Returns what was printed for people."""
    pod = lab.target()["pod"]
    (lab.folder / "targets.yaml").unlink(missing_ok=True)
    lent = {key: pod[key] for key in ("volumes", "mounts", "env")}
    assert lab.cluster.image is not None
    flags = ["--namespace", lab.namespace, "--image", lab.cluster.image]
    for key, value in lent.items():
        flags += ["--set", f"pod.{key}={json.dumps(value)}"]
    return lab.headway("target", "add", name, *flags, *more).stderr
