"""Names and labels of a run's objects on Kubernetes, and paths inside its pods. All code that
creates, finds or serves these objects takes them from here."""

from __future__ import annotations

from typing import Any, Literal, get_args

from headway.errors import BadInput

Component = Literal["worker", "coordinator", "storage", "data"]
COMPONENTS: tuple[Component, ...] = get_args(Component)
"""The roles of pods in a run, also the names of their containers."""
Object = dict[str, Any]
"""An object as Kubernetes writes it in JSON."""

INSTANCE = "app.kubernetes.io/instance"
MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "app.kubernetes.io/component"
VERSION = "app.kubernetes.io/version"
"""Label of all objects: the version of Headway that made them, as `version_label` writes it."""
INDEX = "batch.kubernetes.io/job-completion-index"
"""Label and annotation of a worker's pod, set by Kubernetes: the index of its node."""

SESSION_PORT = 7460
"""Port of the coordinator for workers; requires the run's key."""
HTTP_PORT = 7461
"""Read-only port of the coordinator, for the API server's proxy."""

WHEELS = "wheels"
"""Container that copies Headway's wheels into a worker's pod whose image may lack it."""

FINALIZER = "batch.kubernetes.io/job-tracking"
"""Finalizer, set by Kubernetes, of a pod that its Job has not counted yet."""
CONTROLLER_UIDS = ("batch.kubernetes.io/controller-uid", "controller-uid")
"""Labels, set by Kubernetes, by which a Job finds its pods. The second is the older name."""
GATE = "headway/placed"
"""Scheduling gate of workers' pods with `spot: above_min`, until the coordinator has said which of
them must not be on spot machines."""
SUSPECT = "headway/suspect"
"""Label of a lost pod that is kept to mark its machine: workers' pods are scheduled elsewhere."""
SUSPECT_UNTIL = "headway/suspect-until"
"""Annotation of such a pod: when it is deleted, in seconds since 1970."""

GAVE_BACK = "headway/gave-back"
"""Annotation of a workers' Job that is suspended because it had too few pods (`kube.gave_back`)."""
LAUNCHING = "headway/launching"
"""Annotation of a workers' Job until the launch that has created it has made everything else: when
that launch last showed that it works (`launch.launch_mark`)."""
KEEP_FAILED = "headway/keep-failed"
"""Annotation of a workers' Job: how long it is kept if it fails, in seconds."""
KEEP_STOPPED = "headway/keep-stopped"
"""The same: after it was stopped. Whoever cleans up may have another target."""
EVENT_SOURCE = "headway"
"""Component that Kubernetes events of a run name, by which they are told from Kubernetes' own."""

ACCELERATORS = "headway/accelerators"
"""Annotation of a workers' Job: which of several kinds of accelerator its pods have or wait for."""

QUEUE = "kueue.x-k8s.io/queue-name"
"""Label of a Job in a Kueue queue."""
PRIORITY = "kueue.x-k8s.io/priority-class"
"""Label of such a Job: who preempts whom."""
ELASTIC = "kueue.x-k8s.io/elastic-job"
"""Annotation of such a Job. Without it, Kueue would suspend the whole run to change its size."""

HEADWAY_VERSION = "HEADWAY_VERSION"
"""Variable of all pods: the version of Headway that made them."""
HEADWAY = "/headway"
STORAGE = "/headway/storage"
"""Mount path of a claim."""
FETCHED = "/headway/fetched"
"""Folder for code and models that a pod fetches from a bucket."""
NODE_FOLDER = "/headway/node"
"""Folder of a script's pod: its working folder and its scratch folder."""
KEY_FOLDER, KEY = "/headway/key", "/headway/key/key"
SPEC_FOLDER, SPEC = "/headway/spec", "/headway/spec/spec.json"
PACKAGES = "/headway/packages"
"""Folder for packages that the image lacks."""
HOME = "/tmp"
USER_VARIABLES = {
    "HOME": HOME,
    "USER": "headway",
    "LOGNAME": "headway",
    "XDG_CACHE_HOME": f"{HOME}/cache",
    "TORCHINDUCTOR_CACHE_DIR": f"{HOME}/cache/inductor",
    "TRITON_CACHE_DIR": f"{HOME}/cache/triton",
    "CUDA_CACHE_PATH": f"{HOME}/cache/cuda",
}
"""Variables of all pods. Their root is read-only, and their user may be a number without a name:
libraries that ask for the name fail, and compilers find no place for what they keep. The hub's
cache is left alone: an image may bring models in it."""
SHARED_MEMORY = "/dev/shm"

MAX_LABEL = 63
"""Maximum length of host names and label values, in characters."""


def run_object(run: str) -> str:
    """The name of the workers' Job, and of all objects that exist once per run."""
    return f"headway-{run}"


def coordinator_object(run: str) -> str:
    return f"headway-{run}-coordinator"


def record_object(run: str) -> str:
    return f"headway-{run}-record"


def spec_object(run: str, digest: str) -> str:
    """With the digest of its content: a kubelet keeps an immutable ConfigMap for as long as any pod
    on its node has named it, also a lost one of an earlier launch."""
    return f"headway-{run}-spec-{digest}"


def labels(run: str, component: Component | None = None) -> dict[str, str]:
    """Labels of an object. All are needed to select it, since others label by instance too."""
    of_run = {MANAGED_BY: "headway", INSTANCE: run}
    return of_run | {COMPONENT: component} if component else of_run


def version_label(version: str) -> str:
    """A label has no `+`, as in 0.1.0+local, and a version no `_`."""
    return version.replace("+", "_")


def labelled_version(label: str) -> str:
    """Of `version_label`."""
    return label.replace("_", "+")


def selector(run: str, component: Component | None = None) -> str:
    """The same labels, as a list call takes them."""
    return ",".join(f"{key}={value}" for key, value in labels(run, component).items())


def coordinator_address(run: str, namespace: str) -> str:
    return f"{run_object(run)}.{namespace}.svc:{SESSION_PORT}"


def require_names(run: str, nodes: int) -> None:
    """Refuses names that are too long: they become labels of pods and, with the index appended,
    host names of workers."""
    for name in (coordinator_object(run), f"{run_object(run)}-{nodes - 1}"):
        if len(name) > MAX_LABEL:
            raise BadInput(
                f"{name} has {len(name)} characters; Kubernetes allows {MAX_LABEL}",
                "give the run a shorter name",
            )
