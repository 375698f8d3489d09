"""An image for other processors: known by what containers leave, and told with what to do."""

from __future__ import annotations

from typing import Any, cast

import pytest
from lightkube.resources.core_v1 import Pod

from headway.errors import without_hint
from headway.kube.pod_status import (
    describe_pod_exit,
    termination_message,
    wait_reasons,
    why_not_started,
)
from headway.kube.wrong_architecture import wrong_architecture
from unit.kube.test_pod_status import job

IMAGE = "registry/it@sha256:0"


def pod(phase: str, state: dict[str, Any], name: str = "worker", **more: Any) -> Pod:
    """With one container in that state; `more`: of its status."""
    container = {"name": name, "image": "it", "imageID": "", "ready": False, "restartCount": 0}
    spec = {"nodeName": "node-7", "containers": [{"name": name, "image": IMAGE}]}
    status = {"phase": phase, "containerStatuses": [{**container, "state": state, **more}]}
    made = {"metadata": {"name": "it-0-x"}, "spec": spec, "status": status}
    return cast(Pod, Pod.from_dict(made))


def ended(message: str, code: int = 1, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


RUNC = "exec /usr/local/bin/headway: exec format error\n"
CRUN = (
    "failed to create containerd task: exec container process `/bin/headway`: Exec format error: "
    "OCI runtime error"
)


@pytest.mark.trap(9)
@pytest.mark.parametrize(
    "state",
    [
        ended(RUNC),
        ended(RUNC, 255),
        ended('standard_init_linux.go:228: exec user process caused: "exec format error"'),
        ended(CRUN, 128, "StartError"),
    ],
    ids=["runc", "newer runc", "older runc", "crun"],
)
def test_a_pod_that_ended_says_what_cannot_run_where_and_what_to_do(state: dict[str, Any]) -> None:
    failed = pod("Failed", state)
    words, hint = without_hint(termination_message(failed) or "")
    assert words == (
        f"image {IMAGE} cannot be executed on machine node-7: it was built for another processor "
        "architecture (exec format error)"
    )
    assert hint is not None
    assert "pod: {architecture: amd64}" in hint
    assert describe_pod_exit(failed) == f"did not start: {words}"


@pytest.mark.trap(9)
def test_a_coordinator_that_is_started_again_and_again_is_hopeless_at_once() -> None:
    waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    (reason,) = wait_reasons(
        job(), [pod("Running", waits, "coordinator", lastState=ended(RUNC))], []
    )
    assert reason.is_hopeless
    assert "machine node-7: it was built for another processor architecture" in reason.words
    assert "architecture: amd64" in (reason.hint or "")


def test_an_image_of_other_architectures_that_is_not_pulled() -> None:
    said = f'failed to resolve image "{IMAGE}": no match for platform in manifest: not found'
    waiting = pod("Pending", {"waiting": {"reason": "ErrImagePull", "message": said}})
    (reason,) = wait_reasons(job(), [waiting], [])
    assert reason.words == (
        f"image {IMAGE} has nothing for the processor architecture of machine node-7 (no match for "
        "platform in manifest)"
    )
    assert reason.is_hopeless
    assert reason.hint is not None
    assert why_not_started(waiting) == reason.words


@pytest.mark.parametrize(
    "message",
    [
        "OSError: [Errno 8] Exec format error: './tool'\nworker it-0-x.1/0 ended with exit code 1",
        "error: command: ./tool cannot be started: Exec format error",
        "exec started\nepoch 1\nexec format error",
    ],
)
def test_a_file_that_the_users_code_could_not_run_is_no_such_image(message: str) -> None:
    assert wrong_architecture(pod("Failed", ended(message))) is None


def test_other_reasons_have_no_such_hint() -> None:
    waiting = pod("Pending", {"waiting": {"reason": "ErrImagePull", "message": "not found"}})
    (reason,) = wait_reasons(job(), [waiting], [])
    assert reason.words == "the image cannot be pulled: not found"
    assert "architecture" not in str(reason.hint)


def test_labels_that_no_machine_has_are_named() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "message": "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.",
    }
    spec = {"containers": [], "nodeSelector": {"kubernetes.io/arch": "arm64"}}
    status = {"phase": "Pending", "conditions": [condition]}
    made = {"metadata": {"name": "it-0-x"}, "spec": spec, "status": status}
    (reason,) = wait_reasons(job(), [cast(Pod, Pod.from_dict(made))], [])
    assert reason.words.endswith("affinity/selector. (needed: kubernetes.io/arch=arm64)")
    assert not reason.is_hopeless
