"""No affinity names a machine: autoscalers make none for a pod that does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.named_machines import named_machines

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.yaml"))
TERMS = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution"
FIELDS = [{"key": "metadata.name", "operator": "NotIn", "values": ["node2"]}]
BY_HOST = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node2"]}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_in_no_object(path: Path) -> None:
    assert named_machines(list(yaml.safe_load_all(path.read_text()))) == []


@pytest.mark.parametrize(
    "content",
    [
        [{"op": "add", "path": f"{TERMS}/nodeSelectorTerms/0/matchFields", "value": FIELDS}],
        [
            {
                "op": "add",
                "path": f"{TERMS}/nodeSelectorTerms/0/matchExpressions/-",
                "value": BY_HOST,
            }
        ],
        {"spec": {"nodeSelector": {"kubernetes.io/hostname": "node2"}}},
        {"spec": {"nodeName": "node2"}},
        {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"preference": {"matchExpressions": [BY_HOST]}}
                ]
            }
        },
    ],
)
def test_what_names_one_is_found(content: Any) -> None:
    assert named_machines(content) != []


def test_spread_over_machines_names_none() -> None:
    apart = {"topologyKey": "kubernetes.io/hostname"}
    assert named_machines({"podAntiAffinity": [apart], "topologySpreadConstraints": [apart]}) == []
