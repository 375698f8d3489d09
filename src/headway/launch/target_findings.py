"""What was seen of a target, as lines that say whether a run will work there. Pure."""

from __future__ import annotations

from headway.kube.check_lines import NAMES_IN_ORDER, CheckLine, failed
from headway.launch.api_findings import coordinator_rights, login, policy, quota, your_rights
from headway.launch.pod_findings import (
    clocks,
    coordinator,
    devices,
    fabric,
    image,
    machines,
    names,
    reach,
    workers,
)
from headway.launch.storage_findings import conditional, region, storage
from headway.launch.target_evidence import TargetEvidence

LINES = (
    *(login, your_rights, coordinator_rights, quota, policy, image, machines, devices, fabric),
    *(reach, names, workers, coordinator, storage, conditional, region, clocks),
)


def findings(seen: TargetEvidence) -> list[CheckLine]:
    return [
        _unanswered(name, seen) if name in seen.look.failures else line(seen)
        for name, line in zip(NAMES_IN_ORDER, LINES, strict=True)
    ]


def _unanswered(name: str, seen: TargetEvidence) -> CheckLine:
    return failed(
        name,
        f"the API server was asked, and failed: {seen.look.failures[name]}",
        f"headway target check {seen.name} once more; if it fails again: kubectl get --raw "
        "'/readyz?verbose'",
    )
