"""What the pods of a run need besides machines: objects that must be there before them, by name,
and a namespace that takes pods of this kind. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from headway.kube.images import target_images
from headway.kube.names import Object
from headway.kube.reviews import Finding
from headway.spec.target_file import Target

NamedKind = Literal["PersistentVolumeClaim", "Secret", "ServiceAccount", "ConfigMap"]
PLURALS: dict[NamedKind, str] = {
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Secret": "secrets",
    "ServiceAccount": "serviceaccounts",
    "ConfigMap": "configmaps",
}
WORKERS, COORDINATOR = "Job", "ReplicaSet"
VOLUMES = ("pod", "volumes")
NO_UID = "00000000-0000-0000-0000-000000000000"
"""Of an owner that is not made yet."""
BY_WEBHOOK = "admission webhook"
NO_DRY_RUN = "does not support dry run"
"""What the API server says if a webhook cannot be asked without consequences."""


@dataclass(frozen=True)
class NamedObject:
    """One that somebody else has to make."""

    kind: NamedKind
    name: str
    keys: tuple[str, ...] = ()
    """Those that pods read of a Secret."""
    is_pull_secret: bool = False

    def path_in(self, namespace: str) -> str:
        return f"api/v1/namespaces/{namespace}/{PLURALS[self.kind]}/{self.name}"


def pod_of(objects: Sequence[Object], kind: str) -> Object:
    """A Pod as the object of this kind, `WORKERS` or `COORDINATOR`, would make it, with an owner:
    policies refuse pods that have none. For a dry run: its account is left out if the run makes it,
    for it does not exist yet."""
    (owner,) = [one for one in objects if one["kind"] == kind]
    template = owner["spec"]["template"]
    made = {one["metadata"]["name"] for one in objects if one["kind"] == "ServiceAccount"}
    spec = dict(template["spec"])
    if spec.get("serviceAccountName") in made:
        del spec["serviceAccountName"]
    metadata = owner["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **template["metadata"],
            "generateName": f"{metadata['name']}-",
            "namespace": metadata["namespace"],
            "ownerReferences": [
                {
                    "apiVersion": owner["apiVersion"],
                    "kind": kind,
                    "name": metadata["name"],
                    "uid": NO_UID,
                    "controller": True,
                }
            ],
        },
        "spec": spec,
    }


def named_objects(objects: Sequence[Object], target: Target) -> list[NamedObject]:
    """What the pods of a run name and the run does not make; most needed first: pull secrets last,
    and before them what only `pod.volumes` names."""
    made = {(one["kind"], one["metadata"]["name"]) for one in objects}
    found: dict[tuple[str, str, bool], NamedObject] = {}
    for owner in objects:
        if owner["kind"] not in (WORKERS, COORDINATOR):
            continue
        for one in _named(owner["spec"]["template"]["spec"]):
            key = (one.kind, one.name, one.is_pull_secret)
            keys = found[key].keys if key in found else ()
            if (one.kind, one.name) not in made:
                merged = tuple(dict.fromkeys((*keys, *one.keys)))
                found[key] = NamedObject(one.kind, one.name, merged, one.is_pull_secret)

    def weight(one: NamedObject) -> int:
        return 2 if one.is_pull_secret else int(_path_of(one, target) == VOLUMES)

    return sorted(found.values(), key=weight)


def missing_finding(one: NamedObject, target: Target, on: str) -> Finding:
    """For one that is not in the namespace. `on`: name of the target."""
    namespace = target.kube.namespace
    words = f"{one.kind} {one.name} is not in namespace {namespace}"
    path = _path_of(one, target)
    match one.kind:
        case "PersistentVolumeClaim":
            fix = f"kubectl get persistentvolumeclaims -n {namespace} lists those that are there"
        case "ServiceAccount":
            fix = f"an administrator runs: headway target rbac {on} | kubectl apply -f -"
        case "ConfigMap":
            fix = f"kubectl get configmaps -n {namespace} lists those that are there"
        case "Secret" if one.is_pull_secret:
            server = (target_images(target).worker or "REGISTRY").partition("/")[0]
            return Finding(
                f"{words}: images are pulled without it",
                f"kubectl create secret docker-registry {one.name} -n {namespace} "
                f"--docker-server={server} --docker-username=NAME --docker-password=PASSWORD",
                path,
                is_fatal=False,
            )
        case "Secret":
            keys = one.keys or ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
            values = " ".join(f"--from-literal={key}=VALUE" for key in keys)
            fix = f"kubectl create secret generic {one.name} -n {namespace} {values}"
    return Finding(words, fix, path)


def content_finding(one: NamedObject, content: Object, target: Target) -> Finding | None:
    """For one that is there, as the API server shows it."""
    namespace, path = target.kube.namespace, _path_of(one, target)
    if one.kind == "PersistentVolumeClaim":
        if content.get("status", {}).get("phase") == "Lost":
            return Finding(
                f"claim {one.name} of namespace {namespace} has lost its volume",
                f"kubectl describe persistentvolumeclaim {one.name} -n {namespace}",
                path,
            )
        return _modes_finding(one.name, content, path) if path == ("storage", "claim") else None
    missing = [key for key in one.keys if key not in (content.get("data") or {})]
    if not missing:
        return None
    values = ", ".join(f'"{key}": "VALUE"' for key in missing)
    return Finding(
        f"Secret {one.name} of namespace {namespace} has no {' and no '.join(missing)}",
        f"kubectl patch secret {one.name} -n {namespace} -p '{{\"stringData\": {{{values}}}}}'",
        path,
    )


def _modes_finding(claim: str, content: Object, path: tuple[str | int, ...]) -> Finding | None:
    """Only a warning: all pods may be on one machine, because there is only one or by luck."""
    modes = content.get("spec", {}).get("accessModes") or ()
    if not modes or "ReadWriteMany" in modes:
        return None
    return Finding(
        f"claim {claim} is {' and '.join(modes)}: only one machine at a time can write to it, and "
        "pods on any other machine wait",
        "use a claim with accessModes: [ReadWriteMany], or storage: s3://BUCKET/PREFIX",
        path,
        is_fatal=False,
    )


def policy_finding(refused: str, who: str, target: Target) -> Finding:
    """For a pod that a dry run refused. `who`: whose pod."""
    namespace = target.kube.namespace
    words = f"namespace {namespace} refuses the pods of {who}: {refused}"
    if "violates PodSecurity" in refused:
        fix = (
            "take out of the target what it names; or an administrator allows it: kubectl label "
            f"namespace {namespace} pod-security.kubernetes.io/enforce=privileged --overwrite"
        )
        if target.security == "baseline":
            fix = f"security: restricted in the target, if nothing needs more; or: {fix}"
        return Finding(words, fix, ("security",) if target.security == "baseline" else ("pod",))
    return Finding(
        words,
        "change what it names in the target, or ask the administrator",
        ("pod",),
        # A policy may judge by who creates a pod: that is you here, and a controller in a run.
        is_fatal=BY_WEBHOOK not in refused,
    )


def namespace_finding(namespace: str) -> Finding:
    return Finding(
        f"there is no namespace {namespace}",
        f"kubectl create namespace {namespace}, or name another one",
        ("kube", "namespace"),
    )


def queue_finding(queue: Object | None, target: Target) -> Finding | None:
    """For Kueue's LocalQueue as the API server shows it; None: it is not there."""
    namespace, name = target.kube.namespace, target.queue
    if queue is None:
        return Finding(
            f"Kueue has no LocalQueue {name} in namespace {namespace}",
            f"kubectl get localqueues -n {namespace} lists those that are there",
            ("queue",),
        )
    for condition in queue.get("status", {}).get("conditions") or ():
        if condition["type"] == "Active" and condition["status"] == "False":
            is_fatal = condition.get("reason") == "ClusterQueueDoesNotExist"
            return Finding(
                f"LocalQueue {name} of namespace {namespace} admits nothing: "
                f"{condition.get('message') or condition.get('reason')}",
                f"kubectl describe localqueue {name} -n {namespace}",
                ("queue",),
                is_fatal,
            )
    return None


