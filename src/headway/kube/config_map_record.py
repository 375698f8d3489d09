"""The record of a run in a ConfigMap: generations are written there before they are announced.

The API server accepts a replacement only if the object has not changed since it was read; so a
writer that succeeds with the next entry has superseded all earlier writers.
"""

from __future__ import annotations

import base64
import zlib
from uuid import uuid4

from lightkube.resources.core_v1 import ConfigMap

from headway.errors import NotFound, RunFailed
from headway.kube.client import KubeClient
from headway.member.coordinator.record import NOTHING, Entry, decoded, encoded

KEY = "entry"


class KubeRecord:
    def __init__(self, kube: KubeClient, name: str, run: str) -> None:
        self.kube = kube
        self.name = name
        self.run = run
        self._writer = uuid4().hex

    def read(self) -> Entry:
        return self._entry(self._config_map())

    def swap(self, after: Entry, new: Entry) -> bool:
        assert new.version == after.version + 1
        config_map = self._config_map()
        content = _packed(encoded(new, self.run, self._writer))
        if (config_map.data or {}).get(KEY) == content:
            return True  # an earlier call wrote it, but its response was lost
        if self._entry(config_map) != after:
            return False
        config_map.data = {KEY: content}
        return self.kube.replace_config_map(config_map)

    def _config_map(self) -> ConfigMap:
        found = self.kube.config_map(self.name)
        if found is None:
            raise NotFound(f"there is no ConfigMap {self.name}: the run was deleted")
        return found

    def _entry(self, config_map: ConfigMap) -> Entry:
        content = (config_map.data or {}).get(KEY)
        if content is None:
            return NOTHING
        where = f"ConfigMap {self.name}"
        return decoded(_unpacked(content, where), self.run, where)


def _packed(data: bytes) -> str:
    """Compressed: an object is limited to a megabyte, and 5,000 names take half of one."""
    return base64.b64encode(zlib.compress(data)).decode()


def _unpacked(text: str, where: str) -> bytes:
    try:
        return zlib.decompress(base64.b64decode(text))
    except (ValueError, zlib.error) as error:
        raise RunFailed(f"{where} is damaged: {error}") from None
