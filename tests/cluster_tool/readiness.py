"""Whether nodes can be used, by what they say themselves."""

from __future__ import annotations

import datetime

import httpx

from cluster_tool.api import Api, ApiError, Object


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def condition(node: Object, kind: str) -> Object:
    found = (entry for entry in node["status"].get("conditions", ()) if entry["type"] == kind)
    return next(found, {})


def is_ready(api: Api, name: str, since: datetime.datetime | None = None) -> bool:
    """Ready and not tainted by a fault; with `since`, it must have said so after that moment:
    Kubernetes calls a dead node ready for 50 s more. It says so in whole seconds, and then not for
    minutes; its lease has the exact time."""
    try:
        node = api.find(f"/api/v1/nodes/{name}")
        lease = api.find(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}")
    except (ApiError, httpx.TransportError):
        return False
    if node is None or lease is None or condition(node, "Ready").get("status") != "True":
        return False
    taints = {taint["key"] for taint in node["spec"].get("taints", ())}
    if any(key.startswith("node.kubernetes.io/") for key in taints):
        return False
    if since is None:
        return True
    said = datetime.datetime.fromisoformat(condition(node, "Ready")["lastHeartbeatTime"])
    renewed = datetime.datetime.fromisoformat(lease["spec"]["renewTime"])
    return said >= since.replace(microsecond=0) and renewed > since