def _named(spec: Object) -> Iterator[NamedObject]:
    for volume in spec.get("volumes") or ():
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            yield NamedObject("PersistentVolumeClaim", claim)
        elif "secret" in volume and not volume["secret"].get("optional"):
            yield NamedObject("Secret", volume["secret"]["secretName"])
        elif "configMap" in volume and not volume["configMap"].get("optional"):
            yield NamedObject("ConfigMap", volume["configMap"]["name"])
    if spec.get("serviceAccountName"):
        yield NamedObject("ServiceAccount", spec["serviceAccountName"])
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        for source in container.get("envFrom") or ():
            if "secretRef" in source and not source["secretRef"].get("optional"):
                yield NamedObject("Secret", source["secretRef"]["name"])
        for variable in container.get("env") or ():
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference is not None and not reference.get("optional"):
                yield NamedObject("Secret", reference["name"], (reference["key"],))
    for secret in spec.get("imagePullSecrets") or ():
        yield NamedObject("Secret", secret["name"], is_pull_secret=True)


def _path_of(one: NamedObject, target: Target) -> tuple[str | int, ...]:
    """The key of the target that names it."""
    storage, accounts = target.storage, target.service_account
    match one.kind:
        case "PersistentVolumeClaim" if storage is not None and one.name == storage.claim:
            return ("storage", "claim")
        case "Secret" if one.is_pull_secret:
            return ("pod", "image_pull_secrets")
        case "Secret" if storage is not None and one.name == storage.secret:
            return ("storage", "secret")
        case "Secret" if one.name == target.secret:
            return ("secret",)
        case "ServiceAccount":
            is_coordinators = one.name == accounts.coordinator
            return ("service_account", "coordinator" if is_coordinators else "name")
    return VOLUMES
