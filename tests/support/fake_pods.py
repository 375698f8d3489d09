"""Pods of the fake API server: patched, deleted, listed in pages and watched as on the real one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from threading import Condition
from typing import Any, NamedTuple

Object = dict[str, Any]
PODS = "/api/v1/namespaces/ml/pods"


class WatchCut(Exception):
    """The connection of a watch is cut in the middle."""


class Change(NamedTuple):
    version: int
    what: str
    pod: Object
    labels_before: dict[str, str]


class FakePods:
    """Changes of pods, in order, each with its version."""

    def __init__(self) -> None:
        self.version = 100
        self.oldest = 0
        """Watches from an earlier version are answered with 410 Gone."""
        self.is_held = False
        """Watches show no more changes."""
        self.num_lists = self.num_watches = 0
        self._changes: list[Change] = []
        self._labels: dict[str, dict[str, str]] = {}
        """Of each pod, at its newest change."""
        self._changed = Condition()
        self._watch_epoch = 0
        self._is_cut = False

    def note(self, what: str, pod: Object) -> None:
        with self._changed:
            self.version += 1
            metadata = pod["metadata"]
            metadata["resourceVersion"] = str(self.version)
            before = self._labels.get(metadata["name"], {})
            self._labels[metadata["name"]] = dict(metadata.get("labels", {}))
            self._changes.append(Change(self.version, what, deepcopy(pod), before))
            self._changed.notify_all()

    def forget_changes(self) -> None:
        """Etcd was compacted: only a list tells what is."""
        with self._changed:
            self.oldest = self.version
            self._changes.clear()

    def end_watches(self, is_cut: bool = False) -> None:
        """As the server does now and then; `is_cut`: the connection breaks."""
        with self._changed:
            self._is_cut = is_cut
            self._watch_epoch += 1
            self._changed.notify_all()

    def watch(self, version: int, wanted: Mapping[str, str]) -> Iterator[bytes]:
        """Of pods with these labels. One that loses them is gone for this watch."""
        self.num_watches += 1
        epoch = self._watch_epoch
        if version < self.oldest:
            gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
            yield _line("ERROR", gone)
            return
        while new := self._after(version, epoch):
            for change in new:
                version = change.version
                if wanted.items() <= change.pod["metadata"].get("labels", {}).items():
                    yield _line(change.what, change.pod)
                elif wanted.items() <= change.labels_before.items():
                    yield _line("DELETED", change.pod)

    def _after(self, version: int, epoch: int) -> list[Change]:
        """Changes since then, once there are any; none: the watch ends."""

        def has_ended() -> bool:
            return self._watch_epoch != epoch

        with self._changed:
            self._changed.wait_for(lambda: has_ended() or self._newer(version))
            if has_ended() and self._is_cut:
                raise WatchCut
            return [] if has_ended() else self._newer(version)

    def _newer(self, version: int) -> list[Change]:
        if self.is_held:
            return []
        return [change for change in self._changes if change.version > version]


def _line(what: str, content: Object) -> bytes:
    return json.dumps({"type": what, "object": content}).encode() + b"\n"


def patch_pod(pod: Object, patch: Any) -> None:
    """JSON patch or strategic merge, as far as the keeper uses them."""
    if isinstance(patch, list):
        for operation in patch:
            _apply(pod, operation)
        return
    metadata: Mapping[str, Any] = patch["metadata"]
    for key in ("labels", "annotations"):
        merged = pod["metadata"].get(key, {}) | metadata.get(key, {})
        pod["metadata"][key] = {name: value for name, value in merged.items() if value is not None}
    for change in metadata.get("ownerReferences", ()):
        (owner,) = (
            one for one in pod["metadata"]["ownerReferences"] if one["uid"] == change["uid"]
        )
        owner.update(change)
    finalizers: list[str] = pod["metadata"].setdefault("finalizers", [])
    for name in metadata.get("$deleteFromPrimitiveList/finalizers", ()):
        if name in finalizers:
            finalizers.remove(name)
    finalizers += [name for name in metadata.get("finalizers", ()) if name not in finalizers]


def _apply(pod: Object, operation: Object) -> None:
    *parents, last = operation["path"].strip("/").split("/")
    found: Any = pod
    for name in parents:
        found = found[int(name)] if isinstance(found, list) else found[name]
    key = int(last) if isinstance(found, list) and last != "-" else last
    match operation["op"]:
        case "test":
            assert found[key] == operation["value"]
        case "remove":
            del found[key]
        case "add" if key == "-":
            found.append(operation["value"])
        case "add":
            found[key] = operation["value"]
