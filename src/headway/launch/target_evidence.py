"""All that a check of a target has seen, and words for what was not. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.kube.names import Object
from headway.kube.reviews import Finding
from headway.launch.probe_pods import ProbeStart
from headway.launch.probe_questions import ProbeAnswers
from headway.launch.target_look import TargetLook
from headway.spec.target_file import Target

NO_IMAGE = ("the image cannot be pulled", "the image name is invalid", "the image is not on")


@dataclass(frozen=True)
class TargetEvidence:
    """All that a check has seen."""

    name: str
    """Of the target."""
    target: Target
    objects: Sequence[Object]
    """That were made."""
    look: TargetLook
    start: ProbeStart
    answers: ProbeAnswers
    refused: str | None = None
    """Why the objects could not be made."""
    server_offset: float | None = None
    """Seconds that the API server's clock is ahead of the client's."""

    @property
    def namespace(self) -> str:
        return self.target.kube.namespace

    @property
    def refusals(self) -> list[str]:
        """Of dry runs."""
        return [words for words in (self.look.refusals or {}).values() if words is not None]

    def named(self, key: str) -> Finding | None:
        """What is wrong with something that a key of the target names."""
        found = [one for one in self.look.named if one.path[:1] == (key,)]
        return min(found, key=lambda one: not one.is_fatal, default=None)

    def waits(self, component: str) -> str | None:
        found = self.start.waits.get(component)
        return found[0].words if found else None

    @property
    def all_waits(self) -> dict[str, str]:
        return {one: found[0].words for one, found in self.start.waits.items() if found}


def asked_devices(seen: TargetEvidence) -> tuple[str, int]:
    """Devices of a worker's pod, by name; empty: none."""
    device = seen.target.pod.device
    (worker,) = [one for one in worker_pod(seen)["spec"]["containers"] if one["name"] == "worker"]
    amount = worker["resources"]["limits"].get(device) if device is not None else None
    return (device, int(amount)) if device is not None and amount is not None else ("", 0)


def worker_pod(seen: TargetEvidence) -> Object:
    pod: Object = seen.objects[0]["spec"]["template"]
    return pod


def no_workers(seen: TargetEvidence) -> str:
    if seen.refused is not None:
        return f"no pod was made: {seen.refused}"
    if seen.answers.unreachable:
        return "the pods cannot be reached from here"
    words = seen.waits("worker")
    return f"no worker runs: {words}" if words else "no worker answered"


def no_coordinator(seen: TargetEvidence) -> str:
    if seen.refused is not None:
        return f"no pod was made: {seen.refused}"
    words = seen.waits("coordinator")
    return f"its pod does not run: {words}" if words else "its pod did not answer"


def is_policy(words: str) -> bool:
    signs = ("rejected by policy", "violates PodSecurity", "denied the request", "denied request")
    return any(sign in words for sign in signs)


def is_volume(words: str) -> bool:
    return any(sign in words for sign in ("ount", "olume", "ttach"))
