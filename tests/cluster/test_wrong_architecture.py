"""Images for other processors, and machines that nobody has: told by name, with what to do."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest

from cluster_tool.foreign_image import foreign_image
from support.lab import START_SECONDS, Lab
from support.stolen_time import Stopwatch
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(400),
    pytest.mark.long("20 s each; what containers leave is in unit tests"),
]

LIMIT_SECONDS = 30.0
"""From the start of the command, and from the end of the pod."""
OTHER = "arm64" if platform.machine() == "x86_64" else "amd64"


@pytest.fixture
def foreign(lab: Lab, tmp_path: Path) -> str:
    """On all nodes."""
    folder = tmp_path / "image"
    folder.mkdir()
    image = foreign_image(folder)
    for node in lab.cluster.nodes:
        node.load(image)
    return image.reference


def write_script(lab: Lab) -> None:
    """In a folder of its own: the image, and the files of a bucket, may be beside it."""
    targets = lab.folder / "targets.yaml"
    lab.folder = lab.folder / "mine"
    lab.folder.mkdir()
    targets.rename(lab.folder / "targets.yaml")
    (lab.folder / "run.yaml").write_text("version: 1\nname: it\ncommand: [python, train.py]\n")
    (lab.folder / "train.py").write_text("print('trains')\n")


def refusal(lab: Lab) -> str:
    watch = Stopwatch()
    said = lab.headway("run", "--on", "lab", "--nodes", "1", expect=1).stderr
    print(f"{watch.seconds:.1f} s: {said}")
    assert watch.seconds < LIMIT_SECONDS, said
    assert "it was built for another processor architecture (exec format error)" in said
    assert "hint: use an image for the architecture of that machine" in said
    assert "pod: {architecture: amd64}" in said
    return said


def test_the_pod_that_serves_the_claim(lab: Lab, foreign: str) -> None:
    write_script(lab)
    lab.change_target(image=foreign)
    said = refusal(lab)
    assert f"the pod that serves claim shared cannot start: image {foreign}" in said
    wait_for("nothing to be left", lambda: lab.objects() == [], START_SECONDS)


def test_the_coordinator(lab: Lab, bucket: Path, foreign: str) -> None:
    """Its image copies wheels in the workers' pods, too: either may be named."""
    write_script(lab)
    lab.change_target(coordinator={**lab.target()["coordinator"], "image": foreign})
    assert f": image {foreign} cannot be executed on machine" in refusal(lab)
    assert lab.objects() == []


def test_workers(lab: Lab, bucket: Path, foreign: str) -> None:
    """The coordinator's image is another one, and brings Headway."""
    write_script(lab)
    lab.change_target(coordinator={**lab.target()["coordinator"], "image": lab.cluster.image})
    lab.change_target(image=foreign)
    assert f"image {foreign} cannot be executed on machine" in refusal(lab)
    assert lab.objects() == []


def test_nobody_watches_and_the_run_ends(lab: Lab, bucket: Path, foreign: str) -> None:
    write_script(lab)
    lab.change_target(coordinator={**lab.target()["coordinator"], "image": lab.cluster.image})
    lab.change_target(image=foreign)
    with lab.typed("run", "--on", "lab", "--nodes", "1") as typed:
        typed.wait_for("worker: ", START_SECONDS)  # all is made
    failed = wait_for("a failed pod", lambda: failed_pod(lab), START_SECONDS)
    watch = Stopwatch()
    status = wait_for("the end", lambda: failed_status(lab), START_SECONDS)
    print(f"{watch.seconds:.1f} s after {failed['metadata']['name']} had: {status['failure']}")
    assert watch.seconds < LIMIT_SECONDS
    assert f"image {foreign} cannot be executed on machine" in status["failure"]
    assert "architecture: amd64" in status["failure_hint"]
    lab.headway("delete", "--on", "lab", "it", "--yes")


def failed_pod(lab: Lab) -> dict[str, Any] | None:
    pods = lab.cluster.api.items(
        f"/api/v1/namespaces/{lab.namespace}/pods",
        labelSelector="app.kubernetes.io/component=worker",
    )
    return next((pod for pod in pods if pod["status"]["phase"] == "Failed"), None)


def failed_status(lab: Lab) -> dict[str, Any] | None:
    status = lab.status()
    return status if status.get("state") == "failed" else None


def test_machines_that_the_cluster_does_not_have_are_named_at_once(lab: Lab) -> None:
    write_script(lab)
    lab.change_target({"architecture": OTHER})
    watch = Stopwatch()
    with lab.typed("run", "--on", "lab", "--nodes", "1") as typed:
        typed.wait_for(f"(needed: kubernetes.io/arch={OTHER})", START_SECONDS)
        print(f"{watch.seconds:.1f} s: {typed.output}")
        assert watch.seconds < LIMIT_SECONDS, typed.output
        assert "worker: no node fits" in typed.output
    said = lab.headway("status").stdout
    assert f"kubernetes.io/arch={OTHER}" in said, "whoever asks later hears it, too"
    lab.headway("stop")
    lab.headway("delete", "--on", "lab", "it", "--yes")
