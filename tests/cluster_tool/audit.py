"""What the API server was asked, by whom, and how long it took: from its own audit log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import parse_qs, urlsplit

import yaml

from cluster_tool.api import Object
from cluster_tool.cluster import LOGS, Cluster

READS = ("get", "list", "watch")


@dataclass(frozen=True)
class Call:
    """As the API server has noted it."""

    user: str
    verb: str
    resource: str
    code: int
    time: float
    """Of its answer."""
    seconds: float
    """What that took the server."""
    query: dict[str, list[str]]

    @property
    def is_write(self) -> bool:
        return self.verb not in READS

    @property
    def words(self) -> str:
        return f"{self.verb} {self.resource}"

    @property
    def is_unbounded(self) -> bool:
        """It could be answered with everything there is of a kind."""
        is_selected = "labelSelector" in self.query or "fieldSelector" in self.query
        if self.verb == "watch":
            return not is_selected
        return self.verb == "list" and not (is_selected and "limit" in self.query)


class Audit:
    """Calls of some users, counted by the API server's own log."""

    def __init__(self, cluster: Cluster, users: Sequence[str]) -> None:
        """Restarts the API server, with a log."""
        self.log = cluster.folder / LOGS / "audit.log"
        policy = cluster.folder / "audit.yaml"
        # Of a watch the answer's beginning is noted, too.
        rules: list[Object] = [{"level": "Metadata", "users": list(users)}, {"level": "None"}]
        content = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}
        policy.write_text(yaml.safe_dump(content | {"omitStages": ["RequestReceived"]}))
        plane = cluster.control_plane
        plane.stop_api()
        plane.start_api(f"--audit-policy-file={policy}", f"--audit-log-path={self.log}")
        plane.wait_ready(cluster.api)

    @property
    def position(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def calls(self, user: str, since: int = 0) -> list[Call]:
        """In the order of their answers."""
        with self.log.open("rb") as file:
            file.seek(since)
            found = [_call(json.loads(line)) for line in file]
        return [call for call in found if call is not None and call.user == user]


def _call(event: Object) -> Call | None:
    """None if its end is noted as well."""
    verb = event["verb"]
    if (event["stage"] == "ResponseStarted") != (verb == "watch"):
        return None
    what = event.get("objectRef", {})
    kind = "/".join(filter(None, (what.get("resource"), what.get("subresource"))))
    asked, answered = (
        datetime.fromisoformat(event[key]).timestamp()
        for key in ("requestReceivedTimestamp", "stageTimestamp")
    )
    return Call(
        user=event["user"]["username"].rpartition(":")[2],
        verb=verb,
        resource=kind or event["requestURI"],
        code=event["responseStatus"]["code"],
        time=answered,
        seconds=answered - asked,
        query=parse_qs(urlsplit(event["requestURI"]).query),
    )
