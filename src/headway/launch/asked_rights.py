"""Rights, asked for one by one: lists of rights are incomplete where a cloud decides (EKS, GKE)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from headway.kube.client import KubeClient
from headway.kube.names import Object
from headway.kube.reviews import ACCESS, is_allowed

AT_A_TIME = 8


def refused(kube: KubeClient, reviews: Sequence[Object]) -> list[int]:
    """Indices of those that whoever asks does not have."""
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        answers = list(threads.map(lambda review: kube.call("POST", ACCESS, review), reviews))
    return [index for index, answer in enumerate(answers) if not is_allowed(answer)]
