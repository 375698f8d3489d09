"""What a launch needs of a namespace, against what the API server says of it: version, rights and
quotas. Pure, of dicts as the API has them. The gate of `headway run --on` (launch/launch_gate.py)
and `headway target check` ask the same questions and judge the answers with these."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from headway.kube.names import Object
from headway.kube.rbac import RBAC, SHARED_ROLE, run_rights
from headway.spec.target_file import Target

OLDEST = (1, 31)
"""Oldest Kubernetes on which runs work: docs/concepts/kubernetes-objects.md says why."""
SELF = "apis/authentication.k8s.io/v1/selfsubjectreviews"
RULES = "apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
ACCESS = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
KUEUE = "kueue.x-k8s.io"


@dataclass(frozen=True)
class Finding:
    """Something that keeps a launch from working, or may."""

    words: str
    fix: str
    path: tuple[str | int, ...] = ()
    """Key of the target that it is about; none: about all of it."""
    is_fatal: bool = True
    """Whether no run can work before it is fixed. Otherwise it may, and a warning is enough."""


# Version and identity


def version_finding(version: Object) -> Finding | None:
    """Of `GET /version`. A server that calls itself something else is not judged."""
    numbers = [re.match(r"\d+", str(version.get(part, ""))) for part in ("major", "minor")]
    found = tuple(int(one[0]) for one in numbers if one is not None)
    if len(found) != 2 or found >= OLDEST:
        return None
    oldest = ".".join(map(str, OLDEST))
    return Finding(
        f"the cluster has Kubernetes {'.'.join(map(str, found))}, and runs need {oldest} or later",
        "upgrade its control plane, or name another cluster by kube.context",
        ("kube",),
    )


def user_name(review: Object) -> str | None:
    """Of the answer to a SelfSubjectReview: as whom the API server knows the caller."""
    name = review.get("status", {}).get("userInfo", {}).get("username")
    return name if isinstance(name, str) else None


# Rights


@dataclass(frozen=True)
class Right:
    verb: str
    resource: str
    """`jobs`, `replicasets/scale`."""
    group: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


def user_rights(target: Target) -> list[Right]:
    """What whoever launches a run needs, whatever the run: to make its objects, to watch them, to
    end them, and, where each run has a Role of its own, all that is in it. Objects of a run are
    created and never changed; those that may be patched are also made by a preparation of data, a
    check of the target, or a pod that serves a claim."""
    rights = [
        *_rights("batch", "jobs", "create", "get", "patch", "delete"),
        *_rights("apps", "replicasets", "create", "get"),
        *_rights("apps", "replicasets/scale", "patch"),
        *_rights("", "secrets", "create", "patch"),
        *_rights("", "services", "create"),
        *_rights("", "configmaps", "create", "get", "patch"),
        *_rights("networking.k8s.io", "networkpolicies", "create", "patch"),
        *_rights("", "pods", "list", "delete"),
        *_rights("", "events", "list"),
    ]
    if target.queue is not None:
        rights += _rights(KUEUE, "workloads", "list", "patch")
    if target.service_account.coordinator is None:
        rights += [
            *_rights("", "serviceaccounts", "create", "patch"),
            *_rights(RBAC, "roles", "create"),
            *_rights(RBAC, "rolebindings", "create"),
        ]
        # Nobody can grant rights that they do not have.
        for rule in run_rights("any", target, target.has_choice)[1]["rules"]:
            for resource in rule["resources"]:
                rights += _rights(rule["apiGroups"][0], resource, *rule["verbs"])
    return list(dict.fromkeys(rights))


def _rights_for_later(target: Target) -> set[Right]:
    """Without which a run can be launched and watched, but not ended: worth a warning."""
    ends = {*_rights("batch", "jobs", "delete")}
    # Where a run makes a Role, that has the right to delete pods, and who makes it needs it.
    return ends if target.service_account.coordinator is None else {*ends, Right("delete", "pods")}


def reaching_rights() -> list[Right]:
    """One of these is enough to reach a pod: to upload to a claim, and to ask a run how it is."""
    return [*_rights("", "pods/portforward", "get"), *_rights("", "pods/proxy", "get")]


def rules_review(namespace: str) -> Object:
    """Asks for all rights at once. Its answer is incomplete where others than RBAC decide (IAM)."""
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }


def access_review(right: Right, namespace: str) -> Object:
    """Asks for one right; everybody may ask."""
    resource, _, subresource = right.resource.partition("/")
    asked = {"namespace": namespace, "verb": right.verb, "group": right.group, "resource": resource}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {
            "resourceAttributes": asked | ({"subresource": subresource} if subresource else {})
        },
    }


def is_allowed(answer: Object) -> bool:
    """Of the answer to `access_review`."""
    return bool(answer.get("status", {}).get("allowed"))


def is_complete(answer: Object) -> bool:
    """Of the answer to `rules_review`: whether a right that it does not show is missing."""
    status = answer.get("status", {})
    return not status.get("incomplete", True) and not status.get("evaluationError")


def not_shown(answer: Object, rights: Iterable[Right]) -> list[Right]:
    """The rights that the answer to `rules_review` does not show."""
    rules = answer.get("status", {}).get("resourceRules") or ()
    return [right for right in rights if not any(_covers(rule, right) for rule in rules)]


def rights_finding(
    missing: Sequence[Right], target: Target, on: str, user: str | None = None
) -> Finding | None:
    """`on`: name of the target. `user`: as the API server calls whoever asked."""
    if not missing:
        return None
    namespace = target.kube.namespace
    who = f"{user or 'you'} {'is' if user else 'are'} not allowed to"
    fix = f"an administrator gives these rights: {binding_command(missing, target, user)}"
    if any(right.group == RBAC for right in missing):
        fix = (
            f"{fix}; or without them: service_account: {{coordinator: {SHARED_ROLE}}} in the "
            f"target, and once, by an administrator: headway target rbac {on} | kubectl apply -f -"
        )
    words = f"{who} {', '.join(map(str, missing))} in namespace {namespace}"
    is_fatal = not _rights_for_later(target).issuperset(missing)
    return Finding(words, fix, ("kube", "namespace"), is_fatal)


def binding_command(missing: Sequence[Right], target: Target, user: str | None) -> str:
    """A command that gives all missing rights to a user: what Kubernetes has for users of a
    namespace, or where that is not enough, a Role with these alone. It can be given again, and
    takes nothing from other users: each has objects of another name."""
    namespace = target.kube.namespace
    subject = shlex.quote(_subject(user))
    if any(right.group == KUEUE or right.resource == "jobs/status" for right in missing):
        verbs = ",".join(dict.fromkeys(right.verb for right in missing))
        resources = ",".join(dict.fromkeys(_dotted(right) for right in missing))
        name = _name_for(user, f"{verbs} {resources}")
        role = _applied(f"role {name} -n {namespace} --verb={verbs} --resource={resources}")
        return f"{role} && " + _applied(
            f"rolebinding {name} -n {namespace} --role={name} {subject}"
        )
    role = "edit" if target.service_account.coordinator is not None else "admin"
    name = _name_for(user, role)
    return _applied(f"rolebinding {name} -n {namespace} --clusterrole={role} {subject}")


def _applied(what: str) -> str:
    """Made, also if it is there."""
    return f"kubectl create {what} --dry-run=client -o yaml | kubectl apply -f -"


def _name_for(user: str | None, rights: str) -> str:
    """Names of users have characters that those of objects cannot have."""
    if user is None:
        return "headway-user-NAME"
    return f"headway-user-{hashlib.sha256(f'{user} {rights}'.encode()).hexdigest()[:8]}"


def _rights(group: str, resource: str, *verbs: str) -> list[Right]:
    return [Right(verb, resource, group) for verb in verbs]


def _covers(rule: Object, right: Right) -> bool:
    """A rule for objects by name gives no right to all of them."""
    _, _, subresource = right.resource.partition("/")
    resources = {right.resource, "*", *([f"*/{subresource}"] if subresource else ())}
    return (
        not rule.get("resourceNames")
        and not {right.verb, "*"}.isdisjoint(rule.get("verbs") or ())
        and not {right.group, "*"}.isdisjoint(rule.get("apiGroups") or ())
        and not resources.isdisjoint(rule.get("resources") or ())
    )


def _subject(user: str | None) -> str:
    if user is not None and user.startswith("system:serviceaccount:"):
        return f"--serviceaccount={user.removeprefix('system:serviceaccount:')}"
    return f"--user={user or 'NAME'}"


def _dotted(right: Right) -> str:
    """As `kubectl create role` takes it: `replicasets.apps/scale`."""
    resource, slash, subresource = right.resource.partition("/")
    return f"{resource}{f'.{right.group}' if right.group else ''}{slash}{subresource}"


# Quotas

Pods = Sequence[tuple[Object, int]]
"""Specs of pods, and how many of each."""
COUNTED = {"Service": "services", "Secret": "secrets", "ConfigMap": "configmaps"}
"""Kinds that a quota also counts without `count/`."""


@dataclass(frozen=True)
class QuotaGap:
    """What a quota does not leave for a run."""

    quota: str
    resource: str
    needed: Fraction
    hard: Fraction
    used: Fraction

    @property
    def is_hopeless(self) -> bool:
        """Whether the run would not fit if nothing else used the quota."""
        return self.needed > self.hard


def quota_gaps(
    quotas: Iterable[Object], pods: Pods, objects: Sequence[Object] = ()
) -> list[QuotaGap]:
    """`pods` are those without which a run cannot train; `objects` are made beside them."""
    gaps = []
    for quota in quotas:
        status = quota.get("status", {})
        counted = [(spec, count) for spec, count in pods if _is_counted(quota, spec)]
        needed = _usage(counted)
        if not _scopes(quota):
            _add(needed, _counts(objects))
        for resource, hard in (status.get("hard") or {}).items():
            if resource not in needed:
                continue
            gap = QuotaGap(
                quota["metadata"]["name"],
                resource,
                needed[resource],
                amount(hard),
                amount((status.get("used") or {}).get(resource, "0")),
            )
            if gap.needed > gap.hard - gap.used:
                gaps.append(gap)
    return gaps


def quota_finding(gap: QuotaGap, namespace: str, what: str) -> Finding:
    """`what`: whom the room is for, such as `the coordinator and 2 nodes`."""
    needed, hard = amount_text(gap.needed), amount_text(gap.hard)
    if not gap.is_hopeless:
        free = amount_text(max(Fraction(0), gap.hard - gap.used))
        return Finding(
            f"quota {gap.quota} of namespace {namespace} has {free} of {hard} {gap.resource} left, "
            f"and {what} need {needed}: pods wait until others end",
            f"kubectl describe resourcequota {gap.quota} -n {namespace}",
            ("kube", "namespace"),
            is_fatal=False,
        )
    patch = f'{{"spec": {{"hard": {{"{gap.resource}": "{needed}"}}}}}}'
    return Finding(
        f"quota {gap.quota} of namespace {namespace} allows {hard} {gap.resource}, and {what} need "
        f"{needed}",
        "smaller pod.resources or fewer nodes; or an administrator raises it: kubectl patch "
        f"resourcequota {gap.quota} -n {namespace} --type merge -p '{patch}'",
        ("kube", "namespace"),
    )


def amount(text: object) -> Fraction:
    """A quantity as Kubernetes writes it: `500m`, `2Gi`, `1e3`."""
    found = re.fullmatch(r"([+-]?[\d.]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?", str(text))
    assert found is not None, f"{text!r} is not a quantity"
    number, suffix = Fraction(found[1]), found[2] or ""
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix != "Ei":
        return number * Fraction(10) ** int(suffix[1:])
    return number * SUFFIXES[suffix]


def amount_text(value: Fraction) -> str:
    if value.denominator != 1:
        return f"{math.ceil(value * 1000)}m"
    for suffix in ("Ti", "Gi", "Mi"):
        if value and value % SUFFIXES[suffix] == 0:
            return f"{value / SUFFIXES[suffix]}{suffix}"
    return str(value)


SUFFIXES: Mapping[str, Fraction] = {
    "": Fraction(1),
    **{name: Fraction(1000) ** -power for power, name in enumerate("mun", 1)},
    **{name: Fraction(1000) ** power for power, name in enumerate("kMGTPE", 1)},
    **{f"{name}i": Fraction(1024) ** power for power, name in enumerate("KMGTPE", 1)},
}


Amounts = dict[str, Fraction]


def _usage(pods: Pods) -> Amounts:
    """By the names of quotas."""
    usage: Amounts = {}
    for spec, count in pods:
        requests, limits = _pod_total(spec, "requests"), _pod_total(spec, "limits")
        _add(usage, {f"requests.{name}": value * count for name, value in requests.items()})
        _add(usage, {name: value * count for name, value in requests.items()})
        _add(usage, {f"limits.{name}": value * count for name, value in limits.items()})
        _add(usage, dict.fromkeys(("pods", "count/pods"), Fraction(count)))
    return usage


def _pod_total(spec: Object, side: str) -> Amounts:
    """Containers and sidecars are added up; init containers run one after the other, before."""
    total: Amounts = {}
    first = spec.get("initContainers") or ()
    sidecars = [one for one in first if one.get("restartPolicy") == "Always"]
    for container in (*spec["containers"], *sidecars):
        _add(total, _amounts(container, side))
    for container in first:
        for name, value in _amounts(container, side).items():
            total[name] = max(value, total.get(name, Fraction(0)))
    return total


def _amounts(container: Object, side: str) -> Amounts:
    found = container.get("resources", {}).get(side) or {}
    return {name: amount(value) for name, value in found.items()}


def _counts(objects: Sequence[Object]) -> Amounts:
    counts: Amounts = {}
    for one in objects:
        group = one["apiVersion"].rpartition("/")[0]
        plural = f"{one['kind'].lower()}s".replace("policys", "policies")
        _add(counts, {f"count/{plural}{f'.{group}' if group else ''}": Fraction(1)})
        if one["kind"] in COUNTED:
            _add(counts, {COUNTED[one["kind"]]: Fraction(1)})
    return counts


def _add(into: Amounts, added: Amounts) -> None:
    for name, value in added.items():
        into[name] = into.get(name, Fraction(0)) + value


def _scopes(quota: Object) -> list[Object]:
    spec = quota.get("spec", {})
    plain = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()]
    return [*plain, *(spec.get("scopeSelector", {}).get("matchExpressions") or ())]


def _is_counted(quota: Object, spec: Object) -> bool:
    """Whether the quota is for such a pod, as far as can be known here."""
    return all(_matches(scope, spec) for scope in _scopes(quota))


def _matches(scope: Object, spec: Object) -> bool:
    match scope["scopeName"]:
        case "NotTerminating" | "NotBestEffort":
            return True
        case "PriorityClass":
            name, values = spec.get("priorityClassName"), scope.get("values") or ()
            match scope["operator"]:
                case "In":
                    return name in values
                case "NotIn":
                    return name not in values
                case "Exists":
                    return name is not None
            return name is None
    return False
