"""What a worker's pod needs of its machine: kind and number of devices, room on disk, a network,
and machines close to each other. Pure."""

from __future__ import annotations

from pathlib import PurePosixPath

from headway.kube.device_labels import Alternative, device_alternatives
from headway.kube.names import Object, labels
from headway.kube.pod_overrides import TargetMismatch
from headway.spec.resolve import Resolved
from headway.spec.target_file import Target

DISK = "ephemeral-storage"
HOST_NETWORK: Object = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
"""Without the policy, the coordinator's name would not be found."""


def worker_resources(resolved: Resolved, target: Target) -> dict[str, str]:
    """As request and as limit."""
    resources = dict(target.pod.resources)
    if resolved.device != "cuda":
        return resources
    if target.pod.device is not None:
        resources[target.pod.device] = str(resolved.ranks_per_node)
    elif not target.pod.device_claims:
        raise TargetMismatch(
            "it is null, and there are no device_claims: nothing requests the accelerators",
            ("pod", "device"),
            "device: nvidia.com/gpu, or device_claims: [{name: gpus, template: NAME}]",
        )
    return resources


def request_cache(worker: Object, resolved: Resolved, target: Target) -> None:
    """Room on the machine's disk for the cache of sets in a bucket, if the target says how large it
    is: of the default, 16 GiB, a machine may have less, and small sets need less. Only requested: a
    pod above a limit is evicted, and the cache is not all that it writes."""
    sets = [resolved.train_set, *resolved.validation_sets.values()]
    size = target.pod.env.get("HEADWAY_CACHE_BYTES", "")
    is_used = any("://" in location for location in sets) and not _is_cache_mounted(target)
    if is_used and size.isdigit():
        worker["resources"]["requests"].setdefault(DISK, size)


def _is_cache_mounted(target: Target) -> bool:
    """Whether the cache is in a volume of the target's."""
    cache = target.pod.env.get("HEADWAY_CACHE")
    return cache is not None and any(
        PurePosixPath(cache).is_relative_to(mount["mountPath"]) for mount in target.pod.mounts
    )


def add_claims(spec: Object, worker: Object, target: Target) -> None:
    claims = target.pod.device_claims
    if claims:
        worker["resources"]["claims"] = [{"name": claim.name} for claim in claims]
        spec["resourceClaims"] = [
            {"name": claim.name, "resourceClaimTemplateName": claim.template} for claim in claims
        ]


def close_together(run: str, topology: str) -> Object:
    """Pod affinity: a preference, for workers that are placed apart are better than none."""
    term = {"labelSelector": {"matchLabels": labels(run, "worker")}, "topologyKey": topology}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"preferredDuringSchedulingIgnoredDuringExecution": preferred}


def unknown_kind(resolved: Resolved, target: Target) -> str | None:
    """The kind of accelerator that the run asks for, if nobody knows how its machines are
    labelled: pods then go to any machine with such a device."""
    kind = _kind(resolved, target)
    if kind is None or device_alternatives(kind, target.accelerators) is not None:
        return None
    return kind


def machine_alternatives(resolved: Resolved, target: Target) -> list[Alternative]:
    """What a machine must be labelled with; one alternative is enough."""
    kind = _kind(resolved, target)
    if kind is None:
        return [[]]
    return device_alternatives(kind, target.accelerators) or [[]]


def _kind(resolved: Resolved, target: Target) -> str | None:
    """The kind of accelerator whose machines are looked for. Claims find theirs by themselves."""
    wanted = resolved.run.resources.accelerators
    if wanted is None or wanted.is_cpu or target.pod.device is None:
        return None
    return wanted.kind
