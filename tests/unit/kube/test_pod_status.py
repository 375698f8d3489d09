"""Why a run waits, in words: from what Kubernetes says of its pods, as it was seen to say it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from lightkube.models.batch_v1 import JobSpec
from lightkube.models.core_v1 import PodTemplateSpec
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Event, Pod

from headway.kube.names import QUEUE
from headway.kube.pod_status import (
    WaitReason,
    describe_pod_exit,
    end_condition,
    exit_code,
    is_prepared,
    termination_message,
    wait_reasons,
    why_not_started,
)


def pod(status: dict[str, Any], spec: dict[str, Any] | None = None) -> Pod:
    made = {"metadata": {"name": "it-0-x"}, "spec": {"containers": [], **(spec or {})}}
    return cast(Pod, Pod.from_dict({**made, "status": status}))


def job(parallelism: int = 1, suspend: bool = False, conditions: Any = None) -> Job:
    template = cast(PodTemplateSpec, PodTemplateSpec.from_dict({}))
    spec = JobSpec(
        template=template, parallelism=parallelism, suspend=suspend, selector=LabelSelector()
    )
    made = cast(Job, Job.from_dict({"status": {"conditions": conditions or []}}))
    made.spec = spec
    return made


def container(reason: str, message: str | None = None) -> dict[str, Any]:
    waits = {"reason": reason, **({"message": message} if message else {})}
    return {
        "name": "worker",
        "image": "registry/headway@sha256:0",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": waits},
    }


def pending(**more: Any) -> dict[str, Any]:
    return {"phase": "Pending", **more}


def event(message: str, reason: str = "FailedCreate") -> Event:
    known = {"involvedObject": {}, "metadata": {"name": "e"}, "reason": reason}
    return cast(Event, Event.from_dict({**known, "message": message}))


UNSCHEDULABLE = (
    "0/3 nodes are available: 1 node(s) had untolerated taint {dedicated: db}, 2 Insufficient "
    "nvidia.com/gpu. preemption: 0/3 nodes are available"
)


@pytest.mark.trap(20)
@pytest.mark.parametrize(
    ("status", "says", "is_hopeless"),
    [
        (pending(containerStatuses=[container("ContainerCreating")]), "pulling the image", False),
        (
            pending(
                containerStatuses=[container("ContainerCreating")],
                conditions=[{"type": "PodReadyToStartContainers", "status": "False"}],
            ),
            "mounting volumes or setting up the network",
            False,
        ),
        (
            pending(containerStatuses=[container("ImagePullBackOff", "not found")]),
            "the image cannot be pulled: not found",
            True,
        ),
        (
            pending(containerStatuses=[container("ErrImagePull")]),
            "the image cannot be pulled: registry/headway@sha256:0",
            True,
        ),
        (
            pending(containerStatuses=[container("CreateContainerConfigError", 'secret "x"')]),
            'the container cannot be created: secret "x"',
            True,
        ),
        (
            pending(
                conditions=[
                    {"type": "PodScheduled", "status": "False", "message": UNSCHEDULABLE},
                ]
            ),
            "no capacity: not enough nvidia.com/gpu (",
            False,
        ),
        (
            pending(
                conditions=[
                    {"type": "PodScheduled", "status": "False", "message": "0/3 match affinity"}
                ]
            ),
            "no node fits: 0/3 match affinity",
            False,
        ),
        (pending(conditions=[{"type": "PodScheduled", "status": "True"}]), "pulling", False),
        (pending(), "not scheduled yet", False),
    ],
)
def test_what_a_pod_waits_for(status: dict[str, Any], says: str, is_hopeless: bool) -> None:
    (reason,) = wait_reasons(job(), [pod(status)], [])
    assert says in reason.words
    assert (reason.pods, reason.is_hopeless) == (1, is_hopeless)


NOT_MOUNTED = 'MountVolume.SetUp failed for volume "data" : mount failed: exit status 32'


def test_why_a_volume_is_not_mounted_is_in_the_events_of_the_pod() -> None:
    waits = pod(pending(containerStatuses=[container("ContainerCreating")]))
    assert is_prepared(waits)
    assert not is_prepared(pod(pending(containerStatuses=[container("ErrImagePull")])))
    old, other = (event(words, "FailedMount") for words in ("timed out", NOT_MOUNTED))
    events = [event("0/3 nodes are available", "FailedScheduling"), old, other]
    (reason,) = wait_reasons(job(), [waits], [], of_pods={"it-0-x": events})
    assert reason.words == f"its machine cannot start it: {NOT_MOUNTED}"
    ready = [{"type": "PodReadyToStartContainers", "status": "True"}]
    mounted = pod(pending(containerStatuses=[container("ContainerCreating")], conditions=ready))
    (reason,) = wait_reasons(job(), [mounted], [], of_pods={"it-0-x": events})
    assert reason.words == "pulling the image", "it has worked since"


def waiting(reason: str, name: str = "worker") -> dict[str, Any]:
    return container(reason, "not\nfound") | {"name": name}


def running(name: str) -> dict[str, Any]:
    return container("") | {"name": name, "state": {"running": {}}}


PULLS = {"containerStatuses": [waiting("ImagePullBackOff")]}
SIDECAR = {"name": "proxy", "restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (PULLS, "the image cannot be pulled: not found"),
        ({"initContainerStatuses": [running("proxy")], **PULLS}, "cannot be pulled: not found"),
        ({"containerStatuses": [running("mesh"), *PULLS["containerStatuses"]]}, "cannot be pulled"),
        ({"conditions": [{"type": "PodScheduled", "status": "True"}]}, "pulling the image"),
        ({"initContainerStatuses": [running("fetch-data")], **PULLS}, None),
        ({"containerStatuses": [running("worker"), waiting("ErrImagePull", "mesh")]}, None),
    ],
    ids=["image", "sidecar", "injected", "placed", "its own init container", "ours runs"],
)
def test_whether_a_pod_has_started_and_why_not(status: dict[str, Any], says: str | None) -> None:
    spec = {"nodeName": "node1", "initContainers": [{"name": "fetch-data"}, SIDECAR]}
    found = why_not_started(pod(pending(**status), spec))
    assert (found is None) if says is None else (found is not None and says in found)
    assert why_not_started(pod(pending(**status))) is None, "without a machine"


def test_labels_that_no_node_has_are_named() -> None:
    def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
        return {"key": key, "operator": operator, "values": list(values)}

    off_windows = expression("kubernetes.io/os", "NotIn", "windows")
    terms = [
        {"matchExpressions": [off_windows, expression("gke", "In", "h100", "h100-mega")]},
        {"matchExpressions": [expression("name", "In", "a100"), expression("mib", "In", "81920")]},
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    message = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    waiting = pod(pending(conditions=[condition]), {"affinity": {"nodeAffinity": required}})
    (reason,) = wait_reasons(job(), [waiting], [])
    assert reason.words == (
        f"no node fits: {message} (needed: gke=h100|h100-mega, or name=a100 + mib=81920)"
    )


def test_a_secret_that_is_not_there_is_told_with_how_to_make_it() -> None:
    missing = container("CreateContainerConfigError", 'secret "mine" not found')
    (reason,) = wait_reasons(job(), [pod(pending(containerStatuses=[missing]))], [])
    assert reason.words == 'the container cannot be created: secret "mine" not found'
    assert (reason.hint or "").startswith("kubectl create secret generic mine --from-literal=")


@pytest.mark.parametrize(
    ("status", "fix"),
    [
        (pending(containerStatuses=[container("ErrImagePull")]), "image_pull_secrets: [NAME]"),
        (
            pending(
                conditions=[{"type": "PodScheduled", "status": "False", "message": UNSCHEDULABLE}]
            ),
            "device plugin",
        ),
        (pending(), None),
    ],
)
def test_what_to_do_follows_from_the_kind_of_a_reason(
    status: dict[str, Any], fix: str | None
) -> None:
    """Not from its words, of which others hold the same."""
    (reason,) = wait_reasons(job(), [pod(status)], [])
    assert (reason.hint is None) if fix is None else (fix in str(reason.hint))
    assert replace(reason, words="else", kind="other").hint is None


def test_an_init_container_whose_image_is_not_there() -> None:
    first = container("ImagePullBackOff", "not found") | {"name": "warm-up"}
    ours = container("PodInitializing")
    status = pending(initContainerStatuses=[first], containerStatuses=[ours])
    (reason,) = wait_reasons(job(), [pod(status)], [])
    assert (reason.words, reason.is_hopeless) == ("the image cannot be pulled: not found", True)


def test_an_init_container_that_failed() -> None:
    first = container("x") | {"name": "warm-up", "state": {"terminated": {"exitCode": 3}}}
    ended = pod({"phase": "Failed", "initContainerStatuses": [first]})
    assert describe_pod_exit(ended) == (
        "did not start: init container warm-up ended with exit code 3"
    )


def test_a_core_of_another_version_ends_the_run_with_what_it_says() -> None:
    said = {"exitCode": 2, "message": "error: this image has Headway 9.9.9"}
    refused = container("x") | {"name": "wheels", "state": {"terminated": said}}
    ours = container("PodInitializing")
    status = {"initContainerStatuses": [refused], "containerStatuses": [ours]}
    ended = pod({"phase": "Failed", **status})
    assert (exit_code(ended), termination_message(ended)) == (2, said["message"])


def test_how_the_worker_ended_counts_after_wheels_were_copied() -> None:
    copied = container("x") | {"name": "wheels", "state": {"terminated": {"exitCode": 0}}}
    ours = container("x") | {"state": {"terminated": {"exitCode": 7}}}
    status = {"initContainerStatuses": [copied], "containerStatuses": [ours]}
    assert exit_code(pod({"phase": "Failed", **status})) == 7


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        (
            "wheels",
            "error: [Errno 28] No space left on device\n",
            "ended with exit code 7: [Errno 28] No space left on device",
        ),
        (
            "worker",
            "waited 300 s for s3://team/runs/it: Access Denied\nhint: check its key",
            "ended with exit code 7: waited 300 s for s3://team/runs/it: Access Denied",
        ),
        ("worker", "", "ended with exit code 7"),
    ],
)
def test_a_pod_that_gave_up_by_itself_says_why(name: str, words: str, says: str) -> None:
    """It is replaced, and its log goes with it."""
    terminated = {"exitCode": 7, "message": words}
    one = container("x") | {"name": name, "state": {"terminated": terminated}}
    place = "initContainerStatuses" if name == "wheels" else "containerStatuses"
    assert describe_pod_exit(pod({"phase": "Failed", place: [one]})) == says


def test_a_pod_with_its_gate_waits_for_us() -> None:
    gated = pod(pending(), {"schedulingGates": [{"name": "headway/placed"}]})
    assert wait_reasons(job(), [gated], [])[0].words == "waiting for the coordinator to place it"


@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
def test_pods_that_do_not_wait(phase: str) -> None:
    assert wait_reasons(job(), [pod({"phase": phase})], []) == []


QUOTA = (
    'Error creating: pods "it-0-x" is forbidden: exceeded quota: team, requested: '
    "requests.cpu=2, used: requests.cpu=9, limited: requests.cpu=10"
)
POLICY = (
    'Error creating: pods "it-0-x" is forbidden: violates PodSecurity "restricted:latest": '
    "hostPath volumes"
)
ACCOUNT = (
    'Error creating: pods "it-coordinator-" is forbidden: error looking up service account '
    'ml/keeps: serviceaccount "keeps" not found'
)


@pytest.mark.parametrize(
    ("message", "says", "is_hopeless"),
    [
        (QUOTA, "quota team is exceeded: requested: requests.cpu=2, used", False),
        (POLICY, "rejected by policy: violates PodSecurity", True),
        (
            ACCOUNT,
            "service account keeps does not exist in the namespace; headway target rbac",
            False,
        ),
        ("Error creating: something else", "something else", False),
    ],
)
def test_pods_that_cannot_be_made(message: str, says: str, is_hopeless: bool) -> None:
    (reason,) = wait_reasons(job(parallelism=3), [], [event("older"), event(message)])
    assert reason.words.startswith(says)
    assert (reason.pods, reason.is_hopeless) == (3, is_hopeless)


def test_those_that_are_up_are_not_missing() -> None:
    assert wait_reasons(job(parallelism=3), [], [event(QUOTA)], num_ready=3) == []


def test_the_same_reason_is_counted_and_the_hopeless_come_first() -> None:
    placed = pending(conditions=[{"type": "PodScheduled", "status": "True"}])
    broken = pending(containerStatuses=[container("InvalidImageName", "no")])
    reasons = wait_reasons(job(3), [pod(placed), pod(placed), pod(broken)], [])
    assert reasons == [
        WaitReason("the image name is invalid: no", 1, is_hopeless=True, kind="image"),
        WaitReason("pulling the image or mounting volumes", 2, kind="preparing"),
    ]


def test_a_suspended_job() -> None:
    suspended = job(suspend=True)
    assert wait_reasons(suspended, [], []) == [WaitReason("suspended", 1)]
    suspended.metadata = ObjectMeta(labels={QUEUE: "research"})
    assert wait_reasons(suspended, [], []) == [WaitReason("in queue research", 1)]


def test_how_a_job_ended() -> None:
    complete = {"type": "Complete", "status": "True"}
    assert end_condition(job()) is None
    assert end_condition(job(conditions=[{"type": "SuccessCriteriaMet", "status": "True"}])) is None
    found = end_condition(job(conditions=[complete]))
    assert found is not None
    assert found.type == "Complete"


def test_how_a_pod_ended() -> None:
    state = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "KeyError: x"}}
    ended = pod({"phase": "Failed", "containerStatuses": [{**container("x"), "state": state}]})
    assert describe_pod_exit(ended) == "ended with exit code 137 (out of memory)"
    assert (exit_code(ended), termination_message(ended)) == (137, "KeyError: x")
    running = pod({"phase": "Running", "containerStatuses": [container("x")]})
    assert (exit_code(running), termination_message(running)) == (None, None)


@pytest.mark.parametrize("component", ["worker", "coordinator", "storage"])
def test_how_a_sidecar_ended_is_not_how_the_pod_did(component: str) -> None:
    def ended(name: str, code: int, words: str) -> dict[str, Any]:
        state = {"terminated": {"exitCode": code, "message": words}}
        return {**container("x"), "name": name, "state": state}

    first, second = ended("mesh-proxy", 0, "drained"), ended(component, 1, "KeyError: x")
    found = pod({"phase": "Failed", "containerStatuses": [first, second]})
    assert (exit_code(found), termination_message(found)) == (1, "KeyError: x")
    assert describe_pod_exit(found) == "ended with exit code 1"
    alone = pod({"phase": "Failed", "message": "Evicted", "containerStatuses": [first]})
    assert (exit_code(alone), termination_message(alone)) == (None, None)


def test_a_pod_that_its_machine_has_ended() -> None:
    words = "The node was low on resource: memory."
    evicted = pod({"phase": "Failed", "reason": "Evicted", "message": words})
    assert exit_code(evicted) is None
    assert describe_pod_exit(evicted) == f"was ended: {words}"
