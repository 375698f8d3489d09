"""From a kubeconfig to a run in two commands, with nothing typed into a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from headway.clock import SystemClock
from headway.kube.client import KubeClient
from headway.launch.cluster_look import cluster_answers
from support.guide_rights import editors_kubeconfig
from support.lab import Lab
from support.target_flags import add_target

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
RECORDED = Path(__file__).parents[1] / "unit" / "kube" / "clusters" / "test-cluster.json"


@pytest.fixture(autouse=True)
def own_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file of targets."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "headway" / "targets.yaml"


@pytest.mark.long("a whole launch; the tutorials begin with the same command, in the gate")
def test_two_commands_and_nothing_typed_into_a_file(lab: Lab, own_targets: Path) -> None:
    add_target(lab)
    lab.headway("target", "check", "lab")
    lab.headway("run", "--on", "lab", "--nodes", "2")
    lab.wait_for_step(5)
    found = yaml.safe_load(own_targets.read_text())["lab"]
    assert found["storage"] == {"claim": "shared"}
    assert found["machine"] == "cpu"
    assert "service_account" not in found
    lab.headway("stop", "--on", "lab")
    lab.require_exact()

    # As the first target of the context has it.
    again = lab.headway("target", "add", "again", "--namespace", lab.namespace, "--dry-run")
    assert lab.cluster.image in again.stdout

    refused = lab.headway("run", "--on", "lab", "--set", "resources.accelerators=H100:8", expect=2)
    assert "a machine of the target (cpu) has no accelerator" in refused.stderr


@pytest.mark.long("a whole launch, as a user who may see little")
def test_a_user_with_the_role_edit_only(
    lab: Lab, own_targets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(editors_kubeconfig(lab)))
    accounts = lab.target()["service_account"]
    add_target(lab, "lab", "--set", f"service_account={json.dumps(accounts)}")
    assert "nodes may not be seen" in own_targets.read_text()
    lab.headway("run", "--on", "lab", "--nodes", "2")
    lab.wait_for_step(5)
    lab.headway("stop", "--on", "lab")
    lab.require_exact()


@pytest.mark.skipif(not os.environ.get("HEADWAY_WRITE_GOLDEN"), reason="only to record")
@pytest.mark.long("records what the test cluster answers, for tests without one")
def test_record_what_the_cluster_answers(lab: Lab) -> None:
    kube = KubeClient.from_kubeconfig(None, lab.namespace)
    found = {"origin": "recorded on the test cluster", **cluster_answers(kube, SystemClock())}
    text = json.dumps(found, indent=1).replace(lab.namespace, "ml")
    RECORDED.write_text(text + "\n")
