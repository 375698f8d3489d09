"""Which images a target's pods run when it names none, and what is refused before they start."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import PathDistribution
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import Path as ZipPath
from zipfile import ZipFile

import pytest

import headway
from headway import __version__
from headway.errors import SpecError
from headway.kube.image_context import headway_wheel
from headway.kube.images import TargetImages, stock_images, target_images
from headway.kube.nccl_libraries import named_libraries
from headway.kube.wheels import own_digest
from headway.spec.pod_config import IMAGE_PATTERN
from headway.spec.target_file import Target

IMAGE = "registry.example/ours@sha256:" + "1" * 64
CORE = "registry.example/headway-core@sha256:" + "2" * 64
STOCK = stock_images()
FILE = Path(headway.__file__).parent / "kube" / "images.json"
ON_GPUS = "resources={accelerators: H100:8}"


def images(released: str = "", **keys: Any) -> TargetImages:
    return target_images(Target.model_validate(keys), replace(STOCK, core=released))


def test_without_an_image_workers_run_pytorchs_own_and_get_the_released_core() -> None:
    assert images(CORE) == TargetImages(STOCK.pytorch, CORE, True)
    assert images() == TargetImages(None, None, False)


def test_what_the_target_names_comes_first() -> None:
    own = {"image": CORE}
    assert images(CORE, image=IMAGE) == TargetImages(IMAGE, IMAGE, False)
    assert images("", image=IMAGE, coordinator=own) == TargetImages(IMAGE, CORE, True)
    assert images("", coordinator=own) == TargetImages(STOCK.pytorch, CORE, True)


@pytest.fixture
def own_core(folder: Path) -> Path:
    """The target names a core of its own, and no image."""
    file = folder / "targets.yaml"
    text = re.sub(r"  image: .*\n", f"  coordinator: {{image: {CORE}}}\n", file.read_text())
    file.write_text(text)
    return file


def test_the_pods_of_a_target_without_an_image(own_core: Path, render: Any) -> None:
    pods = [
        one["spec"]["template"]["spec"] for one in render() if "template" in one.get("spec", {})
    ]
    workers, coordinator = sorted(pods, key=lambda pod: pod["containers"][0]["name"], reverse=True)
    assert workers["containers"][0]["image"] == STOCK.pytorch
    assert [(one["name"], one["image"]) for one in workers["initContainers"]] == [("wheels", CORE)]
    assert coordinator["containers"][0]["image"] == CORE


@pytest.mark.parametrize(
    ("variable", "value", "library"),
    [
        ("NCCL_NET", "AWS Libfabric", "libnccl-net.so"),
        ("NCCL_NET", "IB", "libibverbs.so or libibverbs.so.1"),
        ("NCCL_NET_PLUGIN", "ofi", "ofi or libnccl-net-ofi.so"),
    ],
)
def test_a_library_that_pytorchs_own_image_lacks(
    own_core: Path, render: Any, variable: str, value: str, library: str
) -> None:
    text = own_core.read_text().replace("  pod:\n", f"  pod:\n    env: {{{variable}: {value}}}\n")
    own_core.write_text(text)
    render()  # on CPUs
    with pytest.raises(SpecError) as caught:
        render(ON_GPUS)
    assert str(caught.value) == (
        f"targets.yaml:6:11: lab.pod.env.{variable}: NCCL needs {library} for it, which PyTorch's "
        "own image lacks\nhint: headway image build --push REGISTRY/NAME --on lab"
    )


def test_libraries_that_variables_name() -> None:
    assert named_libraries({"NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "none"}) == {}
    both = {"NCCL_NET": "AWS Libfabric", "NCCL_NET_PLUGIN": "ofi", "NCCL_TUNER_PLUGIN": "ofi"}
    assert named_libraries(both) == {
        "NCCL_NET_PLUGIN": ("ofi", "libnccl-net-ofi.so"),
        "NCCL_TUNER_PLUGIN": ("ofi", "libnccl-tuner-ofi.so"),
    }


def test_images_are_named_by_digest() -> None:
    for image in filter(None, (STOCK.core, STOCK.pytorch, STOCK.efa)):
        assert re.search(IMAGE_PATTERN, image), image


def test_a_release_that_names_its_core_is_the_headway_that_the_core_has(tmp_path: Path) -> None:
    """The core's digest is known only after the core is built of these files."""
    package = tmp_path / "headway"
    shutil.copytree(FILE.parents[1], package, ignore=shutil.ignore_patterns("__pycache__"))
    content = json.loads(FILE.read_text())
    content["core"]["image"] = CORE
    (package / "kube" / "images.json").write_text(json.dumps(content))
    code = (
        "from headway.kube.images import stock_images; from headway.kube.wheels import own_digest; "
        "print(own_digest(), stock_images().core)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, text=True,
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert said.stdout.split() == [own_digest(), CORE]


def test_the_wheel_in_an_image_is_this_headway() -> None:
    content = BytesIO(headway_wheel())
    with ZipFile(content) as wheel:
        names = {*wheel.namelist()}
        found = PathDistribution(ZipPath(wheel, f"headway-{__version__}.dist-info/"))  # type: ignore[arg-type]
        recorded = {line.split(",")[0] for line in (found.read_text("RECORD") or "").splitlines()}
        assert recorded == names
        assert found.version == __version__
        assert [one.name for one in found.entry_points] == ["headway"]
        assert wheel.read("headway/kube/images.py") == FILE.with_name("images.py").read_bytes()
