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
from cluster_tool.gpu_runtime import RUNTIME
from headway.errors import Exit
from headway.kube.check_lines import (
    CLOCKS,
    CONDITIONAL,
    COORDINATOR,
    COORDINATOR_RIGHTS,
    DEVICES,
    IMAGE,
    LOGIN,
    MACHINES,
    NAMES,
    NAMES_IN_ORDER,
    POLICY,
    QUOTA,
    REGION,
    STORAGE,
    WORKERS,
    YOUR_RIGHTS,
)
from headway.kube.device_labels import PRODUCT
from headway.kube.node_fit import REGION as REGION_LABEL
from headway.kube.probe import CLOCK_OFFSET
from support.careless_s3 import careless
from support.guide_rights import RBAC, editors_kubeconfig, users_kubeconfig
from support.lab import Lab
from support.s3 import credentials, s3_server
from support.stolen_time import Stopwatch
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(400),
    pytest.mark.long("each starts pods for some seconds; unit tests have the lines"),
]
DEVICE = "nvidia.com/gpu"
OTHER_REGION = "eu-central-1"
WITHIN_SECONDS = 60.0
GONE_SECONDS = 60.0


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
    wait_for("an empty claim", lambda: not [*lab.shared.glob(".headway-check/*")], GONE_SECONDS)


def test_all_passed_within_a_minute_and_nothing_left(lab: Lab) -> None:
    watch = Stopwatch()
    lines = checked(lab)
    seconds = watch.seconds
    assert {line["outcome"] for line in lines.values()} <= {"passed", "warned"}, lines
    assert lines["worker to worker"]["evidence"].startswith("3 ports each way; Gbit/s")
    assert seconds < WITHIN_SECONDS
    require_nothing_left(lab)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_check_that_is_ended(lab: Lab, number: signal.Signals) -> None:
    started = lab.typed("target", "check", "lab", "--wait", "1s")
    wait_for("a pod", lambda: lab.pods(), 60)
    started.process.send_signal(number)
    if number == signal.SIGKILL:
        job = lab.cluster.api.items(f"/apis/batch/v1/namespaces/{lab.namespace}/jobs")[0]
        assert job["spec"]["activeDeadlineSeconds"] <= 200
        # Its deadline, sooner than in minutes.
        path = f"/apis/batch/v1/namespaces/{lab.namespace}/jobs/{job['metadata']['name']}"
        lab.cluster.api.patch(path, {"spec": {"activeDeadlineSeconds": 1}})
    wait_for("nothing to be left", lambda: not lab.objects(), 180)


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
    first, *_, last = lab.cluster.nodes
    faults.cordon(last, lab.cluster.api)
    faults.cut_ports(first, faults.EPHEMERAL_PORTS)
    lines = checked(lab, expect=Exit.CHECK_FAILED)
    fix = found(lines, WORKERS, "failed", "no answer within 3 s")
    assert lines[WORKERS]["evidence"].count("does not reach") == 1
    assert "in both directions" in fix
    assert lines[COORDINATOR]["outcome"] == "passed"
    faults.mend_ports(first)
    require_passed(lab)


def test_the_coordinators_port(lab: Lab) -> None:
    for node in lab.cluster.nodes:
        faults.cut_ports(node, faults.SESSION_PORTS)
    lines = checked(lab, expect=Exit.CHECK_FAILED)
    fix = found(lines, COORDINATOR, "failed", "coordinator on port 7460: no answer within 3 s")
    assert "TCP ports 7460" in fix
    assert lines[WORKERS]["outcome"] in ("passed", "warned")
    for node in lab.cluster.nodes:
        faults.mend_ports(node)
    require_passed(lab)


def test_a_claim_that_is_roots(lab: Lab) -> None:
    os.chown(lab.shared, 0, 0)
    lab.shared.chmod(0o755)
    lines = checked(lab, expect=Exit.CHECK_FAILED)
    fix = found(lines, STORAGE, "failed", "worker 0 cannot make a folder: Permission denied")
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
    fix = found(lines, STORAGE, "failed", "Read-only file system")
    assert "read-only" in fix
    require_passed(lab)


def test_names_that_do_not_resolve_and_names_that_are_slow(lab: Lab) -> None:
    faults.stop_dns(lab.cluster.dns)
    lines = checked(lab, expect=Exit.CHECK_FAILED)
    found(lines, NAMES, "failed", "cannot resolve the coordinator's name", network.HOST)
    assert lines[COORDINATOR]["outcome"] == "passed"  # by its address
    faults.start_dns(lab.cluster.dns)
    require_passed(lab)
    faults.slow_dns(lab.cluster.dns, 2.0)
    lines = checked(lab)
    found(lines, NAMES, "warned", " ms, by ")
    faults.quick_dns(lab.cluster.dns)
    assert require_passed(lab)[NAMES]["outcome"] == "passed"


