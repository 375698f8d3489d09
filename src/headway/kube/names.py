"""What a run's objects are called on Kubernetes, how they are labelled, and where its pods find
things. Whoever makes, finds or serves them takes it from here."""

from __future__ import annotations

from typing import Any, Literal, get_args

from headway.errors import BadInput

Component = Literal["worker", "coordinator", "storage"]
COMPONENTS: tuple[Component, ...] = get_args(Component)
"""What a pod is of a run, and the name of its container."""
Object = dict[str, Any]
"""As Kubernetes writes it in JSON."""

INSTANCE = "app.kubernetes.io/instance"
MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "app.kubernetes.io/component"
INDEX = "batch.kubernetes.io/job-completion-index"
"""Of a worker's pod, label and annotation: which node it is. From Kubernetes."""

SESSION_PORT = 7460
"""Of the coordinator, for workers; with the run's key."""
HTTP_PORT = 7461
"""Of the coordinator, read-only, for the API server's proxy."""

FINALIZER = "batch.kubernetes.io/job-tracking"
"""Of a pod that its Job has still to count. From Kubernetes."""
GATE = "headway/placed"
"""No pod of the workers is placed before the coordinator has said where not to."""

QUEUE = "kueue.x-k8s.io/queue-name"
"""Label of a Job in a queue of Kueue."""
ELASTIC = "kueue.x-k8s.io/elastic-job"
"""Annotation of such a Job. Without it Kueue would suspend the whole run to change its size."""

HEADWAY = "/headway"
STORAGE = "/headway/storage"
"""Where a claim is mounted."""
FETCHED = "/headway/fetched"
"""Where a pod puts code and models that it fetches from a bucket."""
KEY_FOLDER, KEY = "/headway/key", "/headway/key/key"
SPEC_FOLDER, SPEC = "/headway/spec", "/headway/spec/spec.json"
HOME = "/tmp"
SHARED_MEMORY = "/dev/shm"

MAX_LABEL = 63
"""Of host names and of the values of labels, in characters."""


def run_object(run: str) -> str:
    """The workers' Job, and all that there is only one of in a run."""
    return f"headway-{run}"


def coordinator_object(run: str) -> str:
    return f"headway-{run}-coordinator"


def record_object(run: str) -> str:
    return f"headway-{run}-record"


def labels(run: str, component: Component | None = None) -> dict[str, str]:
    """Of an object. They select it, too: all of them, since others label by instance as well."""
    of_run = {MANAGED_BY: "headway", INSTANCE: run}
    return of_run | {COMPONENT: component} if component else of_run


def selector(run: str, component: Component | None = None) -> str:
    """The same, as a list call takes it."""
    return ",".join(f"{key}={value}" for key, value in labels(run, component).items())


def coordinator_address(run: str, namespace: str) -> str:
    return f"{run_object(run)}.{namespace}.svc:{SESSION_PORT}"


def require_names(run: str, nodes: int) -> None:
    """Names become labels of pods, and with the index behind it the host names of workers."""
    for name in (coordinator_object(run), f"{run_object(run)}-{nodes - 1}"):
        if len(name) > MAX_LABEL:
            raise BadInput(
                f"{name} has {len(name)} characters, and Kubernetes takes {MAX_LABEL}",
                "give the run a shorter name",
            )
