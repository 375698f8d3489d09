"""Which machines a pod could run on, by their labels and taints. Pure: of what the API server says
of nodes. How much of them is free is for the scheduler to say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headway.kube.names import Object

REGION = "topology.kubernetes.io/region"


def fits(node: Object, pod: Object) -> bool:
    """Whether it has the labels that the pod's spec requires, and no taint that it does not
    tolerate."""
    labels = node["metadata"].get("labels", {})
    selector = pod.get("nodeSelector", {})
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    required = (
        pod.get("affinity", {})
        .get("nodeAffinity", {})
        .get("requiredDuringSchedulingIgnoredDuringExecution", {})
    )
    terms = required.get("nodeSelectorTerms", [])
    if terms and not any(_fulfils(labels, term) for term in terms):
        return False
    spec = node.get("spec", {})
    if spec.get("unschedulable"):
        return False
    tolerations = pod.get("tolerations", [])
    return all(
        any(_tolerates(one, taint) for one in tolerations)
        for taint in spec.get("taints", [])
        if taint["effect"] in ("NoSchedule", "NoExecute")
    )


def _fulfils(labels: Mapping[str, str], term: Object) -> bool:
    return all(_holds(labels, one) for one in term.get("matchExpressions", []))


def _holds(labels: Mapping[str, str], one: Object) -> bool:
    value, values = labels.get(one["key"]), one.get("values", [])
    match one["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return True  # numbers: not ours


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    ours = (toleration.get("key"), toleration.get("value", ""))
    return ours == (taint["key"], taint.get("value", ""))


def devices_of(node: Object, resource: str) -> int:
    """That it offers to pods."""
    return int(node.get("status", {}).get("allocatable", {}).get(resource, "0"))


def regions_of(nodes: Iterable[Object], names: set[str] | None) -> set[str]:
    """Of those with these names; None: of all."""
    return {
        node["metadata"]["labels"][REGION]
        for node in nodes
        if REGION in node["metadata"].get("labels", {})
        and (names is None or node["metadata"]["name"] in names)
    }
