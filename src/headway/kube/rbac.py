"""Service accounts of a run's pods, and what the coordinator may do at the API server.

Each run makes its own account, with rights over its own objects by their names. With
`service_account.coordinator` in the target, an administrator has made one for all runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from headway.kube.names import Object, coordinator_object, record_object, run_object
from headway.kube.pod_overrides import TargetMismatch
from headway.kube.pods import metadata
from headway.spec.target_file import Target

RBAC = "rbac.authorization.k8s.io"
SHARED_ROLE = "headway-coordinator"
"""Name of the Role for the coordinators of all runs."""
QUEUE_SUFFIX = "-queue"
"""Of the Role with what a queue needs: targets with and without one share the other Role."""
KINDS_SUFFIX = "-kinds"
"""The same for a list of accelerators. `admin` of a namespace may not grant it, as it may the
rest."""
PART_OF = {"app.kubernetes.io/part-of": "headway"}
"""Labels of what an administrator applies: not those of a run, with which it would be deleted."""


def coordinator_account(run: str, target: Target) -> str:
    return target.service_account.coordinator or run_object(run)


def worker_account(run: str, target: Target) -> str | None:
    """For the cloud alone: workers do not get its token for Kubernetes. None: the namespace's
    `default`."""
    accounts = target.service_account
    return run_object(run) if accounts.annotations else accounts.name


def run_rights(run: str, target: Target, has_choice: bool = False) -> list[Object]:
    """Account, Role and RoleBinding of a run. None if an administrator has made them. `has_choice`:
    of several kinds of accelerator."""
    if target.service_account.coordinator is not None:
        return []
    made = metadata(run, target.kube.namespace)
    annotations = dict(target.service_account.annotations)
    return [
        _account(made | ({"annotations": annotations} if annotations else {})),
        _role(
            made,
            [
                *_rules([run_object(run)], [coordinator_object(run)], [record_object(run)]),
                *(_kind_rules([run_object(run)]) if has_choice else ()),
                *_queue_rules(target),
            ],
        ),
        _role_binding(made, role=run_object(run), account=run_object(run)),
    ]


def shared_rights(target: Target) -> list[Object]:
    """What an administrator applies once for the target. RBAC knows names but no prefixes, so the
    coordinator of any run has rights over all Jobs and ConfigMaps of the namespace."""
    accounts = target.service_account
    if accounts.coordinator is None:
        raise TargetMismatch(
            "it is missing: each run makes an account and a Role of its own, and there is nothing "
            "to apply once",
            ("service_account", "coordinator"),
            "service_account: {coordinator: headway-coordinator}",
        )
    names = dict.fromkeys(name for name in (accounts.coordinator, accounts.name) if name)
    return [
        *(_account(_shared(name, target)) for name in names),
        *_shared_role("", _rules([], [], []), accounts.coordinator, target),
        *(
            _shared_role(QUEUE_SUFFIX, rules, accounts.coordinator, target)
            if (rules := _queue_rules(target))
            else ()
        ),
        *(
            _shared_role(KINDS_SUFFIX, _kind_rules([]), accounts.coordinator, target)
            if target.has_choice
            else ()
        ),
    ]


def _shared_role(
    suffix: str, rules: Sequence[Object], account: str, target: Target
) -> tuple[Object, Object]:
    """With its RoleBinding."""
    role = f"{SHARED_ROLE}{suffix}"
    return (
        _role(_shared(role, target), rules),
        _role_binding(_shared(f"{account}{suffix}", target), role=role, account=account),
    )


def _shared(name: str, target: Target) -> Object:
    return {"name": name, "namespace": target.kube.namespace, "labels": dict(PART_OF)}


def _account(made: Object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": made,
        # The coordinator's pod asks for the token; no other gets it by naming this account.
        "automountServiceAccountToken": False,
    }


def _role(made: Object, rules: Sequence[Object]) -> Object:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role",
        "metadata": made,
        "rules": list(rules),
    }


def _rules(
    jobs: Sequence[str], replica_sets: Sequence[str], config_maps: Sequence[str]
) -> list[Object]:
    """All three are names of objects; none given: all of the namespace."""
    return [
        # RBAC knows names but no labels, and pods have new names each time: so these are
        # rights over all pods of the namespace.
        _rule("", "pods", ["list", "watch", "patch", "delete"]),
        # To see that the run has ended, and to stop it when its budget is used up.
        _rule("batch", "jobs", ["get", "patch"], jobs),
        # To end its own pod when the run has stopped or ended. Not the ReplicaSet itself: its pod
        # could then be given another account, or another image.
        _rule("apps", "replicasets/scale", ["patch"], replica_sets),
        _rule("", "configmaps", ["get", "update"], config_maps),
        _rule("", "events", ["create"]),
    ]


def coordinator_rules(run: str, target: Target) -> list[Object]:
    """What the coordinator's account may do, whoever has made it."""
    made = run_rights(run, target, target.has_choice) or shared_rights(target)
    return [rule for one in made if one["kind"] == "Role" for rule in one["rules"]]


def _kind_rules(jobs: Sequence[str]) -> list[Object]:
    """To change the kind of accelerator of a Job: only one that is not noted as started may be
    changed so."""
    return [_rule("batch", "jobs/status", ["patch"], jobs)]


def _queue_rules(target: Target) -> list[Object]:
    """To stop a Job that Kueue would start again."""
    if target.queue is None:
        return []
    return [_rule("kueue.x-k8s.io", "workloads", ["list", "patch"])]


def _rule(group: str, resource: str, verbs: Sequence[str], names: Sequence[str] = ()) -> Object:
    named = {"resourceNames": list(names)} if names else {}
    return {"apiGroups": [group], "resources": [resource], **named, "verbs": list(verbs)}


def _role_binding(made: Object, role: str, account: str) -> Object:
    subject = {"kind": "ServiceAccount", "name": account, "namespace": made["namespace"]}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": made,
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": role},
        "subjects": [subject],
    }
