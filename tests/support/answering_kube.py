"""A fake API server with the answers of a cluster: recorded, or made up from documentation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headway.launch.cluster_look import ASKED
from support.fake_kube import FakeKube

CLUSTERS = Path(__file__).parents[1] / "unit" / "kube" / "clusters"


class Answering:
    """Gives a fake API server the answers of a recorded cluster; what is None is forbidden."""

    def __init__(self, kube: FakeKube, cluster: str, namespace: str = "ml") -> None:
        self.namespace = namespace
        self.recorded = json.loads((CLUSTERS / f"{cluster}.json").read_text())
        self.asked: list[str] = []
        self._rest = kube.answer
        kube.answer = self.answer  # type: ignore[method-assign]

    def answer(self, method: str, where: str, content: bytes, headers: Any) -> tuple[int, bytes]:
        path = urlsplit(where).path.strip("/")
        self.asked.append(f"{method} {where}")
        for name, paths in {**ASKED, "version": ("version",)}.items():
            if any(path == one.format(namespace=self.namespace).split("?")[0] for one in paths):
                found = self.recorded[name]
                if found is None:
                    message = {"kind": "Status", "code": 403, "message": f"{path} is forbidden"}
                    return 403, json.dumps(message).encode()
                return 200, json.dumps(found).encode()
        return self._rest(method, where, content, headers)
