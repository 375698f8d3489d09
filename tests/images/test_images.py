"""Our three images are built, by buildah from a base that debootstrap makes, and what is in them
starts. `make images`, as root; no registry is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headway import __version__
from headway.kube.wheels import shipped

ROOT = Path(__file__).parents[2]
BASE = "localhost/base"
SECONDS = 1500
AUTHORITIES = Path("etc/ssl/certs/ca-certificates.crt")

pytestmark = [
    pytest.mark.long("20 minutes: torch is downloaded and copied"),
    pytest.mark.timeout(3 * SECONDS),
]


def run(*command: str | Path, seconds: float = SECONDS) -> str:
    ended = subprocess.run(
        list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=seconds
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
    return ended.stdout.strip()


class Builder:
    """Images in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        places = ("--root", folder / "storage", "--runroot", folder / "run")
        self._buildah = ("buildah", "--storage-driver", "vfs", *places)

    def __call__(self, *arguments: str | Path) -> str:
        return run(*self._buildah, *arguments)

    def build(self, name: str, base: str) -> str:
        file = ROOT / "docker" / f"{name}.Dockerfile"
        tag, argument = f"localhost/headway-{name}", f"BASE={base}"
        # One layer: with vfs each is a copy of all files before it.
        isolated = ("--isolation", "chroot", "--layers=false")
        self("bud", *isolated, "--build-arg", argument, "-f", file, "-t", tag, ROOT)
        return tag

    def started(self, image: str, *command: str) -> str:
        container = self("from", image)
        try:
            return self("run", "--isolation", "chroot", "--user", "1000:1000", container, *command)
        finally:
            self("rm", container)


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("buildah", "debootstrap"))):
        pytest.skip("needs root, buildah and debootstrap: apt-get install buildah debootstrap")
    # Not where tests usually write, which may be in memory.
    folder = Path("/var/tmp") / f"headway-images-{os.getpid()}"
    folder.mkdir()
    try:
        made = Builder(folder)
        make_base(made, folder / "base")
        yield made
    finally:
        shutil.rmtree(folder)


def make_base(builder: Builder, folder: Path) -> None:
    """From where apt of this machine gets its packages, with its authorities."""
    sites = run("apt-get", "indextargets", "--format", "$(SITE) $(CODENAME)").splitlines()
    site, release = sites[0].split()
    wanted = "python3,python3-pip,ca-certificates"
    run("debootstrap", "--variant=minbase", f"--include={wanted}", release, folder, site)
    shutil.copy(Path("/") / AUTHORITIES, folder / AUTHORITIES)
    container = builder("from", "scratch")
    builder("copy", container, folder, "/")
    builder("commit", "--rm", container, BASE)
    shutil.rmtree(folder)


def test_core(builder: Builder) -> None:
    image = builder.build("core", BASE)
    assert builder.started(image, "headway", "--version") == __version__
    count = "import headway.kube.wheels as w; print(len(list(w.wheels_folder().glob('*.whl'))))"
    assert int(builder.started(image, "python3", "-c", count)) == len(shipped()["wheels"])
    pods = ("launch.keeper", "launch.claim_server", "launch.wheel_server", "cli.coordinator")
    imports = "; ".join(f"import headway.{module}" for module in pods)
    assert builder.started(image, "python3", "-c", imports) == ""
    torch = "import importlib.util as u; print(u.find_spec('torch'))"
    assert builder.started(image, "python3", "-c", torch) == "None"


def test_cpu_and_cuda(builder: Builder) -> None:
    cpu = builder.build("cpu", BASE)
    imports = "import torch, transformers, headway; print(torch.__version__)"
    assert builder.started(cpu, "headway", "--version") == __version__
    assert builder.started(cpu, "python3", "-c", imports)
    cuda = builder.build("cuda", cpu)
    assert "g++" in builder.started(cuda, "g++", "--version")
    assert builder.started(cuda, "python3", "-c", imports)
    print(builder("images"), file=sys.stderr)


def test_every_dockerfile_is_built() -> None:
    names: Sequence[str] = sorted(path.name for path in (ROOT / "docker").glob("*Dockerfile*"))
    assert names == ["core.Dockerfile", "cpu.Dockerfile", "cuda.Dockerfile"]
