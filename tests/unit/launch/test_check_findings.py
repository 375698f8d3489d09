"""Lines of a check of a target: each fault, as the API server and a pod have said it, with its
fix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.kube.check_lines import (
    ASKED,
    CONDITIONAL,
    COORDINATOR_RIGHTS,
    FABRIC,
    LOGIN,
    NAMED,
    NAMES_IN_ORDER,
    QUOTA,
    REGION,
    RUN,
    STORAGE,
    CheckLine,
    lines_json,
    verdict,
)
from headway.kube.reviews import Finding, Right
from headway.launch.check_findings import REGION_LABEL, asked_lines, fabric_line, fact_lines
from headway.launch.target_facts import TargetFacts
from headway.spec.target_file import Target

CONTENT: dict[str, Any] = {
    "kube": {"namespace": "ml"},
    "image": f"registry.example/headway@sha256:{'0' * 64}",
    "storage": {"claim": "shared"},
    "pod": {"resources": {"cpu": "2", "memory": "4Gi"}},
}
BUCKET = {"url": "s3://bucket/team", "secret": "keys"}
RIGHTS = [(Right("list", "pods"), None), (Right("patch", "jobs", "batch"), "headway-check-1")]
FACTS = TargetFacts(
    missing_rights=(),
    rights_error=None,
    storage_error=None,
    is_created_twice=False,
    region=None,
    region_error=None,
)
WHO = "Kubernetes 1.34.2, as me"


def target(**changed: Any) -> Target:
    return Target.model_validate({**CONTENT, **changed})


def node(**labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "it", "labels": labels}}


def facts(
    found: TargetFacts | None = FACTS, machines: Any = None, **changed: Any
) -> dict[str, CheckLine]:
    lines = fact_lines(found, RIGHTS, machines, target(**changed), "lab")
    return {line.name: line for line in lines}


def asked(found: dict[str, list[Finding]], failures: tuple[str, ...] = ()) -> dict[str, CheckLine]:
    return {line.name: line for line in asked_lines(found, failures, target(queue="gpus"), WHO)}


def test_a_target_where_all_is_well() -> None:
    lines = [*asked({}).values(), *facts().values(), fabric_line(job())]
    assert tuple(line.name for line in lines) == tuple(
        name for name in NAMES_IN_ORDER if name != RUN
    )
    assert verdict(lines) == "10 passed"
    assert lines[0].evidence == WHO
    assert lines_json("lab", 12.34, lines)["passed"] is True
    assert all(one.fix is None for one in lines)


def test_the_worst_finding_is_its_line() -> None:
    found = [
        Finding("a quota is nearly used up", "wait", is_fatal=False),
        Finding("a quota is too small", "raise it"),
    ]
    lines = asked({QUOTA: found, NAMED: found[:1]})
    assert (lines[QUOTA].outcome, lines[QUOTA].evidence) == ("failed", "a quota is too small")
    assert lines[QUOTA].fix == "raise it"
    assert lines[NAMED].outcome == "warned"
    assert {lines[name].outcome for name in ASKED if name not in (QUOTA, NAMED)} == {"passed"}


def test_what_the_api_server_does_not_answer_is_a_failed_line() -> None:
    found = asked({}, ("the API server answers 500: etcd is busy",))[LOGIN]
    assert found.outcome == "failed"
    assert "etcd is busy" in found.evidence
    assert "/readyz" in str(found.fix)


def test_a_coordinator_without_a_right() -> None:
    missing = replace(FACTS, missing_rights=(1,))
    found = facts(missing, service_account={"coordinator": "keeps"})[COORDINATOR_RIGHTS]
    assert (found.outcome, found.evidence) == ("failed", "it is not allowed to patch jobs.batch")
    assert found.fix == "an administrator, once: headway target rbac lab | kubectl apply -f -"
    own = facts(missing)[COORDINATOR_RIGHTS]
    assert "a Role that was just made" in str(own.fix)


def test_a_coordinator_that_cannot_ask_the_api_server() -> None:
    found = facts(replace(FACTS, rights_error="no answer"))[COORDINATOR_RIGHTS]
    assert found.outcome == "failed"
    assert "egress" in str(found.fix)


@pytest.mark.parametrize(
    ("storage", "fix"),
    [
        ({"claim": "shared"}, "accessModes: [ReadWriteMany]"),
        (BUCKET, "does Secret keys have the variables for s3://bucket/team"),
        ({"url": "s3://bucket/team"}, "service_account of the target"),
    ],
)
def test_what_was_written_is_not_seen_by_the_coordinators_pod(
    storage: dict[str, str], fix: str
) -> None:
    lines = facts(replace(FACTS, storage_error="no such file"), storage=storage)
    assert lines[STORAGE].outcome == "failed"
    assert "no such file" in lines[STORAGE].evidence
    assert fix in str(lines[STORAGE].fix)
    assert lines[CONDITIONAL].outcome == "not checked"


@pytest.mark.parametrize(
    ("storage", "fix"), [({"claim": "shared"}, "NFS 4"), (BUCKET, "If-None-Match")]
)
def test_storage_that_creates_a_file_twice(storage: dict[str, str], fix: str) -> None:
    lines = facts(replace(FACTS, is_created_twice=True), storage=storage)
    assert lines[CONDITIONAL].outcome == "failed"
    assert fix in str(lines[CONDITIONAL].fix)
    assert lines[STORAGE].outcome == "passed"


@pytest.mark.trap(17)
def test_a_bucket_in_another_region() -> None:
    machines = [node(**{REGION_LABEL: "eu-central-1"})]
    found = facts(replace(FACTS, region="us-east-1"), machines, storage=BUCKET)[REGION]
    assert found.outcome == "warned"
    assert found.evidence == (
        "the bucket is in us-east-1, the machines are in eu-central-1: each TB that crosses costs "
        "about $20, and is slower"
    )
    assert "aws s3 mb s3://NAME --region eu-central-1" in str(found.fix)
    same = facts(replace(FACTS, region="eu-central-1"), machines, storage=BUCKET)[REGION]
    assert same.outcome == "passed"


@pytest.mark.parametrize(
    ("region", "machines", "url", "words"),
    [
        ("us-east-1", None, "s3://bucket/team", "you may not see nodes"),
        ("us-east-1", [node()], "s3://bucket/team", "machines have no such label"),
        (None, [node()], "s3://bucket/team", "the store does not say where it is"),
        (None, [node()], "gs://bucket/team", "Headway does not ask Google"),
    ],
)
def test_a_region_that_cannot_be_compared(
    region: str | None, machines: Any, url: str, words: str
) -> None:
    found = facts(replace(FACTS, region=region), machines, storage={"url": url})[REGION]
    assert (found.outcome, words in found.evidence) == ("not checked", True)


def test_a_coordinator_that_did_not_start() -> None:
    assert {line.outcome for line in facts(None).values()} == {"not checked"}


def job(limits: dict[str, str] | None = None, **env: str) -> dict[str, Any]:
    worker = {
        "name": "worker",
        "resources": {"limits": limits or {}},
        "env": [
            {"name": "HEADWAY_POD", "valueFrom": {}},
            *({"name": name, "value": value} for name, value in env.items()),
        ],
    }
    return {"spec": {"template": {"spec": {"containers": [{"name": "proxy"}, worker]}}}}


def test_efa_that_nccl_would_not_miss() -> None:
    """It would fall back to TCP, and say nothing."""
    efa = {"vpc.amazonaws.com/efa": "32"}
    quiet = fabric_line(job(efa))
    assert (quiet.name, quiet.outcome) == (FABRIC, "warned")
    assert "NCCL_NET: AWS Libfabric" in str(quiet.fix)
    assert fabric_line(job(efa, NCCL_NET="AWS Libfabric")).outcome == "passed"
    assert fabric_line(job({"nvidia.com/gpu": "8"})).outcome == "passed"
