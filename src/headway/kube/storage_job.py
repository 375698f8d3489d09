"""A short-lived pod that serves a target's claim to whoever has its key: `kube.claim` asks it."""

from __future__ import annotations

import base64

from headway.kube.names import HTTP_PORT, KEY, STORAGE, Object
from headway.kube.overrides import merged
from headway.kube.pods import container, metadata, template, variable
from headway.spec.target import Target

MOST_SECONDS = 6 * 3600
"""For an upload. Whoever started it deletes it before, if nothing ends them."""
KEPT_SECONDS = 60
RESOURCES = {"cpu": "250m", "memory": "256Mi"}


def storage_objects(session: str, target: Target, key: str) -> list[Object]:
    """The Job, and the Secret with its key, which goes away with it. `session` tells it from those
    of others."""
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
    spec = {"restartPolicy": "Never", "automountServiceAccountToken": False}
    pod = merged(template(name, "storage", target, served, [], spec), target.pod, {})
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(name, namespace, component="storage"),
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
    return [job, secret]
