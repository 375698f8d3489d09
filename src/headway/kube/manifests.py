"""All objects of a run, from the resolved run and a target. Pure: no API calls.

Their number does not depend on the size of the run. `docs/concepts/kubernetes-objects.md` says what
each is for.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from headway.kube.coordinator_set import coordinator_set
from headway.kube.names import (
    HTTP_PORT,
    SESSION_PORT,
    Object,
    labels,
    record_object,
    require_names,
)
from headway.kube.network_policy import network_policy
from headway.kube.pod_overrides import require_restricted
from headway.kube.pods import metadata, spec_config_map
from headway.kube.rbac import run_rights
from headway.kube.worker_devices import later_choices
from headway.kube.worker_job import worker_job
from headway.spec.resolve import Resolved
from headway.spec.target_file import Target

NOT_SHOWN = "(made when the run is launched)"
"""Placeholder where the key is shown. Not base64, so objects with it cannot be created."""


def manifests(resolved: Resolved, target: Target, key: str) -> list[Object]:
    """The objects in the order in which to create them: the owner of all others first, the
    coordinator, which needs the others, last. `key` is made by `member.keys`."""
    run = resolved.name
    require_names(run, resolved.nodes)
    if target.security == "restricted":
        require_restricted(target.pod)
    return [
        worker_job(resolved, target),
        spec_config_map(resolved, target),
        record_config_map(run, target),
        key_secret(run, target, key),
        service(run, target),
        *run_rights(run, target, bool(later_choices(resolved, target))),
        network_policy(run, target),
        coordinator_set(resolved, target),
    ]


def owned_by(objects: Sequence[Object], uid: str) -> list[Object]:
    """The same objects, with the first, which got `uid` when it was created, as the owner of the
    others: they are deleted with it. As their controller: Kueue puts no pod into a queue of its own
    if what controls it is in one."""
    owner, *others = objects
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": uid,
        "controller": True,
    }
    return [
        owner,
        *(one | {"metadata": one["metadata"] | {"ownerReferences": [reference]}} for one in others),
    ]


def without_key(objects: Sequence[Object]) -> list[Object]:
    """The same objects, safe to show."""
    return [
        one | {"data": dict.fromkeys(one["data"], NOT_SHOWN)} if one["kind"] == "Secret" else one
        for one in objects
    ]


def record_config_map(run: str, target: Target) -> Object:
    """Without data: the coordinator writes it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(run, target.kube.namespace, record_object(run)),
    }


def key_secret(run: str, target: Target, key: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(run, target.kube.namespace),
        "type": "Opaque",
        "data": {"key": base64.b64encode(key.encode()).decode()},
    }


def service(run: str, target: Target) -> Object:
    """The coordinator's DNS name. Headless, so that workers connect to the pod itself; and
    published as soon as the pod has an address, since all workers wait for a replaced
    coordinator."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(run, target.kube.namespace),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels(run, "coordinator"),
            "ports": [
                {"name": "session", "port": SESSION_PORT, "protocol": "TCP"},
                {"name": "http", "port": HTTP_PORT, "protocol": "TCP"},
            ],
        },
    }
