"""Which keys say what a run is, and which only how it is operated.

The first kind may not change under a run's name; the second may, at every start.
"""

from __future__ import annotations

import json
from typing import Any

import xxhash

from headway.spec.run_file import RunFile

OPERATION = frozenset(
    {
        "version",
        "name",
        "extends",
        "command",
        "shard",
        "elastic",
        "memory.checkpoint_activations",
        "memory.offload",
        "checkpoint",
        "evaluation",
        "track",
        "watch",
        "code",
        "resources",
        "budget",
        "secrets",
        "storage",
        "data.validation",
    }
)
"""All other keys are the run's identity: they decide the weights it ends with."""
OF_A_SET = ("anonymous", "allow_unreadable")
"""How a set is read, in the same way: of the training set, or of a member of its mixture."""


def is_operation(key: str) -> bool:
    parts = key.split(".")
    if parts[:2] == ["data", "train"] and parts[-1] in OF_A_SET:
        return True
    return any(".".join(parts[:length]) in OPERATION for length in range(1, len(parts) + 1))


def changed_identity(before: RunFile, after: RunFile) -> list[str]:
    """Dotted keys of the identity whose values differ, each as `key: old -> new`."""
    old, new = _flat(before.model_dump(by_alias=True)), _flat(after.model_dump(by_alias=True))
    return [
        f"{key}: {old.get(key)} -> {new.get(key)}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and not is_operation(key)
    ]


def changed_values(before: RunFile, after: RunFile) -> dict[str, Any]:
    """Dotted keys of the identity whose values differ, with the new ones as a run file has them."""
    old, new = (_flat(run.model_dump(mode="json", by_alias=True)) for run in (before, after))
    return {
        key: new.get(key)
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and not is_operation(key)
    }


def identity_digest(run: RunFile) -> str:
    """Of all that decides the weights but the length: a run may be extended. Only of what is not
    at its default: a key that a later version adds does not make other runs of those there are."""
    flat = _flat(run.model_dump(mode="json", by_alias=True, exclude_defaults=True))
    kept = {k: v for k, v in flat.items() if not is_operation(k) and k != "train_for"}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(text.encode())


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
