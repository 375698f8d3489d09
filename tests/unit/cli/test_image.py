"""`headway image build`, with programs in the place of docker, podman and buildah that write down
what they are asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headway import __version__
from headway.kube.images import stock_images
from headway.kube.wheels import own_digest
from support.in_process import Headway

DIGEST = "sha256:" + "a" * 64
NAME = "registry.example:5000/ml/headway"
IMAGE = f"{NAME}@{DIGEST}"
ADDRESS = f"{NAME}:{__version__}-{own_digest()}"
BUILD = ("image", "build", "--push", NAME)
PROGRAM = """\
#!/bin/sh
echo "${0##*/} $*" >> {folder}/asked
case "$1" in
  build) echo "words of the builder"; for last; do :; done; cp -r "$last" {folder}/context ;;
  push) exit_code={push}; [ "$2" = --digestfile ] && printf %s {digest} > "$3"; exit $exit_code ;;
  image) echo '{listed}' ;;
esac
"""
TARGETS = """\
# ask Jane
lab:   # ours
  kube: {namespace: ml}
  image: old.example/it@sha256:%s   # of last week
  pod: {architecture: arm64, resources: {cpu: 4}}
bare:
  # no image yet
  kube: {namespace: ml}
  pod: {env: {NCCL_NET: AWS Libfabric}}
flow: {kube: {namespace: ml}}
""" % ("0" * 64)
Install = Callable[..., None]


@pytest.fixture
def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put these programs into PATH, and no other builder."""
    tools = folder / "bin"
    tools.mkdir()
    for name in ("sh", "cp"):
        (tools / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tools))
    (folder / "targets.yaml").write_text(TARGETS)

    def add(*names: str, push: int = 0, listed: tuple[str, ...] = (IMAGE,)) -> None:
        known = json.dumps(["other.example/it@sha256:" + "b" * 64, *listed])
        for name in names:
            text = PROGRAM.replace("{folder}", str(folder)).replace("{push}", str(push))
            text = text.replace("{digest}", DIGEST).replace("{listed}", known)
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)

    return add


def asked(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "asked").read_text().splitlines()]


def dockerfile(folder: Path) -> list[str]:
    return (folder / "context" / "Dockerfile").read_text().splitlines()


@pytest.mark.parametrize("program", ["docker", "podman", "buildah"])
def test_it_is_built_pushed_and_written_into_the_target(
    headway: Headway, install: Install, folder: Path, program: str
) -> None:
    install(program)
    said = headway(*BUILD, "--on", "lab")
    assert (said.exit_code, said.out) == (0, f"{IMAGE}\n"), said.err
    built, pushed, *rest = asked(folder)
    assert built[:-1] == [program, "build", "--platform", "linux/arm64", "--tag", ADDRESS]
    assert (pushed[:2], pushed[-1]) == ([program, "push"], ADDRESS)
    assert bool(rest) == (program == "docker")
    text = TARGETS.replace(
        "  image: old.example/it@sha256:" + "0" * 64 + "   # of last week\n",
        f"  image: {IMAGE}  # headway image build\n",
    )
    assert (folder / "targets.yaml").read_text() == text
    assert "hint: headway target check lab" in said.err


def test_the_context_has_all_that_the_image_needs(
    headway: Headway, install: Install, folder: Path
) -> None:
    install("podman")
    said = headway(*BUILD)
    assert f"hint: headway target add NAME --image {IMAGE}" in said.err
    assert sorted(path.name for path in (folder / "context").iterdir()) == [
        "Dockerfile",
        "finish.py",
        f"headway-{__version__}-py3-none-any.whl",
        "requirements.txt",
    ]
    lines = dockerfile(folder)
    assert lines[0] == f"FROM {stock_images().pytorch}"
    assert lines[-1] == "USER 1000:1000"
    assert "libibverbs1" in "".join(lines)
    listed = (folder / "context" / "requirements.txt").read_text()
    names = {line.partition("==")[0] for line in listed.splitlines() if "==" in line}
    assert {"transformers", "s3fs", "gcsfs", "pyarrow"} <= names
    assert not {name for name in names if name in ("torch", "triton") or name.startswith("nvidia")}


def test_a_target_that_names_awss_plugin_gets_it(
    headway: Headway, install: Install, folder: Path
) -> None:
    install("buildah")
    said = headway(*BUILD, "--on", "bare", "--base", "ours:1")
    assert said.exit_code == 0, said.err
    assert dockerfile(folder)[:2] == [f"FROM {stock_images().efa} AS efa", "FROM ours:1"]
    assert "COPY --from=efa /opt/amazon/ofi-nccl /opt/amazon/ofi-nccl" in dockerfile(folder)
    changed = (folder / "targets.yaml").read_text()
    key = f"  image: {IMAGE}  # headway image build\n"
    assert changed == TARGETS.replace("  # no image yet\n", f"  # no image yet\n{key}")


def test_what_cannot_be_written_is_refused_before_anything_is_built(
    headway: Headway, install: Install, folder: Path
) -> None:
    install("docker")
    said = headway(*BUILD, "--on", "flow")
    assert said.exit_code == 2
    assert "targets.yaml:10:1: flow is not written as a block of lines" in said.err
    assert "hint: write in its place: image: ADDRESS@sha256:DIGEST" in said.err
    assert headway(*BUILD, "--on", "nobody").exit_code == 3
    assert headway("image", "build", "--push", "headway").exit_code == 2
    assert not (folder / "asked").exists()
    assert (folder / "targets.yaml").read_text() == TARGETS


def test_a_builder_that_fails(headway: Headway, install: Install, folder: Path) -> None:
    install("docker", "podman", push=125)
    said = headway(*BUILD, "--on", "lab", "--builder", "podman")
    assert (said.exit_code, said.out) == (1, "")
    assert "error: the push failed: podman push ended with exit code 125" in said.err
    assert "hint: podman login registry.example:5000" in said.err
    assert (folder / "targets.yaml").read_text() == TARGETS


def test_docker_leaves_out_the_name_of_its_own_registry(headway: Headway, install: Install) -> None:
    install("docker", listed=(f"me/headway@{DIGEST}",))
    said = headway("image", "build", "--push", "docker.io/me/headway:7")
    assert said.out == f"docker.io/me/headway@{DIGEST}\n"


def test_no_builder(headway: Headway, install: Install) -> None:
    install()
    said = headway(*BUILD)
    assert said.exit_code == 2
    assert "error: docker, podman, buildah are not in PATH" in said.err


def test_a_core_beside_the_new_image_is_pointed_out(
    headway: Headway, install: Install, folder: Path
) -> None:
    install("podman")
    core = f"  coordinator: {{image: {IMAGE}}}\n"
    (folder / "targets.yaml").write_text(TARGETS.replace("lab:   # ours\n", f"lab:\n{core}"))
    said = headway(*BUILD, "--on", "lab")
    assert "warning: targets.yaml:3:17: coordinator.image stays as it was" in said.err
    assert "hint: remove coordinator.image from target lab" in said.err
