"""Another version of Headway is refused by name; reading warns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import __version__
from headway.cli.target_launch import wait_until_training
from headway.cli.target_run import TargetRun
from headway.errors import BadInput, Exit
from headway.http_server import JSON, TEXT
from headway.kube.client import KubeClient
from headway.kube.names import HEADWAY_VERSION, VERSION, labels, version_label
from headway.kube.versions import VersionWatch, require_launchers_version
from headway.kube.wheels import own_digest
from headway.spec.load import load_target
from support.fake_kube import READY, FakeKube, fake_kube
from support.in_process import Headway

POD = "headway-wiki-coordinator-x"


@pytest.fixture
def kube(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
    with fake_kube(folder) as kube:
        yield kube


def test_a_pod_of_another_client_names_both() -> None:
    with pytest.raises(BadInput) as caught:
        require_launchers_version({HEADWAY_VERSION: "9.9.9"})
    assert str(caught.value) == (
        f"this image has Headway {__version__}, and the pod was made by Headway 9.9.9\n"
        "hint: use an image with Headway 9.9.9 in the target, or install Headway "
        f"{__version__} where you type headway"
    )


def test_a_pod_of_the_same_client_or_one_that_does_not_say_starts() -> None:
    require_launchers_version({HEADWAY_VERSION: __version__})
    require_launchers_version({})


@pytest.mark.trap(25)
@pytest.mark.parametrize("command", ["keep", "serve", "node"])
def test_every_pod_compares(
    command: str, headway: Headway, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"HEADWAY_POD": "p", "JOB_COMPLETION_INDEX": "0", "HEADWAY_KEY": "key"}
    variables |= {"HEADWAY_COORDINATOR": "c:1", HEADWAY_VERSION: "9.9.9"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    said = headway(command)
    assert said.exit_code == Exit.BAD_INPUT
    assert "the pod was made by Headway 9.9.9" in said.err


@pytest.mark.parametrize("command", [("scale", "--nodes", "3"), ("resume",)])
def test_changes_by_another_version_are_refused(
    command: tuple[str, ...], kube: FakeKube, headway: Headway
) -> None:
    kube.job("wiki", suspend=command == ("resume",))
    (job,) = kube.objects.values()
    job["metadata"]["labels"][VERSION] = "9.9.9"
    before = dict(job["spec"])
    said = headway(command[0], "wiki", "--on", "lab", *command[1:])
    assert said.exit_code == Exit.BAD_INPUT
    assert f"run wiki was launched by Headway 9.9.9, and this is Headway {__version__}" in said.err
    assert job["spec"] == before


def test_a_version_with_a_local_part_is_a_label_and_is_named_as_it_is(
    kube: FakeKube, headway: Headway
) -> None:
    label = version_label("9.9.9+local.1")
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", label)
    kube.job("wiki")
    (job,) = kube.objects.values()
    job["metadata"]["labels"][VERSION] = label
    said = headway("scale", "wiki", "--on", "lab", "--nodes", "3")
    assert "run wiki was launched by Headway 9.9.9+local.1, and this is" in said.err


@pytest.mark.parametrize("files", ["0123456789ab", own_digest(), None])
def test_an_image_with_other_files_of_the_same_version_gives_a_warning(
    kube: FakeKube, folder: Path, capsys: pytest.CaptureFixture[str], files: str | None
) -> None:
    """All commits of a clone have the same version. A coordinator from before says nothing."""
    kube.job("wiki", ready=2)
    metadata = {"name": POD, "labels": labels("wiki", "coordinator")}
    path = f"/api/v1/namespaces/ml/pods/{POD}"
    kube.put(path, {"metadata": metadata, "spec": {"containers": []}, "status": READY})
    page = {"status": {"state": "running", "step": 3}, "events": [], "loss": None}
    page |= {"files": files} if files else {}
    kube.serve_pages({"/status": lambda: (JSON, json.dumps(page).encode())})
    target = load_target("lab", folder).target
    wait_until_training(TargetRun("wiki", "lab", target, folder))
    said = capsys.readouterr().err
    assert "run wiki is training on lab: step 3" in said
    assert (f"other files of Headway {__version__}" in said) == (files == "0123456789ab")


def test_the_version_of_a_page_is_seen_through_a_port_forward(kube: FakeKube) -> None:
    pod = {"metadata": {"name": POD, "labels": {}}, "spec": {"containers": []}, "status": READY}
    kube.put(f"/api/v1/namespaces/ml/pods/{POD}", pod)
    kube.serve_pages({"/hello": lambda: (TEXT, b"hello")})
    heard: list[str] = []
    client = KubeClient.from_kubeconfig(None, "ml")
    client.on_answer = heard.append
    client.request_to_pod(POD, 7461, "/hello")
    assert heard == [f"headway/{__version__}"]


def test_reading_from_another_version_warns_once() -> None:
    warned: list[str] = []
    watch = VersionWatch(warned.append)
    for server in (f"headway/{__version__}", "nginx", "", "headway/9.9.9", "headway/9.9.9"):
        watch.look(server)
    assert warned == [
        f"the run has Headway 9.9.9, and this is Headway {__version__}: what is shown may be "
        "wrong or incomplete"
    ]
