"""Lines of a check about the target's storage: files, conditional writes, region. Pure."""

from __future__ import annotations

from headway.kube.check_lines import (
    CONDITIONAL,
    REGION,
    STORAGE,
    CheckLine,
    failed,
    not_checked,
    passed,
    warned,
)
from headway.kube.node_fit import regions_of
from headway.launch.api_findings import line_of
from headway.launch.target_evidence import TargetEvidence, is_volume, no_coordinator, no_workers

LATE_SECONDS = 5.0
"""Of a file that another pod has written, until it is seen."""
MOVED_DOLLARS = 0.02
"""For a GB that leaves a region of AWS for another one in North America or Europe."""


def storage(seen: TargetEvidence) -> CheckLine:
    named = seen.named("storage")
    if named is not None and named.is_fatal:
        return line_of(STORAGE, named)
    for words in seen.all_waits.values():
        if words.startswith("its machine cannot start it") and is_volume(words):
            return failed(STORAGE, words, _claim_fix(seen))
    found, answers = seen.answers.written, seen.answers
    claim = seen.target.storage.claim if seen.target.storage is not None else None
    if found is None:
        why = no_workers(seen) if claim is not None else no_coordinator(seen)
        return not_checked(STORAGE, why)
    if found.problem is not None:
        step, why = found.problem
        return failed(STORAGE, f"{answers.writer} cannot {step}: {why}", _write_fix(seen))
    for title, read in answers.reads.items():
        if read.error is not None:
            return failed(
                STORAGE,
                f"{answers.writer} has written a file, and {title} cannot read it: {read.error}",
                _claim_fix(seen) if claim is not None else _bucket_fix(seen),
            )
    for title, why in answers.unread.items():
        if "no Headway" not in why:
            return failed(
                STORAGE, f"{answers.writer} has written a file; {title}: {why}", _bucket_fix(seen)
            )
    rates = [one.num_bytes / one.seconds for one in answers.reads.values() if one.seconds]
    write = f"written at {found.num_bytes / max(found.seconds, 1e-6) / 1e6:,.0f} MB/s"
    slowest = f", read at {min(rates) / 1e6:,.0f} MB/s" if rates else ""
    by = f" by {' and '.join(sorted(answers.reads))}" if answers.reads else ""
    evidence = f"{write} by {answers.writer}{slowest}{by}"
    if not answers.is_removed:
        return warned(STORAGE, f"{evidence}; and could not be removed again", _claim_fix(seen))
    late = max((one.waited for one in answers.reads.values()), default=0.0)
    if late > LATE_SECONDS:
        fix = "mount it without caching of names: lookupcache=none, actimeo=1 for NFS"
        return warned(STORAGE, f"{evidence}; seen {late:.1f} s later", fix)
    if claim is not None and len(answers.reads) == 0:
        return not_checked(STORAGE, f"{evidence}; nobody else was there to read it")
    if answers.unread:
        evidence += (
            f"; {' and '.join(sorted(answers.unread))} did not try: the image has no Headway"
        )
    return passed(STORAGE, evidence)


def conditional(seen: TargetEvidence) -> CheckLine:
    creates = seen.answers.creates
    claim = seen.target.storage.claim if seen.target.storage is not None else None
    if not creates:
        return not_checked(CONDITIONAL, "nothing was written to the storage")
    for title, answer in creates.items():
        if answer.error is not None:
            return failed(CONDITIONAL, f"{title}: {answer.error}", _store_fix(claim))
    ways = sorted({way for answer in creates.values() for way in answer.first})
    if claim is None:
        (answer,) = creates.values()
        if answer.first != {"first": True, "second": False}:
            return failed(
                CONDITIONAL,
                "a file that was to be created only if it does not exist was created twice",
                _store_fix(claim),
            )
        return passed(CONDITIONAL, "of two that create the same file, one is told that it exists")
    for way in ways:
        winners = [title for title, answer in creates.items() if answer.first.get(way)]
        if len(winners) != 1:
            return failed(
                CONDITIONAL,
                f"of {len(creates)} pods that create the same file by {way}, {len(winners)} were "
                "told that it is theirs",
                _store_fix(claim),
            )
    return passed(
        CONDITIONAL, f"of {len(creates)} pods, one gets a name, by {' and by '.join(ways)}"
    )


