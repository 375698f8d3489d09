"""What a worker's pod needs of its machine: kind and number of devices, room on disk, a network,
and machines close to each other. Pure."""

from __future__ import annotations

from pathlib import PurePosixPath

from headway.kube.device_labels import Alternative, device_alternatives
from headway.kube.kinds import KindTerms
from headway.kube.names import Object, labels
from headway.kube.pod_overrides import TargetMismatch
from headway.kube.pods import node_terms
from headway.spec.quantities import Accelerators
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
    kinds = [one.kind for one in choices(resolved, target)]
    return next((kind for kind in kinds if _alternatives_of(kind, target) is None), None)


def machine_alternatives(resolved: Resolved, target: Target) -> list[Alternative]:
    """What a machine must be labelled with at first; one alternative is enough. A queue chooses one
    of all kinds for the whole run (Kueue's flavors), so there each of them will do."""
    found = choices(resolved, target)
    if target.queue is None:
        found = found[:1]
    alternatives = [each for one in found for each in _alternatives_of(one.kind, target) or [[]]]
    return alternatives or [[]]


def choices(resolved: Resolved, target: Target) -> tuple[Accelerators, ...]:
    """Kinds of accelerator whose machines are looked for, the best first. Claims find theirs by
    themselves."""
    wanted = resolved.run.resources.accelerators
    if wanted is None or wanted.is_cpu:
        return ()
    if target.pod.device is None:
        if wanted.others:
            raise TargetMismatch(
                f"it is null, and resources.accelerators is {wanted}: claims get the devices of "
                "their template, whatever their kind",
                ("pod", "device"),
                f"resources: {{accelerators: {wanted.choices[0]}}}",
            )
        return ()
    return wanted.choices


def later_choices(resolved: Resolved, target: Target) -> list[KindTerms]:
    """For the coordinator, which tries one kind after the other: all of a list."""
    found = choices(resolved, target)
    if len(found) < 2 or target.queue is not None:
        return []
    if target.scarcity == "off":
        raise TargetMismatch(
            f"it is off, and resources.accelerators is a list: {found[1]} would never be tried",
            ("scarcity",),
            "leave it out, or give one kind of accelerator",
        )
    if target.service_account.coordinator is not None and not target.has_choice:
        raise TargetMismatch(
            "it is not a list, and that of the run is: the coordinator's account gets the right to "
            "change kinds if the target has a list",
            ("resources", "accelerators"),
            f"resources: {{accelerators: {resolved.run.resources.accelerators}}}, and once, by an "
            "administrator: headway target rbac",
        )
    for one in found:
        if _alternatives_of(one.kind, target) is None:
            raise TargetMismatch(
                f"nothing says how machines with {one.kind} are labelled, and kinds of a list are "
                "told apart by labels",
                ("accelerators",),
                f"accelerators: {{{one.kind}: [{{LABEL: VALUE}}]}}",
            )
    is_off_spot = resolved.run.resources.spot == "none"
    return [
        KindTerms(
            str(one),
            node_terms(target, is_off_spot, _alternatives_of(one.kind, target) or [[]]),
        )
        for one in found
    ]


def _alternatives_of(kind: str, target: Target) -> list[Alternative] | None:
    return device_alternatives(kind, target.accelerators)
