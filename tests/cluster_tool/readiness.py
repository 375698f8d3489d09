"""Whether nodes can be used, by what they say themselves."""

from __future__ import annotations

import datetime

import httpx

from cluster_tool.api import Api, ApiError, Object


def now() -> datetime.datetime:
    """As Kubernetes has it: in whole seconds."""
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def condition(node: Object, kind: str) -> Object:
    found = (entry for entry in node["status"].get("conditions", ()) if entry["type"] == kind)
    return next(found, {})


def is_ready(api: Api, name: str, since: datetime.datetime | None = None) -> bool:
    """Ready and not tainted by a fault; with `since`, it must have said so after that moment:
    Kubernetes calls a dead node ready for 50 s more."""
    try:
        node = api.find(f"/api/v1/nodes/{name}")
    except (ApiError, httpx.TransportError):
        return False
    if node is None or condition(node, "Ready").get("status") != "True":
        return False
    taints = {taint["key"] for taint in node["spec"].get("taints", ())}
    if any(key.startswith("node.kubernetes.io/") for key in taints):
        return False
    said = condition(node, "Ready")["lastHeartbeatTime"]
    return since is None or datetime.datetime.fromisoformat(said) > since
