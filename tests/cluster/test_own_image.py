"""Workers in an image with torch and numpy alone, as PyTorch's own: Headway and transformers come
from the coordinator's image. And a client of another version."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import headway
from cluster_tool.volumes import claim_folder
from headway import __version__
from support.lab import START_SECONDS, Lab
from support.torch_image import fetch_wheels, link_python
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

OTHER = "9.9.9"


@pytest.fixture
def lab(lab: Lab) -> Lab:
    """`python3` of all pods is that of an image with torch; `headway` that of another, with Headway
    and without the first one's packages."""
    fetch_wheels()
    link_python(lab.shared / "torch-image")
    claim_folder(
        lab.cluster.api, lab.namespace, "torch", lab.shared / "torch-image", "ReadOnlyMany"
    )
    pod = lab.target()["pod"]
    claim = {"claimName": "torch", "readOnly": True}
    mount = {"name": "torch", "mountPath": "/torch", "readOnly": True}
    lab.change_target(
        {
            "volumes": [*pod["volumes"], {"name": "torch", "persistentVolumeClaim": claim}],
            "mounts": [*pod["mounts"], mount],
            "env": {**pod["env"], "PATH": f"/torch/bin:{pod['env']['PATH']}"},
        },
        coordinator={"image": lab.cluster.image},
    )
    return lab


def by_another_version(lab: Lab, tmp_path: Path, *arguments: str) -> str:
    """What a client with these files and another version says."""
    copy = tmp_path / "other" / "headway"
    if not copy.exists():
        here = Path(headway.__file__).parent
        shutil.copytree(here, copy, ignore=shutil.ignore_patterns("__pycache__"))
        init = copy / "__init__.py"
        init.write_text(init.read_text().replace(f'"{__version__}"', f'"{OTHER}"'))
    ended = subprocess.run(
        [sys.executable, "-m", "headway.cli.main", *arguments],
        cwd=lab.folder,
        env={**os.environ, "PYTHONPATH": str(copy.parent)},
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
    )
    assert ended.returncode, ended.stdout
    return ended.stderr


@pytest.mark.long("half a minute; what is brought is in unit tests")
def test_a_run_in_an_image_with_torch_and_no_headway(lab: Lab, tmp_path: Path) -> None:
    lab.headway("run", "--on", "lab", "--nodes", "1")
    lab.wait_for_step(2)
    (worker,) = lab.pods()
    logs = f"/api/v1/namespaces/{lab.namespace}/pods/{worker['metadata']['name']}/log"
    said = lab.cluster.api.text(logs, container="worker")
    assert "\nbrought " in f"\n{said}", said
    assert not list((lab.shared / "torch-image").glob("lib/*/site-packages/transformers*"))
    refused = by_another_version(lab, tmp_path, "scale", "--nodes", "2")
    assert f"run it was launched by Headway {__version__}, and this is Headway {OTHER}" in refused


@pytest.mark.long("another 20 s, for a refusal that unit tests have too")
def test_an_image_of_another_version_is_refused(lab: Lab, tmp_path: Path) -> None:
    said = by_another_version(lab, tmp_path, "run", "--on", "lab", "--nodes", "1")
    assert f"this image has Headway {__version__}, and the pod was made by Headway {OTHER}" in said
    # The pod that served the claim is deleted in the background.
    wait_for("nothing to be left", lambda: lab.objects() == [], START_SECONDS)


@pytest.mark.long("two checks of a target, 20 s each")
def test_a_check_of_the_target_says_what_the_image_lacks(lab: Lab) -> None:
    lab.headway("target", "check", "lab", "--json")
    (packages,) = (lab.shared / "torch-image" / "lib").glob("*/site-packages")
    for link in packages.glob("numpy*"):
        link.unlink()
    failed = json.loads(lab.headway("target", "check", "lab", "--json", expect=4).stdout)
    (run,) = [line for line in failed["lines"] if line["outcome"] == "failed"]
    assert "it has no numpy, and numpy>=2 is needed" in run["evidence"]


@pytest.mark.long("another 30 s, for a refusal that unit tests have too")
def test_an_image_without_numpy_is_refused(lab: Lab) -> None:
    (packages,) = (lab.shared / "torch-image" / "lib").glob("*/site-packages")
    for link in packages.glob("numpy*"):
        link.unlink()
    said = lab.headway("run", "--on", "lab", "--nodes", "1", expect=1).stderr
    assert "cannot run in this image: it has no numpy, and numpy>=2 is needed" in said
    assert lab.objects() == []
