"""The identity of a worker: NODE.START/RANK.TOKEN, for example `node-1.2/0.9f86d081884c7d65`.

It is written and parsed here and nowhere else. A name in another form is accepted: NODE/RANK and
anything after it is a worker of that node, and a name without "/" is a node of its own.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct

TOKEN_BYTES = 8

_FORM = re.compile(r"(?P<node>[^/]+?)(?:\.(?P<start>[1-9]\d*))?/(?P<rank>\d*)\.?(?P<token>.*)")
_TOKEN = re.compile(rf"\.[0-9a-f]{{{2 * TOKEN_BYTES}}}\b")
_IN_TEXT = re.compile(rf"\b[-.\w]+\.[1-9]\d*/\d+(?:{_TOKEN.pattern})?")
_NODE = re.compile(r"node-(\d+)|headway-[-a-z0-9]+-(\d+)-[a-z0-9]{5}")


class WorkerIdentity(Struct, frozen=True):
    node: str
    """Name of the node; on Kubernetes, of the pod. It stays when the workers are restarted."""
    start: int
    """Number of times the node's workers have been started, from 1. 0: the name does not say."""
    local_rank: int
    """Rank among the workers of the node."""
    token: str = ""
    """Random digits that tell this process from all others with the same place."""

    def __str__(self) -> str:
        token = f".{self.token}" if self.token else ""
        return f"{self.node_start}/{self.local_rank}{token}"

    @property
    def node_start(self) -> str:
        """NODE.START. Workers that were started together have it in common."""
        return f"{self.node}.{self.start}" if self.start else self.node

    @property
    def node_index(self) -> int | None:
        """Number of the node, if its name is one that a launcher gives."""
        found = _NODE.fullmatch(self.node)
        return int(found[1] or found[2]) if found else None


# Each member's name, and as many of those before them.
@lru_cache(maxsize=16384)
def parse(name: str) -> WorkerIdentity:
    found = _FORM.fullmatch(name)
    if found is None:
        return WorkerIdentity(name, 0, 0)
    start, rank = int(found["start"] or 0), int(found["rank"] or 0)
    return WorkerIdentity(found["node"], start, rank, found["token"])


def with_token(name: str) -> str:
    """The name of a new process, whatever the form of the name it was given."""
    return f"{name}.{secrets.token_hex(TOKEN_BYTES)}"


def without_tokens(text: str) -> str:
    """A text in which names of workers occur, without the random part of each."""
    return _TOKEN.sub("", text)


def replace_names(text: str, replacement: Callable[[WorkerIdentity], str | None]) -> str:
    """A text with the names of workers replaced. None: the name stays."""

    def replaced(found: re.Match[str]) -> str:
        new = replacement(parse(found[0]))
        return found[0] if new is None else new

    return _IN_TEXT.sub(replaced, text)
