"""Client, coordinator and workers of a run have the same version of Headway.

A launch and a change by another version are refused, naming both. Reading only warns, and so do
`stop` and `delete`, which any version does the same way: nobody should pay for machines that the
client at hand cannot end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from lightkube.resources.batch_v1 import Job

from headway import __version__
from headway.errors import BadInput
from headway.kube.names import HEADWAY_VERSION, VERSION, labelled_version

SERVER = "headway/"
"""How pages begin to say which version made them, in the header Server."""


def require_launchers_version(environment: Mapping[str, str] = os.environ) -> None:
    """In a pod: its image has the version of the client that made the pod. A pod of an older
    client does not say."""
    client = environment.get(HEADWAY_VERSION, __version__)
    if client != __version__:
        raise BadInput(
            f"this image has Headway {__version__}, and the pod was made by Headway {client}",
            f"use an image with Headway {client} in the target, or install Headway {__version__} "
            "where you type headway",
        )


def require_makers_version(job: Job, run: str, on: str) -> None:
    """For a change of a run: the client has the version that launched it."""
    made_by = _made_by(job)
    if made_by is not None and made_by != __version__:
        raise BadInput(
            f"run {run} was launched by Headway {made_by}, and this is Headway {__version__}",
            f"pip install headway=={made_by}; or headway stop {run} --on {on}, and with an image "
            f"that has Headway {__version__}: headway run --on {on}, which resumes it",
        )


class VersionWatch:
    """Compares what pages say of their version. Warns once."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._has_warned = False

    def look(self, server: str) -> None:
        """`server` is the header of an answer; another's than Headway's says nothing."""
        version = server.removeprefix(SERVER)
        if self._has_warned or version in (server, __version__):
            return
        self._has_warned = True
        self._warn(
            f"the run has Headway {version}, and this is Headway {__version__}: what is shown may "
            "be wrong or incomplete"
        )


def _made_by(job: Job) -> str | None:
    """None for a run of a client that did not say."""
    label = ((job.metadata.labels if job.metadata is not None else None) or {}).get(VERSION)
    return labelled_version(label) if label is not None else None
