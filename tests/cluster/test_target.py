"""`headway target check` on the test cluster: all passed, nothing left; and each fault that is
planted is found, named with what fixes it, and gone after that."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_tool import faults, network
from headway.errors import Exit
from headway.kube.check_lines import (
    CONDITIONAL,
    COORDINATOR_RIGHTS,
    LOGIN,
    NAMES_IN_ORDER,
    POLICY,
    QUOTA,
    REGION,
    RUN,
    STORAGE,
    YOUR_RIGHTS,
)
from headway.kube.device_labels import PRODUCT
from headway.launch.check_findings import REGION_LABEL
from support.careless_s3 import careless
from support.guide_rights import RBAC, editors_kubeconfig, users_kubeconfig
from support.lab import Lab
from support.s3 import credentials, s3_server
from support.stolen_time import Stopwatch
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(500),
    pytest.mark.long("each trains for some seconds; unit tests have the lines"),
]
DEVICE = "nvidia.com/gpu"
OTHER_REGION = "eu-central-1"
WITHIN_SECONDS = 120.0
GONE_SECONDS = 60.0
STUCK = ("--wait", "75s")
"""For a run whose pods start and never meet."""


def checked(lab: Lab, *options: str, expect: int | None = 0) -> dict[str, dict[str, Any]]:
    """Lines by name."""
    done = lab.headway("target", "check", "lab", "--json", *options, expect=expect)
    found = json.loads(done.stdout)
    lines = {line["name"]: line for line in found["lines"]}
    assert tuple(lines) == NAMES_IN_ORDER
    return lines


def require_passed(lab: Lab) -> dict[str, dict[str, Any]]:
    lines = checked(lab)
    odd = [line for line in lines.values() if line["outcome"] not in ("passed", "warned")]
    # The machines of the test cluster have no label for a bucket's region to be compared with.
    assert not odd or [line["name"] for line in odd] == [REGION], odd
    return lines


def require_nothing_left(lab: Lab) -> None:
    wait_for("nothing to be left", lambda: not lab.objects(), GONE_SECONDS)
    assert _files(lab.shared) == []


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_all_passed_within_two_minutes_and_nothing_left(lab: Lab) -> None:
    watch = Stopwatch()
    lines = checked(lab)
    seconds = watch.seconds
    assert {line["outcome"] for line in lines.values()} <= {"passed", "warned"}, lines
    assert "took 20 steps on cpu" in lines[RUN]["evidence"]
    assert seconds < WITHIN_SECONDS
    require_nothing_left(lab)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_check_that_is_ended(lab: Lab, number: signal.Signals) -> None:
    """What a killed one has stored stays: headway delete --uploaded removes it."""
    started = lab.typed("target", "check", "lab")
    wait_for("a pod", lambda: lab.pods(), 60)
    started.process.send_signal(number)
    if number == signal.SIGKILL:
        jobs = f"/apis/batch/v1/namespaces/{lab.namespace}/jobs"
        (timer,) = [
            job for job in lab.cluster.api.items(jobs) if job["metadata"]["name"].endswith("-timer")
        ]
        assert timer["spec"]["activeDeadlineSeconds"] <= 400
        # Its deadline, sooner than in minutes.
        path = f"{jobs}/{timer['metadata']['name']}"
        lab.cluster.api.patch(path, {"spec": {"activeDeadlineSeconds": 1}})
    wait_for("nothing to be left", lambda: not lab.objects(), 180)
    if number == signal.SIGINT:
        wait_for("an empty claim", lambda: not _files(lab.shared), GONE_SECONDS)


# Faults, in the order of what users meet most


def found(lines: dict[str, dict[str, Any]], name: str, outcome: str, *words: str) -> str:
    """The fix of the line that has found it."""
    line = lines[name]
    assert line["outcome"] == outcome, lines
    for one in words:
        assert one in line["evidence"], line
    assert line["fix"], line
    return str(line["fix"])


def as_administrator(lab: Lab, command: str) -> None:
    """What a fix says, pasted."""
    environment = {**os.environ, "KUBECONFIG": str(lab.cluster.kubeconfig)}
    subprocess.run(command, shell=True, env=environment, check=True, timeout=60, cwd=lab.folder)


def test_a_login_that_has_expired(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    content = yaml.safe_load(lab.cluster.kubeconfig.read_text())
    content["users"][0]["user"] = {"token": "expired"}
    (lab.folder / "expired").write_text(yaml.safe_dump(content))
    monkeypatch.setenv("KUBECONFIG", str(lab.folder / "expired"))
    lines = checked(lab, expect=Exit.CHECK_FAILED)
    assert "log in again" in found(lines, LOGIN, "failed", "not logged in")
    assert lab.objects() == []
    (lab.folder / "expired").write_text(lab.cluster.kubeconfig.read_text())
    require_passed(lab)


def test_rights(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig = users_kubeconfig(lab.cluster, lab.namespace, lab.folder)
    path = f"/apis/{RBAC}/v1/namespaces/{lab.namespace}/roles/headway-user"
    rules = lab.cluster.api.get(path)["rules"]
    fewer = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "create"]}
        if rule["resources"] == ["jobs"]
        else rule
        for rule in rules
    ]
    lab.cluster.api.patch(path, {"rules": fewer})
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    lines = checked(lab, expect=Exit.CHECK_FAILED)
    fix = found(lines, YOUR_RIGHTS, "failed", "create jobs.batch")
    command = fix.partition(": ")[2].partition("; or without")[0]
    as_administrator(lab, command)
    wait_for("the right", lambda: _may_create_jobs(lab, kubeconfig), 20)
    require_passed(lab)


def _may_create_jobs(lab: Lab, kubeconfig: Path) -> bool:
    asked = ["kubectl", "auth", "can-i", "create", "jobs", "-n", lab.namespace]
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    return subprocess.run(asked, env=environment, check=False, timeout=30).returncode == 0


def test_the_coordinators_rights(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig = editors_kubeconfig(lab)
    path = f"/apis/{RBAC}/v1/namespaces/{lab.namespace}/roles/headway-coordinator"
    rules = lab.cluster.api.get(path)["rules"]
    pods = next(rule for rule in rules if rule["resources"] == ["pods"])
    pods["verbs"].remove("patch")
    lab.cluster.api.patch(path, {"rules": rules})
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    lines = checked(lab, expect=Exit.CHECK_FAILED)
    fix = found(lines, COORDINATOR_RIGHTS, "failed", "patch pods")
    # `headway` of this folder, as the user has it.
    command = fix.partition(": ")[2].replace("headway", f"{sys.executable} -m headway.cli.main", 1)
    as_administrator(lab, command)
    require_passed(lab)


def test_quota(lab: Lab) -> None:
    path = f"/api/v1/namespaces/{lab.namespace}/resourcequotas"
    lab.cluster.api.create(path, {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "2"}}})
    wait_for("its use", lambda: "used" in lab.cluster.api.get(f"{path}/small").get("status", {}))
    lines = checked(lab, "--wait", "15s", expect=Exit.CHECK_FAILED)
    fix = found(lines, QUOTA, "failed", "allows 2 pods", "need 3")
    require_nothing_left(lab)
    as_administrator(lab, "kubectl patch" + fix.partition("kubectl patch")[2])
    require_passed(lab)


def test_ports_between_workers_in_one_direction(lab: Lab) -> None:
    """That of the first machine: the other's address is higher, so it is the one that connects."""
    first, *_, last = lab.cluster.nodes
    faults.cordon(last, lab.cluster.api)
    faults.cut_ports(first, faults.EPHEMERAL_PORTS)
    lines = checked(lab, *STUCK, expect=Exit.CHECK_FAILED)
    assert "in both directions" in found(lines, RUN, "failed")
    words = lines[RUN]["evidence"]
    assert "did not form" in words or "only 1 of 2 workers train" in words
    assert lines[STORAGE]["outcome"] == "passed"
    faults.mend_ports(first)
    require_passed(lab)


