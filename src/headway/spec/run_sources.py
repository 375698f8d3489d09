"""The sets that a run file names, with where each is in the file."""

from __future__ import annotations

from collections.abc import Iterator

from headway.spec.data_config import DataSetConfig, SourceConfig
from headway.spec.run_file import RunFile

Key = tuple[str | int, ...]


def run_sources(run: RunFile) -> Iterator[tuple[Key, SourceConfig]]:
    """The training set, the validation sets, and the members of a mixture after it."""
    sets: dict[Key, DataSetConfig] = {}
    if run.data.train is not None:
        sets["data", "train"] = run.data.train
    sets |= {("data", "validation", name): one for name, one in run.data.validation.items()}
    for key, one in sets.items():
        yield key, one
        for name, member in (one.mixture or {}).items():
            yield (*key, "mixture", name), member
