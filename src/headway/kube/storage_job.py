"""A short-lived pod that serves a target's claim to whoever has its key: `kube.claim` asks it."""

from __future__ import annotations

import base64

from headway.kube.names import HTTP_PORT, KEY, STORAGE, Object
from headway.kube.overrides import merged
from headway.kube.pods import affinity, container, metadata, soon_elsewhere, template, variable
from headway.kube.rights import network_policy
from headway.spec.target import Target

MOST_SECONDS = 6 * 3600
"""For an upload. Whoever started it deletes it before, if nothing ends them."""
KEPT_SECONDS = 60
RESOURCES = {"cpu": "250m", "memory": "256Mi"}


def storage_objects(session: str, target: Target, key: str) -> list[Object]:
    """The Job, and what goes away with it: the Secret with its key, and who may reach it. `session`
    tells it from those of others. It is placed as the coordinator is: off spot machines, and off
    the workers' where the target says so."""
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
        "tolerations": soon_elsewhere(),
    }
    made = template(name, "storage", target, served, [], spec)
    pod = merged(made, target.pod, target.coordinator.node_selector)
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
    return [job, secret, network_policy(name, target)]
