"""What the shell completes: names of local runs, presets, and keys of the run file.

Only files of this folder and of the package are read: a Tab has to be quick, and must never ask a
cluster or a bucket.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any


def local_runs(incomplete: str) -> list[str]:
    """Runs of this folder, where its run file says that they are."""
    storage = _storage(Path("run.yaml"))
    if "://" in storage:
        return []
    names = sorted(found.parent.name for found in Path(storage).glob("*/run.json"))
    return [name for name in names if name.startswith(incomplete)]


def presets(incomplete: str) -> list[str]:
    folder = resources.files("headway.spec") / "presets"
    names = [*sorted(item.name.removesuffix(".yaml") for item in folder.iterdir()), "script"]
    return [name for name in names if name.startswith(incomplete)]


def runs_and_presets(incomplete: str) -> list[str]:
    return [*local_runs(incomplete), *(name for name in presets(incomplete) if name != "script")]


def run_file_keys(incomplete: str) -> list[str]:
    """For --set: `optimizer.lr=`."""
    schema = json.loads(
        (resources.files("headway.spec") / "schema" / "run.schema.json").read_text("utf-8")
    )
    keys = _keys(schema, schema["$defs"], "")
    return [f"{key}=" for key in keys if key.startswith(incomplete)]


def _storage(run_file: Path) -> str:
    import yaml

    try:
        written = yaml.safe_load(run_file.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return "runs"
    storage = written.get("storage") if isinstance(written, dict) else None
    return storage if isinstance(storage, str) else "runs"


def _keys(schema: dict[str, Any], sections: dict[str, Any], prefix: str) -> Iterator[str]:
    for key, value in schema["properties"].items():
        name = f"{prefix}{key}"
        section = _section(value, sections)
        if section is None:
            yield name
        else:
            yield from _keys(section, sections, f"{name}.")


def _section(value: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any] | None:
    """The section that a key holds, also where it may be written as one word."""
    for one in (value, *value.get("anyOf", ())):
        if "$ref" in one:
            return dict(sections[one["$ref"].rpartition("/")[2]])
    return None
