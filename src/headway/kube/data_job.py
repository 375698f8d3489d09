"""The Job whose pods prepare a set: each is one part of an Indexed Job.

Their contract, `headway part`: HEADWAY_DATA says what is prepared, HEADWAY_DATA_PARTS in how
many parts, HEADWAY_DATA_NODES how many of them at a time, HEADWAY_PROCESSES how many processes
tokenise; Kubernetes sets JOB_COMPLETION_INDEX. A pod ends with 0 when its part is finished, or
when the set holds failed.txt; whatever else it ends with, another takes its place.

Kubernetes counts lost machines as failures, unless a podFailurePolicy ignores them. But with one,
the only podReplacementPolicy is Failed: a pod on a dead machine is replaced when that machine is
back, or its node is deleted. So Kubernetes' count is out of the way (`MOST_PODS`), and the parts
count in the set what is their own failure, until failed.txt: data/prepare/in_parts.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.errors import BadInput
from headway.kube.names import Object, labels
from headway.kube.network_policy import network_policy
from headway.kube.own_image import has_own_image
from headway.kube.placement import whole_cores
from headway.kube.pod_overrides import TargetMismatch, require_restricted, with_overrides
from headway.kube.pods import (
    affinity,
    container,
    metadata,
    queue_labels,
    short_node_tolerations,
    template,
    variable,
)
from headway.kube.rbac import worker_account
from headway.kube.reviews import amount
from headway.kube.worker_job import secret_variable
from headway.spec.target_file import Target

MOST_PODS = 100
"""Pods of one index that may fail or be lost. An index is hours of work at most, and loses a pod or
two; Kubernetes waits ten minutes after the sixth, so only what never gets to run a part, such as a
broken image, fails this often."""
KEPT_SECONDS = 3600
"""After its end."""
GRACE_SECONDS = 10
"""A part that ends early has lost at most the shard that it was writing."""
MOST_BY_DEFAULT = {"cpu": "8", "memory": "32Gi"}
"""Workers often have a whole machine with accelerators: no other machine would hold such pods, or
one would be bought for each."""
MOST_CHARACTERS = 100_000
"""Of a variable: Linux takes 128 KiB."""


@dataclass(frozen=True)
class Preparation:
    """What a Job prepares."""

    key: str
    """Digits that identify it: sources, settings and destination."""
    parts: int
    nodes: int
    """Parts that are prepared at the same time."""
    what: str
    """What `headway part` reads, as JSON."""
    secrets: Sequence[str] = ()
    """Variables of the target's Secret that its pods get."""

    @property
    def name(self) -> str:
        return f"data-{self.key}"


def data_objects(preparation: Preparation, target: Target) -> list[Object]:
    """The Job, and what is deleted with it."""
    if target.security == "restricted":
        require_restricted(target.pod)
    name, namespace = preparation.name, target.kube.namespace
    objects = [_job(preparation, target), network_policy(name, target)]
    if annotations := target.service_account.annotations:
        account = metadata(name, namespace) | {"annotations": dict(annotations)}
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": account,
                "automountServiceAccountToken": False,
            }
        )
    return objects


def _job(preparation: Preparation, target: Target) -> Object:
    made = metadata(preparation.name, target.kube.namespace, component="data")
    made["labels"] |= queue_labels(target)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": made,
        "spec": {
            "completionMode": "Indexed",
            "completions": preparation.parts,
            "parallelism": min(preparation.nodes, preparation.parts),
            "backoffLimitPerIndex": MOST_PODS - 1,
            "maxFailedIndexes": 0,
            # At once, though the previous pod may still write: what both write is the same.
            "podReplacementPolicy": "TerminatingOrFailed",
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": with_overrides(_template(preparation, target), target, "data"),
        },
    }


def _template(preparation: Preparation, target: Target) -> Object:
    if has_own_image(target) and target.prepare.image is None:
        raise TargetMismatch(
            "data is prepared by Headway, which `image` lacks: `coordinator.image` brings it to "
            "workers alone",
            ("prepare", "image"),
            "prepare: {image: IMAGE}, one with Headway and its extra `train`",
        )
    name = preparation.name
    spec: Object = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "affinity": affinity(target, is_off_spot=False),
        "tolerations": short_node_tolerations(),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels(name, "data")},
            }
        ],
    }
    if (account := worker_account(name, target)) is not None:
        spec["serviceAccountName"] = account
    resources = _resources(target)
    part = container(
        "data",
        target,
        ["headway", "part"],
        _environment(preparation, target, resources),
        [],
        resources,
    )
    return template(name, "data", target, part, [], spec)


def _environment(
    preparation: Preparation, target: Target, resources: Mapping[str, str]
) -> list[Object]:
    if len(preparation.what) > MOST_CHARACTERS:
        raise BadInput(
            f"the sources take {len(preparation.what)} characters: more than the "
            f"{MOST_CHARACTERS} that a pod can be given",
            "name folders or patterns, such as s3://bucket/text/*.jsonl",
        )
    cpu = resources.get("cpu")
    secrets = dict.fromkeys([*preparation.secrets, *target.prepare.secrets])
    return [
        variable("HEADWAY_DATA", preparation.what),
        variable("HEADWAY_DATA_PARTS", str(preparation.parts)),
        variable("HEADWAY_DATA_NODES", str(preparation.nodes)),
        *([variable("HEADWAY_PROCESSES", str(whole_cores(cpu)))] if cpu is not None else []),
        *(secret_variable(name, target) for name in secrets),
    ]


def _resources(target: Target) -> dict[str, str]:
    if target.prepare.resources is not None:
        return target.prepare.resources
    found = {}
    for name, most in MOST_BY_DEFAULT.items():
        if (given := target.pod.resources.get(name)) is not None:
            found[name] = given if amount(given) <= amount(most) else most
    return found
