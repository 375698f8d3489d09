"""What is known of a pod from what Kubernetes says of it."""

from __future__ import annotations

from typing import cast

from lightkube.resources.core_v1 import Pod

from headway.kube.names import INDEX
from headway.launch.podwatch import facts_of


def ended(code: int, words: str) -> Pod:
    state = {"terminated": {"exitCode": code, "message": words}}
    status = {"image": "", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    known = {
        "metadata": {"name": "it-2-x7k2p", "annotations": {INDEX: "2"}},
        "spec": {"containers": []},
        "status": {"phase": "Failed", "containerStatuses": [{"name": "worker", **status}]},
    }
    return cast(Pod, Pod.from_dict(known))


def test_the_words_of_the_pod_that_ended_the_run_are_kept() -> None:
    words = "KeyError: mine\nworker it-2-x7k2p.1/3 ended with exit code 1"
    facts = facts_of(ended(1, words))
    assert (facts.index, facts.is_to_blame, facts.left) == (2, True, words)
    replaced = facts_of(ended(137, words))
    assert (replaced.is_to_blame, replaced.left) == (False, None)
