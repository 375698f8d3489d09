"""Images that a machine cannot execute, since they were built for processors of another kind. Pure.

Nobody says so in these words. A program of another architecture ends with `exec format error` in
its log, with exit code 1 or 255, or with 128 before it runs, by the container runtime; an image of
several architectures without this one cannot be pulled.
"""

from __future__ import annotations

import re

from lightkube.models.core_v1 import ContainerState, ContainerStatus
from lightkube.resources.core_v1 import Pod

NOT_EXECUTED = "exec format error"
NOT_IN_IMAGE = "no match for platform in manifest"
"""Words of the kernel, and of containerd."""
ALL_IT_SAYS = re.compile(rf'(standard_init_linux\.go:\d+: )?exec .*{NOT_EXECUTED}"?', re.IGNORECASE)
"""The whole log of a container whose program was not executed, by runc. The log of one that was
may have the words, too: of a file that a script tried to run."""
NOT_STARTED = ("StartError", "ContainerCannotRun")
"""Reasons of an end before the program ran, whose message is the container runtime's."""
ARCHITECTURE_FIX = (
    "use an image for the architecture of that machine (docker buildx build --platform linux/amd64 "
    "or linux/arm64); or, if the cluster has machines of both, say which one the image is for: "
    "pod: {architecture: amd64}, or arm64, in the target, and the same below coordinator"
)


def wrong_architecture(pod: Pod) -> str | None:
    """Why it cannot run on its machine, if that is the reason."""
    status, spec = pod.status, pod.spec
    if status is None or spec is None:
        return None
    images = {one.name: one.image for one in (*(spec.initContainers or ()), *spec.containers)}
    for container in (*(status.initContainerStatuses or ()), *(status.containerStatuses or ())):
        if sign := _sign(container):
            image = images.get(container.name) or container.image
            where = f"machine {spec.nodeName}" if spec.nodeName else "its machine"
            return WORDS[sign].format(image=image, where=where)
    return None


WORDS = {
    NOT_EXECUTED: "image {image} cannot be executed on {where}: it was built for another processor "
    f"architecture ({NOT_EXECUTED})",
    NOT_IN_IMAGE: "image {image} has nothing for the processor architecture of {where} "
    f"({NOT_IN_IMAGE})",
}


def _sign(container: ContainerStatus) -> str | None:
    """By how it is now, and how it ended before."""
    for state in (container.state, container.lastState):
        if state is not None and (sign := _sign_of(state)):
            return sign
    return None


def _sign_of(state: ContainerState) -> str | None:
    waits, ended = state.waiting, state.terminated
    if ended is not None and ended.message:
        if ALL_IT_SAYS.fullmatch(ended.message.strip()):
            return NOT_EXECUTED
        if ended.reason in NOT_STARTED and NOT_EXECUTED in ended.message.lower():
            return NOT_EXECUTED
    if waits is not None and waits.message:
        said = waits.message.lower()
        return next((sign for sign in WORDS if sign in said), None)
    return None
