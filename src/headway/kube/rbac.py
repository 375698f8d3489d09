"""What the coordinator may do at the API server."""

from __future__ import annotations

from headway.kube.names import Object, coordinator_object, record_object, run_object
from headway.kube.pods import metadata
from headway.spec.target_file import Target

RBAC = "rbac.authorization.k8s.io"
QUEUED: Object = {
    "apiGroups": ["kueue.x-k8s.io"],
    "resources": ["workloads"],
    "verbs": ["list", "patch"],
}


def service_account(run: str, target: Target) -> Object:
    made = metadata(run, target.kube.namespace)
    if target.service_account.annotations:
        made["annotations"] = dict(target.service_account.annotations)
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": made,
        # The coordinator's pod asks for the token; no other gets it by naming this account.
        "automountServiceAccountToken": False,
    }


def role(run: str, target: Target) -> Object:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role",
        "metadata": metadata(run, target.kube.namespace),
        "rules": [
            {
                # RBAC knows names but no labels, and pods have new names each time: so these are
                # rights over all pods of the namespace.
                "apiGroups": [""],
                "resources": ["pods"],
                "verbs": ["list", "watch", "patch", "delete"],
            },
            {
                "apiGroups": ["batch"],
                "resources": ["jobs"],
                # To see that the run has ended, and to stop it when its budget is used up.
                "resourceNames": [run_object(run), coordinator_object(run)],
                "verbs": ["get", "patch"],
            },
            {
                "apiGroups": [""],
                "resources": ["configmaps"],
                "resourceNames": [record_object(run)],
                "verbs": ["get", "update"],
            },
            # The same, of a Job that Kueue would start again.
            *([QUEUED] if target.queue is not None else []),
        ],
    }


def role_binding(run: str, target: Target) -> Object:
    namespace, name = target.kube.namespace, run_object(run)
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": metadata(run, namespace),
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
