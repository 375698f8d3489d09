"""From a wheel and a kubeconfig to the first step of a run: every command and every answer counted.

The wheel is one that a release makes of this source. Its nodes have PyTorch's image and the core by
the names that the wheel has for them, since there is no registry to pull from.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cluster_tool.binaries import REPOSITORY
from cluster_tool.cluster import Cluster
from cluster_tool.released_images import core_image, pytorch_image
from headway.kube.images import stock_images
from tools.released_wheel import write_released

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    pytest.mark.long("installs 6 GB of packages, and makes two images"),
]

COMMANDS = (
    "uv tool install 'headway[train] @ {wheel}'",
    "headway init tiny my-run",
    "headway run my-run --on lab",
)
"""As typed; nobody answers anything, and no file is edited."""
MOST_COMMANDS = 3


def test_from_a_wheel_and_a_kubeconfig_to_the_first_step(
    own_cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    wheel = released(own_cluster, tmp_path)
    own_cluster.lend(namespace)  # its claim `shared` is what an administrator makes
    environment = of_a_new_user(own_cluster, namespace, tmp_path)
    said = ""
    for command in COMMANDS:
        ended = subprocess.run(
            ["bash", "-c", command.format(wheel=wheel)],
            cwd=tmp_path / "home",
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
        )
        said = f"$ {command}\n{ended.stdout}{ended.stderr}"
        print(said)
        assert ended.returncode == 0, said
    assert len(COMMANDS) <= MOST_COMMANDS
    targets = tmp_path / "config" / "headway" / "targets.yaml"
    assert f"added target lab to {targets}\n" in said
    assert re.search(r"^run my-run is training on lab: step [0-9]+$", said, re.MULTILINE), said
    # The image is the one of the wheel, not one that a target names.
    assert "image" not in yaml.safe_load(targets.read_text())["lab"]
    pods = own_cluster.api.items(f"/api/v1/namespaces/{namespace}/pods")
    images = {one["image"] for pod in pods for one in pod["spec"]["containers"]}
    assert stock_images().pytorch in images


def released(cluster: Cluster, folder: Path) -> Path:
    """Make the wheel as a release does, and have its images on the nodes."""
    built, made = folder / "built", folder / "released"
    made.mkdir()
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(build, cwd=REPOSITORY, check=True)
    (wheel,) = built.glob("*.whl")
    core, pytorch = core_image(wheel), pytorch_image()
    for node in cluster.nodes:
        node.load(core)
        node.load(pytorch, stock_images().pytorch)
    return write_released(wheel, core.reference, made)


def of_a_new_user(cluster: Cluster, namespace: str, folder: Path) -> dict[str, str]:
    """A kubeconfig with one context, as administrators hand it out, and no Headway."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    (context,) = config["contexts"]
    context["name"] = config["current-context"] = "lab"
    context["context"]["namespace"] = namespace
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    commands = folder / "bin"
    for new in (commands, folder / "home"):
        new.mkdir()
    found = shutil.which("uv") or Path(sys.executable).with_name("uv")
    (commands / "uv").symlink_to(found)
    (commands / "python3").symlink_to(Path(sys.base_prefix, "bin", "python3"))
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "UV_PYTHON")
    return {
        **{name: value for name, value in os.environ.items() if name not in ours},
        "PATH": f"{commands}:/usr/bin:/bin",
        "KUBECONFIG": str(folder / "kubeconfig"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "UV_TOOL_DIR": str(folder / "tools"),
        "UV_TOOL_BIN_DIR": str(commands),
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_CONSTRAINT": str(REPOSITORY / "requirements" / "all.txt"),
    }
