"""A run that may have one of several kinds of accelerator has one for all its nodes. Which one is
in an annotation of its Job; the coordinator changes it, with the labels that pods require of
machines, while the Job has no pods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from headway.kube.names import ACCELERATORS, Object


@dataclass(frozen=True)
class KindTerms:
    name: str
    """As in a run file: `H100:8`."""
    terms: Sequence[Object]
    """Terms of node affinity: a machine with this kind fulfils one of them."""


def kinds_text(kinds: Sequence[KindTerms]) -> str:
    """For an environment variable of the coordinator."""
    return json.dumps([[one.name, one.terms] for one in kinds], separators=(",", ":"))


def parse_kinds(text: str | None) -> list[KindTerms]:
    return [KindTerms(name, terms) for name, terms in json.loads(text or "[]")]


def with_kind(patch: Object, kind: KindTerms) -> Object:
    """The patch of a Job, with another kind. Kubernetes allows that only while the Job is suspended
    and not noted as started."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": kind.terms}}
    pod = {"spec": {"affinity": {"nodeAffinity": required}}}
    metadata = patch["metadata"]
    annotations = metadata["annotations"] | {ACCELERATORS: kind.name}
    return {
        "metadata": metadata | {"annotations": annotations},
        "spec": patch["spec"] | {"template": pod},
    }
