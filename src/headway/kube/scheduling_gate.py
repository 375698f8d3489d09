"""How the scheduling gate of a worker's pod is lifted. Pure."""

from __future__ import annotations

from lightkube.resources.core_v1 import Pod

from headway.kube.names import GATE, Object

GATES = "/spec/schedulingGates"
AFFINITY_TERMS = (
    "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms"
)


def num_affinity_terms(pod: Pod) -> int:
    assert pod.spec is not None
    affinity = pod.spec.affinity.nodeAffinity if pod.spec.affinity is not None else None
    required = affinity and affinity.requiredDuringSchedulingIgnoredDuringExecution
    return len(required.nodeSelectorTerms) if required else 0


def patch_of_gate(num_terms: int, not_labelled: tuple[str, str] | None) -> list[Object]:
    """A JSON patch: the pod may be scheduled, but on no node with that label.

    All that may be changed in a pod that waits is that its terms of node affinity require more.
    A machine that fulfils one term is enough for the scheduler, so each term gets it."""
    patch: list[Object] = [{"op": "test", "path": f"{GATES}/0/name", "value": GATE}]
    for number in range(num_terms):
        term = f"{AFFINITY_TERMS}/{number}"
        if not_labelled is not None:
            key, value = not_labelled
            expression = {"key": key, "operator": "NotIn", "values": [value]}
            path = f"{term}/matchExpressions/-"
            patch.append({"op": "add", "path": path, "value": expression})
    patch.append({"op": "remove", "path": f"{GATES}/0"})
    return patch