def test_the_coordinators_port(lab: Lab) -> None:
    for node in lab.cluster.nodes:
        faults.cut_ports(node, faults.SESSION_PORTS)
    lines = checked(lab, *STUCK, expect=Exit.CHECK_FAILED)
    fix = found(lines, RUN, "failed", "says: coordinator at headway-check-", ":7460: ")
    assert "TCP ports 7460" in fix
    assert lines[COORDINATOR_RIGHTS]["outcome"] == "passed"
    for node in lab.cluster.nodes:
        faults.mend_ports(node)
    require_passed(lab)


def test_a_claim_that_is_roots(lab: Lab) -> None:
    os.chown(lab.shared, 0, 0)
    lab.shared.chmod(0o755)
    lines = checked(lab, expect=Exit.CHECK_FAILED)
    fix = found(lines, RUN, "failed", "Permission denied")
    user = re.search(r"chown (\d+):(\d+)", fix)
    assert user is not None
    os.chown(lab.shared, int(user[1]), int(user[2]))
    require_passed(lab)


def test_a_claim_that_is_read_only(lab: Lab) -> None:
    for node in lab.cluster.nodes:
        faults.make_read_only(node, lab.shared)
    try:
        lines = checked(lab, expect=Exit.CHECK_FAILED)
        require_nothing_left(lab)
    finally:
        for node in lab.cluster.nodes:
            faults.make_writable(node, lab.shared)
    fix = found(lines, RUN, "failed", "Read-only file system")
    assert "read-only" in fix
    require_passed(lab)


def test_names_that_do_not_resolve(lab: Lab) -> None:
    faults.stop_dns(lab.cluster.dns)
    lines = checked(lab, *STUCK, expect=Exit.CHECK_FAILED)
    fix = found(lines, RUN, "failed", "says: coordinator at headway-check-", "name resolution")
    assert "port 53" in fix
    faults.start_dns(lab.cluster.dns)
    require_passed(lab)


