"""Each fault of a target, as the API server and probes answered it, to its line and its fix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headway.kube.check_lines import (
    CLOCKS,
    CONDITIONAL,
    COORDINATOR,
    COORDINATOR_RIGHTS,
    DEVICES,
    FABRIC,
    IMAGE,
    LOGIN,
    MACHINES,
    NAMES,
    NAMES_IN_ORDER,
    POLICY,
    QUOTA,
    REACH,
    REGION,
    STORAGE,
    WORKERS,
    YOUR_RIGHTS,
    CheckLine,
    has_failed,
    lines_json,
    verdict,
)
from headway.kube.pod_needs import NamedObject, missing_finding, queue_finding
from headway.kube.pod_status import WaitReason
from headway.kube.probe_objects import probe_objects, probe_run
from headway.kube.probe_protocol import (
    CreateAnswer,
    NameAnswer,
    PortAnswer,
    ProbeFacts,
    ReadAnswer,
    RegionAnswer,
    SendAnswer,
    WriteAnswer,
)
from headway.kube.reviews import Right
from headway.launch.probe_pods import ProbeStart, StartedProbe
from headway.launch.probe_questions import ProbeAnswers
from headway.launch.target_evidence import TargetEvidence
from headway.launch.target_findings import findings
from headway.launch.target_look import TargetLook
from headway.spec.target_file import Target

DIGEST = "0" * 64
CONTENT: dict[str, Any] = {
    "kube": {"namespace": "ml"},
    "image": f"registry.example/headway@sha256:{DIGEST}",
    "storage": {"claim": "shared"},
    "pod": {"resources": {"cpu": "2", "memory": "4Gi"}},
}
BUCKET = {"url": "s3://bucket/team", "secret": "keys"}
STEPS = ("make a folder", "write", "link", "rename", "append")
FACTS = ProbeFacts(
    python="3.12.7",
    machine="x86_64",
    torch="2.15.0",
    headway="0.1.0",
    lacking=[],
    nvidia=0,
    nvidia_driver=0,
    amd=0,
    fabric=0,
    nccl_plugin_error="libnccl-net.so: cannot open shared object file",
    user=1000,
    time=0.0,
)
GOOD_NAME = NameAnswer([1.0, 1.2, 0.9, 1.0, 1.1], ["10.0.0.9"], None, ["10.96.0.10"])
WORKER_PAIRS = (("worker 0", "worker 1"), ("worker 1", "worker 0"))
TITLES = ("worker 0", "worker 1", "coordinator")
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}


def version(minor: int) -> dict[str, str]:
    return {"major": "1", "minor": f"{minor}+", "gitVersion": f"v1.{minor}.2"}


def node(name: str, labels: dict[str, str] | None = None, **allocatable: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux", **(labels or {})}},
        "spec": {},
        "status": {"allocatable": {"cpu": "8", **allocatable}},
    }


def probe(title: str, machine: str) -> StartedProbe:
    component = "worker" if title.startswith("worker") else "coordinator"
    return StartedProbe(f"pod-{title}", title, component, "10.0.0.1", machine, 4.0)  # type: ignore[arg-type]


def good(**changed: Any) -> TargetEvidence:
    """A target where all is well; `changed`: keys of it."""
    target = Target.model_validate({**CONTENT, **changed})
    objects = probe_objects(probe_run("check-1", target), target, "key", 300)
    ports = [PortAnswer(40000 + number, 1.0, None) for number in range(3)]
    answers = ProbeAnswers(
        way="port-forward",
        facts=dict.fromkeys(TITLES, FACTS),
        offsets=dict.fromkeys(TITLES, 0.1),
        names=dict.fromkeys(TITLES[:2], GOOD_NAME),
        ports={
            **dict.fromkeys(WORKER_PAIRS, ports),
            **{(one, "coordinator"): [PortAnswer(7460, 1.0, None)] for one in TITLES[:2]},
        },
        sends=dict.fromkeys(WORKER_PAIRS, SendAnswer(2_500_000_000, 2.0, None)),
        missing_rights=[],
        writer="worker 0",
        written=WriteAnswer(dict.fromkeys(STEPS), 64_000_000, 0.5, "x", "1000:1000", "770"),
        reads=dict.fromkeys(TITLES[1:], ReadAnswer(0.0, 64_000_004, 0.2, None)),
        creates={
            title: CreateAnswer({"link": not number, "O_EXCL": not number}, None)
            for number, title in enumerate(TITLES)
        },
    )
    return TargetEvidence(
        name="lab",
        target=target,
        objects=objects,
        look=TargetLook(
            version=version(34),
            user="me",
            missing=[],
            quotas=[],
            nodes=[node("a"), node("b"), node("c")],
            refusals={"worker": None, "coordinator": None},
            queue=None,
            named=[],
            claim=None,
        ),
        start=ProbeStart([probe(title, name) for title, name in zip(TITLES, "abc", strict=True)]),
        answers=answers,
        server_offset=0.1,
    )


def good_bucket(**changed: Any) -> TargetEvidence:
    seen = good(storage=BUCKET, **changed)
    answers = replace(
        seen.answers,
        writer="coordinator",
        written=WriteAnswer({"write": None}, 16_000_000, 0.5, "x"),
        creates={"coordinator": CreateAnswer({"first": True, "second": False}, None)},
        region=RegionAnswer("eu-central-1", "", None),
    )
    nodes = [node(name, {"topology.kubernetes.io/region": "eu-central-1"}) for name in "abc"]
    return replace(seen, answers=answers, look=replace(seen.look, nodes=nodes))


def not_started(seen: TargetEvidence, component: str, words: str) -> TargetEvidence:
    """Of a check whose pods of a kind wait: nothing was asked of them."""
    left = [one for one in seen.start.probes if one.component != component]
    start = ProbeStart(left, {component: [WaitReason(words, 2)]})
    titles = [one.title for one in left]
    answers = ProbeAnswers(
        way="port-forward",
        facts=dict.fromkeys(titles, FACTS),
        offsets=dict.fromkeys(titles, 0.1),
        names={title: GOOD_NAME for title in titles if title != "coordinator"},
        ports={
            pair: answers
            for pair, answers in seen.answers.ports.items()
            if pair[0] in titles and pair[1] in titles
        },
        missing_rights=[] if "coordinator" in titles else None,
    )
    return replace(seen, start=start, answers=answers)


def line(seen: TargetEvidence, name: str) -> CheckLine:
    found = {one.name: one for one in findings(seen)}
    assert tuple(found) == NAMES_IN_ORDER
    return found[name]


def others_passed(seen: TargetEvidence, *names: str) -> None:
    odd = [one for one in findings(seen) if one.outcome != "passed" and one.name not in names]
    assert not odd, odd


def look(seen: TargetEvidence, **changed: Any) -> TargetEvidence:
    return replace(seen, look=replace(seen.look, **changed))


def answered(seen: TargetEvidence, **changed: Any) -> TargetEvidence:
    return replace(seen, answers=replace(seen.answers, **changed))


@pytest.mark.parametrize("make", [good, good_bucket])
def test_a_target_where_all_is_well(make: Callable[[], TargetEvidence]) -> None:
    seen = make()
    others_passed(seen)
    lines = findings(seen)
    assert verdict(lines) == "17 passed"
    assert lines_json("lab", 12.34, lines)["passed"] is True
    assert all(one.fix is None for one in lines)


def test_an_old_kubernetes() -> None:
    found = line(look(good(), version=version(30)), LOGIN)
    assert found.outcome == "failed"
    assert found.evidence == "the cluster has Kubernetes 1.30, and runs need 1.31 or later"
    assert line(good(), LOGIN).evidence == "Kubernetes 1.34.2, as me"


def test_a_right_that_is_missing_is_granted_by_what_is_pasted() -> None:
    found = line(look(good(), missing=[Right("create", "jobs", "batch")]), YOUR_RIGHTS)
    assert found.outcome == "failed"
    assert found.evidence == "me is not allowed to create jobs.batch in namespace ml"
    assert (
        "-n ml --clusterrole=admin --user=me --dry-run=client -o yaml | kubectl apply -f -"
        in str(found.fix)
    )


def test_a_coordinator_without_a_right() -> None:
    seen = good(service_account={"coordinator": "headway-coordinator"})
    found = line(answered(seen, missing_rights=["patch pods"]), COORDINATOR_RIGHTS)
    assert (found.outcome, found.evidence) == ("failed", "it is not allowed to patch pods")
    assert found.fix == "an administrator, once: headway target rbac lab | kubectl apply -f -"


def test_an_account_that_nobody_has_made() -> None:
    words = "service account headway-coordinator does not exist in the namespace; headway target"
    seen = good(service_account={"coordinator": "headway-coordinator"})
    found = line(not_started(seen, "coordinator", words), COORDINATOR_RIGHTS)
    assert found.outcome == "failed"
    assert "headway target rbac lab" in str(found.fix)


def test_a_coordinator_that_cannot_ask_the_api_server() -> None:
    found = line(answered(good(), rights_error="no answer"), COORDINATOR_RIGHTS)
    assert found.outcome == "failed"
    assert "egress" in str(found.fix)


def quota(name: str, used: str = "0", **spec: Any) -> dict[str, Any]:
    status = {"hard": spec["hard"], "used": dict.fromkeys(spec["hard"], used)}
    return {"metadata": {"name": name}, "spec": spec, "status": status}


def test_a_quota_without_room() -> None:
    found = line(look(good(), quotas=[quota("small", hard={"pods": "2"})]), QUOTA)
    assert found.outcome == "failed"
    assert found.evidence == (
        "quota small of namespace ml allows 2 pods, and the coordinator and 2 workers need 3"
    )
    assert "kubectl patch resourcequota small -n ml --type merge" in str(found.fix)
    used_up = line(look(good(), quotas=[quota("small", "4", hard={"pods": "5"})]), QUOTA)
    assert used_up.outcome == "failed"


def test_a_quota_with_room_and_one_that_is_for_others() -> None:
    wide = quota("wide", hard={"pods": "3", "requests.cpu": "100"})
    scoped = quota("for-others", hard={"pods": "0"}, scopes=["BestEffort"])
    others_passed(look(good(), quotas=[wide, scoped]))


def test_a_quota_that_may_not_be_read_but_is_met() -> None:
    words = "quota small is exceeded: requested: pods=1, used: pods=2, limited: pods=2"
    seen = look(not_started(good(), "coordinator", words), quotas=None, refusals=None)
    found = line(seen, QUOTA)
    assert (found.outcome, found.evidence) == ("failed", words)
    assert line(seen, COORDINATOR).outcome == "not checked"
    assert words in line(seen, COORDINATOR).evidence


def test_pods_that_a_policy_refuses() -> None:
    words = 'violates PodSecurity "restricted:latest": hostPath volumes'
    found = line(look(good(), refusals={"worker": words, "coordinator": None}), POLICY)
    assert found.outcome == "failed"
    assert found.evidence == f"namespace ml refuses the pods of the worker: {words}"
    assert "kubectl label namespace ml" in str(found.fix)


def test_pods_that_a_policy_refuses_where_you_may_not_try() -> None:
    words = 'rejected by policy: violates PodSecurity "baseline:latest": hostPath volumes'
    seen = look(not_started(good(), "worker", words), refusals=None)
    assert line(seen, POLICY).outcome == "failed"
    assert line(seen, MACHINES).outcome == "not checked"


def test_a_queue_that_does_not_work() -> None:
    seen = good(queue="gpus")
    found = line(look(seen, queue=queue_finding(None, seen.target)), POLICY)
    assert found.outcome == "failed"
    assert "Kueue has no LocalQueue gpus in namespace ml" in found.evidence


@pytest.mark.parametrize(
    ("named", "name"),
    [
        (NamedObject("PersistentVolumeClaim", "shared"), STORAGE),
        (NamedObject("ServiceAccount", "keeps"), COORDINATOR_RIGHTS),
        (NamedObject("Secret", "hub", ("HF_TOKEN",)), IMAGE),
    ],
)
def test_what_the_target_names_and_nobody_has_made(named: NamedObject, name: str) -> None:
    seen = good(service_account={"coordinator": "keeps"}, secret="hub")
    missing = look(seen, named=[missing_finding(named, seen.target, "lab")])
    assert missing.look.is_hopeless
    found = line(missing, name)
    assert (found.outcome, f"{named.kind} {named.name}" in found.evidence) == ("failed", True)
    others_passed(missing, name)


def test_a_queue_that_is_full() -> None:
    found = line(not_started(good(queue="gpus"), "worker", "in queue gpus"), POLICY)
    assert found.outcome == "failed"
    assert "headway target check lab --wait 15min" in str(found.fix)


def test_a_queue_that_the_target_does_not_name() -> None:
    found = line(not_started(good(), "worker", "in queue default"), POLICY)
    assert (found.outcome, found.fix) == ("failed", "queue: default in the target")


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("the image cannot be pulled: not found", "image_pull_secrets"),
        ("its pod exited with code 1: exec format error", "pod: {architecture: amd64}"),
        ("its pod exited with code 127: python3 not found", "python3 3.11 to 3.14"),
        ('the container cannot be created: secret "keys" not found', "kubectl get secret -n ml"),
    ],
)
def test_an_image_that_does_not_start(words: str, fix: str) -> None:
    seen = not_started(good(), "worker", words)
    found = line(seen, IMAGE)
    assert (found.outcome, found.evidence) == ("failed", f"worker: {words}")
    assert fix in str(found.fix)
    assert line(seen, MACHINES).outcome == "not checked"


def test_an_image_that_lacks_something() -> None:
    lacking = replace(FACTS, lacking=["it has no transformers, and transformers>=5 is needed"])
    found = line(answered(good(), facts=dict.fromkeys(TITLES, lacking)), IMAGE)
    assert found.outcome == "failed"
    assert "it has no transformers" in found.evidence


def gpu_target() -> dict[str, Any]:
    return {"resources": {"accelerators": "H100:8"}}


def test_machines_with_labels_and_no_device_plugin() -> None:
    words = "no capacity: not enough nvidia.com/gpu (0/3 nodes are available)"
    seen = look(not_started(good(**gpu_target()), "worker", words), nodes=[node("a", H100)])
    found = line(seen, MACHINES)
    assert found.outcome == "failed"
    assert found.evidence == "1 of 1 machines have the labels, and none offers nvidia.com/gpu"
    assert "NVIDIA's device plugin" in str(found.fix)


def test_machines_of_another_kind_or_with_fewer_devices() -> None:
    words = "no node fits: 0/1 nodes are available (needed: nvidia.com/gpu.product=...)"
    waiting = not_started(good(**gpu_target()), "worker", words)
    none = line(look(waiting, nodes=[node("a"), node("b")]), MACHINES)
    assert none.evidence.startswith("none of 2 machines has the labels")
    four = node("a", H100, **{"nvidia.com/gpu": "4"})
    few = line(look(waiting, nodes=[four]), MACHINES)
    assert few.evidence == "workers ask for 8 nvidia.com/gpu, and no machine has more than 4"
    assert "KIND:4" in str(few.fix)


def test_no_room_for_a_pod_and_nodes_that_may_not_be_listed() -> None:
    words = "no capacity: not enough cpu (0/3 nodes are available: 3 Insufficient cpu)"
    found = line(look(not_started(good(), "worker", words), nodes=None), MACHINES)
    assert found.outcome == "failed"
    assert words in found.evidence


def test_both_workers_on_one_machine() -> None:
    seen = good()
    probes = [probe(title, "a") for title in TITLES]
    found = line(replace(seen, start=ProbeStart(probes)), MACHINES)
    assert found.outcome == "warned"
    assert not has_failed(findings(seen))


def test_devices_that_are_not_in_the_pod() -> None:
    nodes = [node(name, H100, **{"nvidia.com/gpu": "8"}) for name in "abc"]
    seen = look(good(**gpu_target()), nodes=nodes)
    found = line(seen, DEVICES)
    assert found.outcome == "failed"
    assert found.evidence.startswith("worker 0 asked for 8 nvidia.com/gpu and sees 0 in /dev")
    assert "pod: {runtime_class: nvidia}" in str(found.fix)
    there = dict.fromkeys(TITLES, replace(FACTS, nvidia=8, nvidia_driver=8))
    others_passed(answered(seen, facts=there))


EFA = {"resources": {"cpu": "2", "memory": "4Gi", "vpc.amazonaws.com/efa": "32"}}


def test_a_fabric_that_is_not_in_the_pod_or_whose_library_is_missing() -> None:
    """NCCL would fall back to TCP, a hundred times slower, and say nothing."""
    seen = good(pod={**EFA, "env": {"NCCL_NET": "AWS Libfabric"}})
    none = line(seen, FABRIC)
    assert none.outcome == "failed"
    assert none.evidence == (
        "worker 0 asked for 32 vpc.amazonaws.com/efa and sees 0 in /dev/infiniband"
    )
    there = dict.fromkeys(TITLES, replace(FACTS, fabric=32))
    without = line(answered(seen, facts=there), FABRIC)
    assert without.outcome == "failed"
    assert (
        "cannot load NCCL's plugin for NCCL_NET=AWS Libfabric: libnccl-net.so" in without.evidence
    )
    whole = dict.fromkeys(TITLES, replace(FACTS, fabric=32, nccl_plugin_error=None))
    others_passed(answered(seen, facts=whole))
    # Without NCCL_NET nothing fails later either: it is only slow.
    quiet = answered(good(pod=EFA), facts=there)
    assert line(quiet, FABRIC).outcome == "warned"


def test_a_plugin_that_the_image_lacks_where_no_fabric_is_asked_for() -> None:
    found = line(good(pod={**CONTENT["pod"], "env": {"NCCL_NET": "AWS Libfabric"}}), FABRIC)
    assert found.outcome == "failed"
    others_passed(good(pod={**CONTENT["pod"], "env": {"NCCL_NET": "Socket"}}))


def test_pods_that_cannot_be_reached_say_alone_what_they_found() -> None:
    broken = replace(GOOD_NAME, error="Temporary failure in name resolution", milliseconds=[])
    answers = ProbeAnswers(
        unreachable=dict.fromkeys(TITLES, "port-forward: forbidden; proxy: forbidden"),
        names={"worker 0": broken},
    )
    seen = replace(good(), answers=answers)
    assert line(seen, REACH).outcome == "failed"
    assert "pods/portforward" in str(line(seen, REACH).fix)
    assert line(seen, NAMES).outcome == "failed"
    assert line(seen, WORKERS).outcome == "not checked"
    assert line(seen, WORKERS).evidence == "the pods cannot be reached from here"


def test_names_that_do_not_resolve() -> None:
    words = "Temporary failure in name resolution"
    broken = replace(GOOD_NAME, error=words, milliseconds=[])
    found = line(answered(good(), names={"worker 1": broken}), NAMES)
    assert found.outcome == "failed"
    assert found.evidence == (
        "worker 1 cannot resolve the coordinator's name: Temporary failure in name resolution; "
        "it asked 10.96.0.10"
    )
    assert "k8s-app=kube-dns" in str(found.fix)


def test_names_that_take_seconds() -> None:
    slow = replace(GOOD_NAME, milliseconds=[6001.0, 6002.0])
    found = line(answered(good(), names={"worker 0": slow}), NAMES)
    assert (found.outcome, "at most 6002 ms" in found.evidence) == ("warned", True)


def test_a_port_that_is_blocked_in_one_direction() -> None:
    seen = good()
    blocked = [PortAnswer(40000 + one, None, "no answer within 3 s") for one in range(3)]
    ports = {**seen.answers.ports, ("worker 1", "worker 0"): blocked}
    found = line(answered(seen, ports=ports), WORKERS)
    assert found.outcome == "failed"
    assert found.evidence == (
        "worker 1 does not reach worker 0 on port 40000, 40001, 40002: no answer within 3 s"
    )
    assert "in both directions" in str(found.fix)
    others_passed(answered(seen, ports=ports), WORKERS)


def test_a_slow_network_is_a_figure_and_no_failure() -> None:
    slow = dict.fromkeys(WORKER_PAIRS, SendAnswer(25_000_000, 2.0, None))
    found = line(answered(good(), sends=slow), WORKERS)
    assert found.outcome == "warned"
    assert "worker 0 to worker 1 0.1" in found.evidence


def test_packets_that_are_too_large() -> None:
    lost = dict.fromkeys(WORKER_PAIRS, SendAnswer(0, 2.0, "TimeoutError: timed out"))
    found = line(answered(good(), sends=lost), WORKERS)
    assert (found.outcome, "MTU" in str(found.fix)) == ("failed", True)


def test_the_coordinators_port_is_blocked() -> None:
    seen = good()
    blocked = [PortAnswer(7460, None, "no answer within 3 s"), PortAnswer(7461, 1.0, None)]
    ports = {**seen.answers.ports, ("worker 0", "coordinator"): blocked}
    found = line(answered(seen, ports=ports), COORDINATOR)
    assert found.outcome == "failed"
    assert (
        found.evidence == "worker 0 does not reach coordinator on port 7460: no answer within 3 s"
    )
    assert "TCP ports 7460 and 7461" in str(found.fix)


@pytest.mark.parametrize(
    ("why", "fix"),
    [
        ("Read-only file system", "its volume, storage class or share is read-only"),
        ("Permission denied", "chown 1000:1000"),
    ],
)
def test_a_claim_that_cannot_be_written(why: str, fix: str) -> None:
    written = WriteAnswer({"make a folder": why}, 0, 0.0, "", "0:0", "755")
    seen = answered(good(), written=written, reads={}, creates={})
    found = line(seen, STORAGE)
    assert (found.outcome, found.evidence) == ("failed", f"worker 0 cannot make a folder: {why}")
    assert fix in str(found.fix)
    assert line(seen, CONDITIONAL).outcome == "not checked"


def test_a_claim_that_is_another_folder_on_each_machine() -> None:
    missing = ReadAnswer(0.0, 0, 0.0, "No such file or directory")
    found = line(answered(good(), reads={"worker 1": missing}), STORAGE)
    assert found.outcome == "failed"
    assert "worker 1 cannot read it: No such file" in found.evidence
    assert "ReadWriteMany" in str(found.fix)


def test_a_claim_that_cannot_be_mounted() -> None:
    words = "its machine cannot start it: Multi-Attach error for volume pvc-1"
    seen = not_started(good(), "worker", words)
    claim = {"spec": {"accessModes": ["ReadWriteOnce"]}}
    found = line(look(seen, claim=claim), STORAGE)
    assert (found.outcome, found.evidence) == ("failed", words)
    assert "(it is ReadWriteOnce)" in str(found.fix)
    assert line(seen, MACHINES).outcome == "not checked"


def test_files_that_are_seen_late() -> None:
    late = ReadAnswer(7.0, 64_000_004, 0.2, None)
    found = line(answered(good(), reads={"worker 1": late}), STORAGE)
    assert (found.outcome, "7.0 s later" in found.evidence) == ("warned", True)


def test_a_bucket_with_wrong_keys() -> None:
    written = WriteAnswer({"write": "PermissionError: Forbidden"}, 16_000_000, 0.1, "x")
    found = line(answered(good_bucket(), written=written, reads={}, creates={}), STORAGE)
    assert found.outcome == "failed"
    assert "does Secret keys have the variables for s3://bucket/team" in str(found.fix)


def test_a_bucket_that_only_the_coordinator_may_read() -> None:
    seen = good_bucket()
    reads = {"coordinator": ReadAnswer(0.0, 16_000_000, 0.2, None)}
    refused = dict.fromkeys(TITLES[:2], "error: PermissionError: Forbidden")
    assert line(answered(seen, reads=reads, unread=refused), STORAGE).outcome == "failed"
    no_headway = dict.fromkeys(TITLES[:2], "the image has no Headway")
    found = line(answered(seen, reads=reads, unread=no_headway), STORAGE)
    assert found.outcome == "passed"
    assert "worker 0 and worker 1 did not try" in found.evidence


@pytest.mark.parametrize("make", [good, good_bucket])
def test_storage_that_creates_a_file_twice(make: Callable[[], TargetEvidence]) -> None:
    seen = make()
    both = {way: True for answer in seen.answers.creates.values() for way in answer.first}
    creates = {title: CreateAnswer(both, None) for title in seen.answers.creates}
    found = line(answered(seen, creates=creates), CONDITIONAL)
    assert found.outcome == "failed"
    others_passed(answered(seen, creates=creates), CONDITIONAL)


@pytest.mark.trap(17)
def test_a_bucket_in_another_region() -> None:
    seen = answered(good_bucket(), region=RegionAnswer("us-east-1", "", None))
    found = line(seen, REGION)
    assert found.outcome == "warned"
    assert found.evidence == (
        "the bucket is in us-east-1, the machines are in eu-central-1: each TB that crosses costs "
        "about $20, and is slower"
    )
    assert "aws s3 mb s3://NAME --region eu-central-1" in str(found.fix)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"nodes": None}, "you may not list nodes"),
        ({"nodes": [node("a")]}, "machines have no such label"),
    ],
)
def test_a_region_that_cannot_be_compared(changed: dict[str, Any], words: str) -> None:
    found = line(look(good_bucket(), **changed), REGION)
    assert (found.outcome, words in found.evidence) == ("not checked", True)


def test_a_store_that_does_not_say_where_it_is() -> None:
    seen = answered(good_bucket(), region=RegionAnswer(None, "http://minio", None))
    assert line(seen, REGION).outcome == "not checked"


@pytest.mark.parametrize(("skew", "outcome"), [(1.0, "passed"), (-3.0, "warned"), (90.0, "failed")])
def test_a_clock_that_is_wrong(skew: float, outcome: str) -> None:
    offsets = {"worker 0": 0.1, "worker 1": 0.1 + skew, "coordinator": 0.1}
    found = line(answered(good(), offsets=offsets), CLOCKS)
    assert found.outcome == outcome
    if outcome != "passed":
        way = "ahead of" if skew > 0 else "behind"
        assert found.evidence == f"worker 1 on b is {abs(skew):.1f} s {way} the others"
        assert "chrony" in str(found.fix)


def test_objects_that_are_refused_leave_the_rest_unchecked() -> None:
    seen = good()
    refused = 'Job headway-check-1: jobs.batch is forbidden: User "me" cannot create resource'
    nothing = replace(seen, start=ProbeStart(), answers=ProbeAnswers(), refused=refused)
    lines = {one.name: one for one in findings(nothing)}
    assert lines[IMAGE].outcome == lines[STORAGE].outcome == "not checked"
    assert refused in lines[WORKERS].evidence
