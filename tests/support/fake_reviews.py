"""What a fake API server answers to the questions of a launch: by default, that all is well."""

from __future__ import annotations

import json
from typing import Any

Object = dict[str, Any]
NAMED: dict[str, Object] = {
    "persistentvolumeclaims": {"spec": {"accessModes": ["ReadWriteMany"]}},
    "serviceaccounts": {},
    "secrets": {"data": {"WANDB_API_KEY": "eA=="}},
    "localqueues": {"status": {"conditions": [{"type": "Active", "status": "True"}]}},
}
"""Kinds of objects that others make, as they are if nobody says otherwise."""
ALL = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}


class FakeReviews:
    def __init__(self) -> None:
        self.user = "jane"
        self.version: Object = {"major": "1", "minor": "34"}
        self.rules: list[Object] = [ALL]
        self.is_incomplete = False
        """Whether rights may be given by others than those rules."""
        self.allowed: set[str] = set()
        """Rights that are asked for one by one: `create jobs`."""
        self.refused_pods: dict[str, tuple[int, str]] = {}
        """Status and message for a dry run of the pod of a component."""
        self.missing: set[str] = set()
        """Names of claims, accounts, Secrets and queues that are not there; all others are."""

    def answer(self, method: str, path: str, is_dry_run: bool, sent: bytes) -> Any:
        """Status and content; None: it is no such question."""
        if method == "GET" and path == "/version":
            return 200, json.dumps(self.version).encode()
        if method == "GET" and path.endswith("/resourcequotas"):
            return 200, b'{"items": []}'
        *_, kind, name = path.split("/")
        is_of_run = kind == "secrets" and name.startswith("headway-")
        if method == "GET" and kind in NAMED and name not in self.missing and not is_of_run:
            return 200, json.dumps({"metadata": {"name": name}, **NAMED[kind]}).encode()
        if method != "POST" or not (is_dry_run or "reviews" in path):
            return None
        content = json.loads(sent)
        match content["kind"]:
            case "Pod":
                component = content["metadata"]["labels"]["app.kubernetes.io/component"]
                if component in self.refused_pods:
                    code, message = self.refused_pods[component]
                    status = {"kind": "Status", "code": code, "message": message}
                    return code, json.dumps(status).encode()
            case "SelfSubjectReview":
                content["status"] = {"userInfo": {"username": self.user}}
            case "SelfSubjectRulesReview":
                content["status"] = {"resourceRules": self.rules, "incomplete": self.is_incomplete}
            case "SelfSubjectAccessReview":
                asked = content["spec"]["resourceAttributes"]
                words = f"{asked['verb']} {asked['resource']}"
                content["status"] = {"allowed": words in self.allowed}
        return 201, json.dumps(content).encode()
