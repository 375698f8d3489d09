"""A short-lived pod that serves a target's claim to clients that have its key; the client is
kube/claim_files.py."""

from __future__ import annotations

import base64

from headway.kube.names import HTTP_PORT, KEY, STORAGE, Object
from headway.kube.network_policy import network_policy
from headway.kube.pod_overrides import with_overrides
from headway.kube.pods import (
    affinity,
    container,
    metadata,
    queue_labels,
    short_node_tolerations,
    template,
    variable,
)
from headway.spec.target_file import Target

MOST_SECONDS = 6 * 3600
"""Time limit of an upload. The process that started the pod deletes it earlier, unless killed."""
KEPT_SECONDS = 60
RESOURCES = {"cpu": "250m", "memory": "256Mi"}


def storage_objects(session: str, target: Target, key: str) -> list[Object]:
    """The Job, and the objects deleted with it: the Secret with its key, and the rule for who may
    reach it. `session` distinguishes it from those of others. It is placed like the coordinator:
    off spot machines, and off the workers' machines if the target says so."""
    name, namespace = f"storage-{session}", target.kube.namespace
    served = container(
        "storage",
        target,
        ["headway", "serve"],
        [variable("HEADWAY_KEY", KEY), variable("HEADWAY_STORAGE", STORAGE)],
        [],
        RESOURCES,
    )
    served["readinessProbe"] = {
        "httpGet": {"path": "/healthz", "port": HTTP_PORT},
        "periodSeconds": 1,
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "affinity": affinity(target, is_off_spot=True),
        "tolerations": short_node_tolerations(),
    }
    made = template(name, "storage", target, served, [], spec)
    pod = with_overrides(made, target, "storage")
    of_job = metadata(name, namespace, component="storage")
    of_job["labels"] |= queue_labels(target)
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": of_job,
        "spec": {
            "backoffLimit": 2,
            "activeDeadlineSeconds": MOST_SECONDS,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": pod,
        },
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(name, namespace),
        "type": "Opaque",
        "data": {"key": base64.b64encode(key.encode()).decode()},
    }
    return [job, secret, network_policy(name, target)]
