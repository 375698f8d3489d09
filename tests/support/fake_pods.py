"""Pods of the fake API server: patched, deleted, listed in pages and watched as on the real one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from threading import Condition
from typing import Any

Object = dict[str, Any]
PODS = "/api/v1/namespaces/ml/pods"


class WatchCut(Exception):
    """The connection of a watch is cut in the middle."""


class FakePods:
    """Changes of pods, in order, each with its version."""

    def __init__(self) -> None:
        self.version = 100
        self.oldest = 0
        """Watches from an earlier version are answered with 410 Gone."""
        self.is_held = False
        """Watches show no more changes."""
        self.num_lists = self.num_watches = 0
        self._changes: list[tuple[int, str, Object]] = []
        self._changed = Condition()
        self._watch_epoch = 0
        self._is_cut = False

    def note(self, what: str, pod: Object) -> None:
        with self._changed:
            self.version += 1
            pod["metadata"]["resourceVersion"] = str(self.version)
            self._changes.append((self.version, what, deepcopy(pod)))
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

    def watch(self, version: int, is_wanted: Callable[[Object], bool]) -> Iterator[bytes]:
        self.num_watches += 1
        epoch = self._watch_epoch
        if version < self.oldest:
            gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
            yield _line("ERROR", gone)
            return
        while new := self._after(version, epoch):
            for newest, what, pod in new:
                version = newest
                if is_wanted(pod):
                    yield _line(what, pod)

    def _after(self, version: int, epoch: int) -> list[tuple[int, str, Object]]:
        """Changes since then, once there are any; none: the watch ends."""

        def has_ended() -> bool:
            return self._watch_epoch != epoch

        with self._changed:
            self._changed.wait_for(lambda: has_ended() or self._newer(version))
            if has_ended() and self._is_cut:
                raise WatchCut
            return [] if has_ended() else self._newer(version)

    def _newer(self, version: int) -> list[tuple[int, str, Object]]:
        if self.is_held:
            return []
        return [change for change in self._changes if change[0] > version]


def _line(what: str, content: Object) -> bytes:
    return json.dumps({"type": what, "object": content}).encode() + b"\n"


def patch_pod(pod: Object, patch: Any) -> None:
    """JSON patch or strategic merge, as far as the keeper uses them."""
    if isinstance(patch, list):
        for operation in patch:
            _apply(pod, operation)
        return
    metadata: Mapping[str, Any] = patch["metadata"]
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
