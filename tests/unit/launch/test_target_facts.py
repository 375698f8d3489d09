"""What a pod of a check finds about its storage, and how the client learns of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from lightkube.resources.core_v1 import Pod

from headway.kube.check_objects import FACTS
from headway.launch.target_facts import (
    MOST_CHARACTERS,
    WRITTEN,
    TargetFacts,
    found_facts,
    target_facts,
)
from headway.state.store import Store

RUN = b"check-1"


def written(folder: Path, content: bytes = RUN) -> str:
    Store(folder).write(WRITTEN, content)
    return str(folder)


def test_what_another_has_written_is_seen_and_one_of_two_creates_a_file(tmp_path: Path) -> None:
    found = target_facts(written(tmp_path), RUN, [])
    assert (found.storage_error, found.is_created_twice) == (None, False)
    assert (found.region, found.region_error) == (None, None)


def test_a_claim_that_is_another_folder_on_each_machine(tmp_path: Path) -> None:
    missing = target_facts(str(tmp_path), RUN, [])
    assert "No such file or directory" in str(missing.storage_error)
    other = target_facts(written(tmp_path, b"older"), RUN, [])
    assert str(other.storage_error).endswith("has other content here")
    assert not other.is_created_twice


def test_a_pod_that_cannot_ask_the_api_server(tmp_path: Path) -> None:
    """As here, where there is no token."""
    found = target_facts(written(tmp_path), RUN, [{}])
    assert found.rights_error
    assert found.missing_rights == ()
    assert found.storage_error is None, "the rest is found all the same"


def pod(exit_code: int, message: str, name: str = FACTS) -> Pod:
    ended = {"terminated": {"exitCode": exit_code, "message": message}}
    status = {"name": name, "image": "it", "imageID": "", "ready": False, "restartCount": 0}
    content: dict[str, Any] = {
        "metadata": {"name": "it"},
        "status": {"initContainerStatuses": [{**status, "state": ended}]},
    }
    return cast(Pod, Pod.from_dict(content))


def test_the_client_reads_them_from_the_status_of_the_pod() -> None:
    facts = TargetFacts([3], None, "x" * MOST_CHARACTERS, False, "eu-central-1", None)
    said = json.dumps(asdict(facts))
    assert len(said) < 4096, "what Kubernetes keeps"
    assert found_facts([pod(0, said)]) == facts
    assert found_facts([pod(1, "a traceback"), pod(0, "{}", "proxy")]) is None
    assert found_facts([]) is None