def region(seen: TargetEvidence) -> CheckLine:
    storage = seen.target.storage
    url = storage.url if storage is not None else None
    if url is None:
        return passed(REGION, "a claim is mounted where the machines are")
    if url.startswith("gs://"):
        bucket = url.split("/")[2]
        return not_checked(
            REGION,
            "Headway does not ask Google where a bucket is",
            f"gcloud storage buckets describe gs://{bucket} --format='value(location)'",
        )
    found = seen.answers.region
    if found is None:
        return not_checked(REGION, no_coordinator(seen))
    if found.region is None:
        return not_checked(
            REGION, f"the store does not say where it is ({found.error or 'no header'})"
        )
    nodes = seen.look.nodes
    if nodes is None:
        return not_checked(REGION, f"the bucket is in {found.region}; you may not list nodes")
    used = {one.machine for one in seen.start.probes}
    there = regions_of(nodes, used) or regions_of(nodes, None)
    if not there:
        return not_checked(REGION, f"the bucket is in {found.region}; machines have no such label")
    if there != {found.region}:
        return warned(
            REGION,
            f"the bucket is in {found.region}, the machines are in {', '.join(sorted(there))}: "
            f"each TB that crosses costs about ${1000 * MOVED_DOLLARS:.0f}, and is slower",
            f"a bucket in {sorted(there)[0]}, or machines in {found.region}: aws s3 mb "
            f"s3://NAME --region {sorted(there)[0]}",
        )
    return passed(REGION, f"bucket and machines are in {found.region}")


def _claim_fix(seen: TargetEvidence) -> str:
    storage = seen.target.storage
    claim = storage.claim if storage is not None else None
    modes = ((seen.look.claim or {}).get("spec") or {}).get("accessModes", [])
    many = "" if "ReadWriteMany" in modes or not modes else f" (it is {' and '.join(modes)})"
    return (
        f"a claim with accessModes: [ReadWriteMany]{many}: kubectl describe pvc {claim} -n "
        f"{seen.namespace}"
    )


def _write_fix(seen: TargetEvidence) -> str:
    storage, found = seen.target.storage, seen.answers.written
    if storage is None or storage.claim is None:
        return _bucket_fix(seen)
    problem = found.problem if found is not None else None
    if problem is not None and "ead-only" in problem[1]:
        return (
            "a claim that may be written: its volume, storage class or share is read-only: kubectl "
            f"describe pvc {storage.claim} -n {seen.namespace}"
        )
    user, group = seen.target.pod.user, seen.target.pod.group
    owner = f"; it belongs to {found.owner}, mode {found.mode}" if found and found.owner else ""
    return (
        f"pods write as user {user}, group {group}{owner}: chown {user}:{group} the folder on the "
        "file server; or pod: {user: N, group: N} in the target"
    )


def _bucket_fix(seen: TargetEvidence) -> str:
    storage = seen.target.storage
    assert storage is not None
    if storage.secret is not None:
        return (
            f"does Secret {storage.secret} have the variables for {storage.url} "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL), and do they allow it?"
        )
    return (
        f"let the pods' identity read and write {storage.url} (service_account of the target), or "
        f"storage: {{url: {storage.url}, secret: NAME}}"
    )


def _store_fix(claim: str | None) -> str:
    if claim is not None:
        return "a file system with hard links and exclusive creation: NFS 4, Lustre, CephFS, Weka"
    return (
        "a store that honours If-None-Match: AWS S3, Google, MinIO, Ceph from 20, versitygw; two "
        "coordinators could otherwise both believe that a run is theirs"
    )
