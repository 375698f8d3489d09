"""Lines of `headway target check`, from what the API server and a pod of the coordinator have said.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headway.kube.check_lines import (
    ASKED,
    CONDITIONAL,
    COORDINATOR_RIGHTS,
    FABRIC,
    LOGIN,
    NAMED,
    POLICY,
    QUOTA,
    REGION,
    STORAGE,
    YOUR_RIGHTS,
    CheckLine,
    failed,
    not_checked,
    passed,
    unchecked,
    warned,
)
from headway.kube.names import Object
from headway.kube.reviews import Finding, Right
from headway.launch.target_facts import TargetFacts
from headway.spec.target_file import Target

REGION_LABEL = "topology.kubernetes.io/region"
MOVED_DOLLARS = 0.02
"""For a GB that leaves a region of AWS for another one in North America or Europe."""


def asked_lines(
    found: Mapping[str, Sequence[Finding]], failures: Sequence[str], target: Target, who: str
) -> list[CheckLine]:
    """Return the lines that the API server alone answers. `who`: its version, and its name for the
    user."""
    queue = f"; queue {target.queue} is there" if target.queue is not None else ""
    right = {
        LOGIN: who,
        YOUR_RIGHTS: "all that launching and watching a run needs",
        QUOTA: "room for the coordinator and two workers",
        POLICY: f"pods with security: {target.security} are let in{queue}",
        NAMED: "claims, Secrets and accounts are there",
    }
    lines = [_asked_line(name, found.get(name, ()), right[name]) for name in ASKED]
    if failures:
        fix = "once more; if it fails again: kubectl get --raw '/readyz?verbose'"
        lines[0] = failed(LOGIN, f"the API server was asked, and failed: {failures[0]}", fix)
    return lines


def _asked_line(name: str, findings: Sequence[Finding], evidence: str) -> CheckLine:
    if not findings:
        return passed(name, evidence)
    worst = min(findings, key=lambda one: not one.is_fatal)
    return (failed if worst.is_fatal else warned)(name, worst.words, worst.fix)


def fact_lines(
    facts: TargetFacts | None,
    rights: Sequence[tuple[Right, str | None]],
    machines: Sequence[Object] | None,
    target: Target,
    on: str,
) -> list[CheckLine]:
    """Return what the coordinator's pod has found. It has asked for `rights`. `machines` are those
    of the run's pods, as far as they may be seen; `on` is the name of the target."""
    if facts is None:
        names = (COORDINATOR_RIGHTS, STORAGE, CONDITIONAL, REGION)
        return unchecked(names, "the coordinator's pod did not start")
    return [
        _rights(facts, rights, target, on),
        _storage(facts, target),
        _conditional(facts, target),
        _region(facts, machines, target),
    ]


def _rights(
    facts: TargetFacts, rights: Sequence[tuple[Right, str | None]], target: Target, on: str
) -> CheckLine:
    account = target.service_account.coordinator
    if facts.rights_error is not None:
        return failed(
            COORDINATOR_RIGHTS,
            f"its pod cannot ask the API server: {facts.rights_error}",
            "let pods of the namespace reach the API server (egress of the target, policies)",
        )
    if facts.missing_rights:
        listed = ", ".join(str(rights[index][0]) for index in facts.missing_rights)
        fix = f"an administrator, once: headway target rbac {on} | kubectl apply -f -"
        if account is None:
            fix = "ask the administrator why a Role that was just made does not count"
        return failed(COORDINATOR_RIGHTS, f"it is not allowed to {listed}", fix)
    whose = f"account {account}" if account else "the account that each run makes"
    return passed(COORDINATOR_RIGHTS, f"{whose} has all")


def _storage(facts: TargetFacts, target: Target) -> CheckLine:
    if facts.storage_error is not None:
        return failed(
            STORAGE,
            f"the coordinator's pod cannot use what was written before: {facts.storage_error}",
            storage_fix(target),
        )
    assert target.storage is not None
    by = "one pod" if target.storage.claim is not None else "this machine"
    return passed(STORAGE, f"what {by} has written, the coordinator's pod reads")