def test_an_image_that_is_not_there(lab: Lab) -> None:
    image = str(lab.cluster.image)
    lab.change_target(image=f"{image.partition('@')[0]}@sha256:{'0' * 64}")
    lines = checked(lab, expect=Exit.CHECK_FAILED)
    fix = found(lines, IMAGE, "failed", "the image cannot be pulled")
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
    """Whose machines are labelled as those with GPUs are; none has one. Their runtime for GPUs is
    known to the cluster."""
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    for node in lab.cluster.nodes:
        faults.label(node, lab.cluster.api, {PRODUCT: "NVIDIA-H100-80GB-HBM3"})
    lab.cluster.api.create(classes, {"metadata": {"name": RUNTIME}, "handler": RUNTIME})
    yield lab
    lab.cluster.api.delete(f"{classes}/{RUNTIME}")
    for node in lab.cluster.nodes:
        faults.label(node, lab.cluster.api, {PRODUCT: None})
        faults.offer(node, lab.cluster.api, {DEVICE: None})


def test_devices_that_nothing_offers_or_that_are_not_there(labelled: Lab) -> None:
    labelled.change_target(resources={"accelerators": "H100:8"})
    lines = checked(labelled, "--wait", "10s", expect=Exit.CHECK_FAILED)
    fix = found(lines, MACHINES, "failed", f"none offers {DEVICE}")
    assert "device plugin" in fix
    require_nothing_left(labelled)
    for node in labelled.cluster.nodes:
        faults.offer(node, labelled.cluster.api, {DEVICE: "8"})
    lines = checked(labelled, expect=Exit.CHECK_FAILED)
    fix = found(lines, DEVICES, "failed", f"asked for 8 {DEVICE} and sees 0 in /dev")
    assert lines[MACHINES]["outcome"] == "passed"
    key = yaml.safe_load("pod: " + fix.partition("pod: ")[2].partition(" in the target")[0])
    assert key == {"pod": {"runtime_class": RUNTIME}}
    labelled.change_target(**key)
    lines = require_passed(labelled)
    assert lines[DEVICES]["evidence"] == f"each worker sees the 8 {DEVICE} that it asked for"


def test_a_bucket_and_its_region(lab: Lab, bucket: Path, tmp_path: Path) -> None:
    for node in lab.cluster.nodes:
        faults.label(node, lab.cluster.api, {REGION_LABEL: OTHER_REGION})
    words = f"the bucket is in us-east-1, the machines are in {OTHER_REGION}"
    try:
        fix = found(checked(lab), REGION, "warned", words)
        assert fix.startswith(f"a bucket in {OTHER_REGION}, or machines in us-east-1")
        assert [*bucket.rglob("*")] == []
        with s3_server(tmp_path / "there", network.HOST, region=OTHER_REGION) as port:
            lab.make_secret("there", credentials(port, network.HOST, region=OTHER_REGION))
            lab.change_target(storage={"url": "s3://bucket/team", "secret": "there"})
            lines = checked(lab)
    finally:
        for node in lab.cluster.nodes:
            faults.label(node, lab.cluster.api, {REGION_LABEL: None})
    assert {line["outcome"] for line in lines.values()} <= {"passed", "warned"}, lines
    assert lines[REGION]["outcome"] == "passed"
    # With the workers' own keys, in their own image.
    assert "by coordinator and worker 0 and worker 1" in lines[STORAGE]["evidence"]


def test_a_bucket_without_conditional_writes(lab: Lab, tmp_path: Path) -> None:
    with s3_server(tmp_path / "s3", network.HOST) as port, careless(network.HOST, port) as worse:
        lab.make_secret("careless", credentials(worse, network.HOST))
        lab.make_secret("careful", credentials(port, network.HOST))
        lab.change_target(storage={"url": "s3://bucket/team", "secret": "careless"})
        lines = checked(lab, expect=Exit.CHECK_FAILED)
        fix = found(lines, CONDITIONAL, "failed", "was created twice")
        assert "If-None-Match" in fix
        assert lines[STORAGE]["outcome"] == "passed"
        lab.change_target(storage={"url": "s3://bucket/team", "secret": "careful"})
        assert require_passed(lab)[CONDITIONAL]["outcome"] == "passed"


def test_a_bucket_with_wrong_keys(lab: Lab, bucket: Path) -> None:
    path = f"/api/v1/namespaces/{lab.namespace}/secrets/bucket"
    right = lab.cluster.api.get(path)["data"]
    wrong = {"AWS_SECRET_ACCESS_KEY": right["AWS_ACCESS_KEY_ID"]}
    lab.cluster.api.patch(path, {"data": wrong})
    lines = checked(lab, expect=Exit.CHECK_FAILED)
    assert "Secret bucket" in found(lines, STORAGE, "failed", "coordinator cannot write")
    lab.cluster.api.patch(path, {"data": right})
    require_passed(lab)


def test_clocks(lab: Lab) -> None:
    environment = lab.target()["pod"]["env"]
    lab.change_target(pod={"env": {**environment, CLOCK_OFFSET: "90"}})
    lines = checked(lab, expect=Exit.CHECK_FAILED)
    assert "chrony" in found(lines, CLOCKS, "failed", " s behind the others")
    lab.change_target(pod={"env": environment})
    require_passed(lab)
