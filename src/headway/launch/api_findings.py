"""Lines of a check that need no pod: login, rights, quota, policy and queue. Pure."""

from __future__ import annotations

from headway.kube.check_lines import (
    COORDINATOR_RIGHTS,
    LOGIN,
    POLICY,
    QUOTA,
    YOUR_RIGHTS,
    CheckLine,
    failed,
    not_checked,
    passed,
    warned,
)
from headway.kube.pod_needs import COORDINATOR, WORKERS, pod_of, policy_finding
from headway.kube.probe_objects import NUM_WORKERS
from headway.kube.reviews import (
    Finding,
    quota_finding,
    quota_gaps,
    rights_finding,
    version_finding,
)
from headway.launch.target_evidence import TargetEvidence, is_policy, no_coordinator

WHAT = f"the coordinator and {NUM_WORKERS} workers"


def login(seen: TargetEvidence) -> CheckLine:
    if (found := version_finding(seen.look.version)) is not None:
        return line_of(LOGIN, found)
    who = f", as {seen.look.user}" if seen.look.user else ""
    version = str(seen.look.version.get("gitVersion", "of an unknown version"))
    return passed(LOGIN, f"Kubernetes {version.removeprefix('v')}{who}")


def your_rights(seen: TargetEvidence) -> CheckLine:
    found = rights_finding(seen.look.missing, seen.target, seen.name, seen.look.user)
    if found is not None:
        return line_of(YOUR_RIGHTS, found)
    return passed(YOUR_RIGHTS, "all that launching and watching a run needs")


def coordinator_rights(seen: TargetEvidence) -> CheckLine:
    account = seen.target.service_account.coordinator
    give = f"an administrator, once: headway target rbac {seen.name} | kubectl apply -f -"
    if (found := seen.named("service_account")) is not None:
        return line_of(COORDINATOR_RIGHTS, found)
    for words in seen.all_waits.values():
        if "service account" in words:
            return failed(COORDINATOR_RIGHTS, words, give)
    answers = seen.answers
    if answers.rights_error is not None:
        return failed(
            COORDINATOR_RIGHTS,
            f"its pod cannot ask the API server: {answers.rights_error}",
            "let pods of the namespace reach the API server (egress of the target, policies)",
        )
    if answers.missing_rights is None:
        return not_checked(COORDINATOR_RIGHTS, no_coordinator(seen))
    if answers.missing_rights:
        if account is None:
            give = "ask the administrator why a Role that was just made does not count"
        listed = ", ".join(answers.missing_rights)
        return failed(COORDINATOR_RIGHTS, f"it is not allowed to {listed}", give)
    whose = f"account {account}" if account else "the account that each run makes"
    return passed(COORDINATOR_RIGHTS, f"{whose} has all")


def quota(seen: TargetEvidence) -> CheckLine:
    workers, coordinator = (pod_of(seen.objects, kind)["spec"] for kind in (WORKERS, COORDINATOR))
    pods = [(workers, NUM_WORKERS), (coordinator, 1)]
    gaps = quota_gaps(seen.look.quotas or (), pods, seen.objects)
    found = sorted(
        (quota_finding(gap, seen.namespace, WHAT) for gap in gaps), key=lambda one: not one.is_fatal
    )
    # What is used up for now may be free again later; but the pods of this check did not start.
    if found:
        others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return failed(QUOTA, f"{found[0].words}{others}", found[0].fix)
    for words in (*seen.all_waits.values(), *seen.refusals):
        if "quota" in words:
            return failed(QUOTA, words, f"kubectl describe resourcequota -n {seen.namespace}")
    if seen.look.quotas is None:
        if not seen.start.probes:
            return not_checked(QUOTA, "you may not read quotas, and no pod was made")
        return passed(QUOTA, "you may not read quotas; the pods of this check were let in")
    if not seen.look.quotas:
        return passed(QUOTA, "the namespace has none")
    listed = ", ".join(one["metadata"]["name"] for one in seen.look.quotas)
    return passed(QUOTA, f"{listed}: room for {WHAT}")


def policy(seen: TargetEvidence) -> CheckLine:
    look, target = seen.look, seen.target
    if look.queue is not None:
        return line_of(POLICY, look.queue)
    said = {**seen.all_waits, **{who: one for who, one in (look.refusals or {}).items() if one}}
    for who, words in said.items():
        if "quota" not in words and is_policy(words):
            refused = words.removeprefix("rejected by policy: ")
            return line_of(POLICY, policy_finding(refused, f"the {who}", target))
    queued = next((one for one in seen.all_waits.values() if one.startswith("in queue")), None)
    if queued is not None and target.queue is None:
        return failed(
            POLICY,
            f"the cluster has put the pods of this check {queued}, and the target names no queue",
            f"queue: {queued.removeprefix('in queue ')} in the target",
        )
    if queued is not None:
        return failed(
            POLICY,
            f"the pods of this check are still {queued}",
            f"wait longer: headway target check {seen.name} --wait 15min; or "
            f"kubectl get workloads -n {seen.namespace}",
        )
    if not seen.start.probes and look.refusals is None:
        return not_checked(POLICY, "no pod was made, and you may not try one yourself")
    where = f"; queue {target.queue} is there" if target.queue is not None else ""
    return passed(POLICY, f"pods with security: {target.security} are let in{where}")


def line_of(name: str, found: Finding) -> CheckLine:
    made = failed if found.is_fatal else warned
    return made(name, found.words, found.fix)