def storage_fix(target: Target) -> str:
    """Return a fix for files that cannot be written or read."""
    storage, namespace = target.storage, target.kube.namespace
    assert storage is not None
    if storage.claim is not None:
        return (
            "a claim with accessModes: [ReadWriteMany], whose volume, storage class and share are "
            f"not read-only: kubectl describe pvc {storage.claim} -n {namespace}"
        )
    if storage.secret is not None:
        return (
            f"does Secret {storage.secret} have the variables for {storage.url} "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL), and do they allow it?"
        )
    return (
        f"let the pods' identity read and write {storage.url} (service_account of the target), or "
        f"storage: {{url: {storage.url}, secret: NAME}}"
    )


def _conditional(facts: TargetFacts, target: Target) -> CheckLine:
    if facts.storage_error is not None:
        return not_checked(CONDITIONAL, "the storage cannot be used")
    if not facts.is_created_twice:
        return passed(CONDITIONAL, "of two that create the same file, one is told that it exists")
    assert target.storage is not None
    return failed(
        CONDITIONAL,
        "a file that was to be created only if it does not exist was created twice: two "
        "coordinators could both believe that a run is theirs",
        "a file system with hard links: NFS 4, Lustre, CephFS, Weka"
        if target.storage.claim is not None
        else "a store that honours If-None-Match: AWS S3, Google, MinIO, Ceph from 20, versitygw",
    )


def _region(facts: TargetFacts, machines: Sequence[Object] | None, target: Target) -> CheckLine:
    url = target.storage.url if target.storage is not None else None
    if url is None:
        return passed(REGION, "a claim is mounted where the machines are")
    if url.startswith("gs://"):
        return not_checked(
            REGION,
            "Headway does not ask Google where a bucket is",
            f"gcloud storage buckets describe gs://{url.split('/')[2]} --format='value(location)'",
        )
    if facts.region is None:
        why = facts.region_error or "no header"
        return not_checked(REGION, f"the store does not say where it is ({why})")
    if machines is None:
        return not_checked(REGION, f"the bucket is in {facts.region}; you may not see nodes")
    labels = [one["metadata"].get("labels", {}) for one in machines]
    there = sorted({one[REGION_LABEL] for one in labels if REGION_LABEL in one})
    if not there:
        return not_checked(REGION, f"the bucket is in {facts.region}; machines have no such label")
    if there != [facts.region]:
        return warned(
            REGION,
            f"the bucket is in {facts.region}, the machines are in {', '.join(there)}: each TB "
            f"that crosses costs about ${1000 * MOVED_DOLLARS:.0f}, and is slower",
            f"a bucket in {there[0]}, or machines in {facts.region}: aws s3 mb s3://NAME --region "
            f"{there[0]}",
        )
    return passed(REGION, f"bucket and machines are in {facts.region}")


def fabric_line(job: Object) -> CheckLine:
    """Return whether the workers of `job` would use EFA. An image without the plugin that NCCL_NET
    names ends a run. Without NCCL_NET the run is slow instead, and nothing says so."""
    (worker,) = [
        one for one in job["spec"]["template"]["spec"]["containers"] if one["name"] == "worker"
    ]
    network = next((one["value"] for one in worker["env"] if one["name"] == "NCCL_NET"), None)
    efa = next((name for name in worker["resources"]["limits"] if name.endswith("/efa")), None)
    if efa is None:
        return passed(FABRIC, "the target asks for no EFA")
    if network is None:
        return warned(
            FABRIC,
            f"the target asks for {efa} and has no NCCL_NET: in an image without AWS' plugin NCCL "
            "uses TCP, and says nothing",
            "pod: {env: {NCCL_NET: AWS Libfabric}} in the target, with which such a run ends "
            "before it starts",
        )
    return passed(FABRIC, f"{efa} by NCCL_NET={network}")
