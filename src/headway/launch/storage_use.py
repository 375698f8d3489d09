"""What is uploaded to a target's storage, and which runs name it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import get_args

from headway.errors import NotFound
from headway.kube.client import KubeClient
from headway.kube.pod_status import spec_config_map_name
from headway.kube.storage_layout import PREPARED_THERE, Kind
from headway.launch.data_run import prepared_folders
from headway.launch.job_status import jobs_of_runs
from headway.launch.upload import whole_mark
from headway.state.set_files import MANIFEST, MIXTURE
from headway.state.store import Store

NAMED = re.compile(r"\b(sets|code|models|packages)/([^/\s\"]+)")
"""A folder, as a resolved run names it."""


@dataclass(frozen=True)
class StoredFolder:
    kind: str
    digest: str
    num_files: int
    num_bytes: int
    is_whole: bool
    """False: its upload was interrupted, or is under way."""
    runs: tuple[str, ...]
    """Runs that name it, or a mixture that it is part of."""

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.digest}"


def stored_folders(storage: Store, launched: Mapping[str, str]) -> list[StoredFolder]:
    """`launched`: the resolved runs that the cluster knows, by name; those in the storage are
    found there. A run that is launched anew may name others than its stored spec: both count."""
    users = _users([*_stored_specs(storage).items(), *launched.items()])
    found = [_folders(storage, kind, users) for kind in get_args(Kind)]
    return [folder for kind in found for folder in kind]


def _whole_mark(kind: str, digest: str) -> str:
    if digest.startswith(PREPARED_THERE):
        return f"{kind}/{digest}/{MANIFEST}"
    return whole_mark(f"{kind}/{digest}")


def _stored_specs(storage: Store) -> dict[str, str]:
    """Resolved runs in the storage, by name."""
    runs, found = Store(storage.location("runs")), {}
    with suppress(FileNotFoundError):  # no run was ever started
        for name in runs.names_one_below("spec.json"):
            with suppress(FileNotFoundError):  # it is being deleted
                found[name.split("/")[0]] = runs.read(name).decode(errors="replace")
    return found


def launched_specs(kube: KubeClient, target: str) -> dict[str, str]:
    """Resolved runs by name: one that waits in a queue has nothing in the storage yet. Raises if
    one cannot be read: what it names would be listed as unused."""
    # What is being prepared now is used by whoever waits for it.
    found = {
        name: f"sets/{folder}" for name, folder in prepared_folders(kube) if folder is not None
    }
    for run, job in jobs_of_runs(kube):
        name = spec_config_map_name(job)
        config_map = kube.config_map(name) if name is not None else None
        if config_map is None or not config_map.data:
            raise NotFound(
                f"what run {run} uses is not known: ConfigMap {name or 'of its Job'} is not in "
                f"namespace {kube.namespace}",
                "if it is being launched or deleted, list again in a few seconds; else what is "
                f"wrong with it: headway status {run} --on {target}",
            )
        found[run] = config_map.data["spec.json"]
    return found


def _users(specs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Runs by KIND/DIGEST."""
    users: dict[str, set[str]] = defaultdict(set)
    for run, text in specs:
        for kind, digest in NAMED.findall(text):
            users[f"{kind}/{digest}"].add(run)
    return users


def _folders(storage: Store, kind: str, users: Mapping[str, set[str]]) -> Iterable[StoredFolder]:
    sizes: dict[str, list[int]] = defaultdict(list)
    facts = storage.facts(kind)
    for name, file in facts.items():
        _, digest, *rest = name.split("/")
        if rest:
            sizes[digest].append(file.size)
    runs = {digest: set(users.get(f"{kind}/{digest}", ())) for digest in sizes}
    for digest in sizes:
        if (name := f"{kind}/{digest}/{MIXTURE}") in facts:
            text = storage.read(name).decode(errors="replace")
            for member in sizes:
                if member in text:
                    runs[member] |= runs[digest]
    for digest, of_files in sorted(sizes.items()):
        yield StoredFolder(
            kind,
            digest,
            len(of_files),
            sum(of_files),
            is_whole=_whole_mark(kind, digest) in facts,
            runs=tuple(sorted(runs[digest])),
        )
