"""The Grafana dashboard, and the alerts that the guide proposes: their queries."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = DOCS / "grafana/headway.json"
GUIDE = DOCS / "guides/prometheus.md"
METRIC = re.compile(r"\bheadway_[a-z_]+")


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def dashboard_queries() -> dict[str, str]:
    """By panel and letter, for all runs of all namespaces."""
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        .replace("$run", ".*")
        .replace("$namespace", ".*")
        for panel in panels()
        for target in panel["targets"]
    }


def alert_rules() -> dict[str, Any]:
    """The rules in the guide."""
    blocks = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    (found,) = (block for block in map(yaml.safe_load, blocks) if "groups" in block)
    rules: dict[str, Any] = found
    return rules


def alert_queries() -> dict[str, str]:
    return {
        rule["alert"]: rule["expr"] for group in alert_rules()["groups"] for rule in group["rules"]
    }


def metrics_in(query: str) -> set[str]:
    return set(METRIC.findall(query))


def with_something_to_show(run_file: str) -> str:
    """The run with a validation set and checkpoints, each soon."""
    content = yaml.safe_load(run_file)
    content["data"]["validation"] = {"held-out": {"sources": ["text.txt"]}}
    content["evaluation"] = {"every": "20 steps"}
    content["checkpoint"] = {"every": "20 steps"}
    return yaml.safe_dump(content, sort_keys=False)
