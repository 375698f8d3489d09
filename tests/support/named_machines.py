"""Affinity that names a machine. Karpenter makes no machine for a pod that has any of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

NAMES = ("kubernetes.io/hostname", "metadata.name")
WHERE = ("nodeAffinity", "nodeSelector", "nodeName")


def named_machines(content: Any) -> list[str]:
    """Where objects, or patches, select nodes by name."""
    return list(_found(content, ""))


def _found(content: Any, path: str) -> Iterator[str]:
    if isinstance(content, list):
        for number, one in enumerate(content):
            # The path of a JSON patch says where its value goes.
            place = one.get("path", "") if isinstance(one, dict) and "op" in one else ""
            yield from _found(one, f"{path}/{number}{place}")
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from _found(value, f"{path}/{key}")
    is_about_nodes = any(part in path for part in WHERE)
    is_name = content in NAMES or path.endswith(NAMES)
    if path.endswith(("/matchFields", "/nodeName")) or (is_about_nodes and is_name):
        yield path