def test_an_image_that_is_not_there(lab: Lab) -> None:
    image = str(lab.cluster.image)
    lab.change_target(image=f"{image.partition('@')[0]}@sha256:{'0' * 64}")
    lines = checked(lab, expect=Exit.CHECK_FAILED)
    fix = found(lines, RUN, "failed", "the image cannot be pulled")
    assert "image_pull_secrets" in fix
    lab.change_target(image=image)
    require_passed(lab)


def test_policy(lab: Lab) -> None:
    volume, mount = (
        {"name": "host", "hostPath": {"path": "/tmp"}},
        {"name": "host", "mountPath": "/x"},
    )
    pod = lab.target()["pod"]
    changed = {"volumes": [*pod["volumes"], volume], "mounts": [*pod["mounts"], mount]}
    lab.change_target(pod=changed, security="baseline")
    lines = checked(lab, expect=Exit.CHECK_FAILED)
    fix = found(lines, POLICY, "failed", "violates PodSecurity", "hostPath")
    as_administrator(lab, "kubectl label" + fix.partition("kubectl label")[2])
    require_passed(lab)


@pytest.fixture
def labelled(lab: Lab) -> Iterator[Lab]:
    """Whose machines are labelled as those with GPUs are; none has one."""
    for node in lab.cluster.nodes:
        faults.label(node, lab.cluster.api, {PRODUCT: "NVIDIA-H100-80GB-HBM3"})
    yield lab
    for node in lab.cluster.nodes:
        faults.label(node, lab.cluster.api, {PRODUCT: None})
        faults.offer(node, lab.cluster.api, {DEVICE: None})


def test_devices_that_nothing_offers_or_that_are_not_there(labelled: Lab) -> None:
    labelled.change_target(resources={"accelerators": "H100:8"})
    lines = checked(labelled, "--wait", "40s", expect=Exit.CHECK_FAILED)
    fix = found(lines, RUN, "failed", f"not enough {DEVICE}")
    assert "device plugin" in fix
    require_nothing_left(labelled)
    for node in labelled.cluster.nodes:
        faults.offer(node, labelled.cluster.api, {DEVICE: "8"})
    lines = checked(labelled, expect=Exit.CHECK_FAILED)
    fix = found(lines, RUN, "failed", "H100:8 requested, but torch sees no GPU")
    assert "pod: {runtime_class: nvidia}" in fix
    require_nothing_left(labelled)


def use_bucket(
    lab: Lab, name: str, values: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pods get its keys from a Secret, the user's commands from here."""
    for variable, value in values.items():
        monkeypatch.setenv(variable, value)
    lab.make_secret(name, values)
    lab.change_target(storage={"url": "s3://bucket/team", "secret": name})


def test_a_bucket_and_its_region(
    lab: Lab, bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in lab.cluster.nodes:
        faults.label(node, lab.cluster.api, {REGION_LABEL: OTHER_REGION})
    words = f"the bucket is in us-east-1, the machines are in {OTHER_REGION}"
    try:
        fix = found(checked(lab), REGION, "warned", words)
        assert fix.startswith(f"a bucket in {OTHER_REGION}, or machines in us-east-1")
        assert _files(bucket) == []
        with s3_server(tmp_path / "there", network.HOST, region=OTHER_REGION) as port:
            values = credentials(port, network.HOST, region=OTHER_REGION)
            use_bucket(lab, "there", values, monkeypatch)
            lines = checked(lab)
    finally:
        for node in lab.cluster.nodes:
            faults.label(node, lab.cluster.api, {REGION_LABEL: None})
    assert {line["outcome"] for line in lines.values()} <= {"passed", "warned"}, lines
    assert lines[REGION]["outcome"] == "passed"


def test_a_bucket_without_conditional_writes(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(tmp_path / "s3", network.HOST) as port, careless(network.HOST, port) as worse:
        use_bucket(lab, "careless", credentials(worse, network.HOST), monkeypatch)
        lines = checked(lab, expect=Exit.CHECK_FAILED)
        fix = found(lines, CONDITIONAL, "failed", "was created twice")
        assert "If-None-Match" in fix
        assert lines[STORAGE]["outcome"] == "passed"
        use_bucket(lab, "careful", credentials(port, network.HOST), monkeypatch)
        assert require_passed(lab)[CONDITIONAL]["outcome"] == "passed"


def test_a_bucket_with_wrong_keys(lab: Lab, bucket: Path) -> None:
    path = f"/api/v1/namespaces/{lab.namespace}/secrets/bucket"
    right = lab.cluster.api.get(path)["data"]
    wrong = {"AWS_SECRET_ACCESS_KEY": right["AWS_ACCESS_KEY_ID"]}
    lab.cluster.api.patch(path, {"data": wrong})
    lines = checked(lab, *STUCK, expect=Exit.CHECK_FAILED)
    assert "Secret bucket" in found(lines, STORAGE, "failed", "coordinator's pod cannot use")
    assert lines[RUN]["outcome"] == "failed"
    lab.cluster.api.patch(path, {"data": right})
    require_passed(lab)
