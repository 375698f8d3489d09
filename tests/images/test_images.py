"""The core is built, and an image for workers by `headway image build`, by buildah from a base that
debootstrap makes, and what is in them starts. `make images`, as root; no registry is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from headway import __version__
from headway.kube.wheels import shipped
from support.image_registry import image_registry

ROOT = Path(__file__).parents[2]
BASE, TORCH = "localhost/base", "localhost/torch"
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
        self.folder = folder
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
    copied = builder.started(image, "sh", "-c", "headway wheels /tmp 2>&1")
    assert copied == f"copied {len(shipped()['wheels']) + 1} wheels"
    pods = ("launch.keeper", "launch.claim_server", "cli.coordinator", "cli.wheels")
    imports = "; ".join(f"import headway.{module}" for module in pods)
    assert builder.started(image, "python3", "-c", imports) == ""
    torch = "import importlib.util as u; print(u.find_spec('torch'))"
    assert builder.started(image, "python3", "-c", torch) == "None"


def test_an_image_for_workers_by_the_command(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`buildah` without options, as the command calls it, is set up by variables and files."""
    container = builder("from", BASE)
    install = ("python3", "-m", "pip", "install", "--break-system-packages", *torch_alone())
    builder("run", "--isolation", "chroot", container, *install)
    builder("commit", "--rm", container, TORCH)
    with image_registry() as (address, manifests):
        for name, content in settings(builder.folder, address).items():
            (tmp_path / name).write_text(content)
        monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")
        monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage.conf"))
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(tmp_path / "registries.conf"))
        name = f"{address}/headway"
        command = ("image", "build", "--push", f"{name}:it", "--base", TORCH)
        said = run(sys.executable, "-m", "headway.cli.main", *command, "--builder", "buildah")
        (digest,) = manifests
    assert said == f"{name}@{digest}"
    image = f"{name}:it"
    assert builder.started(image, "headway", "--version") == __version__
    imports = "import ctypes, torch, transformers, headway; ctypes.CDLL('libibverbs.so.1')"
    assert builder.started(image, "python3", "-c", imports) == ""
    assert "g++" in builder.started(image, "g++", "--version")


def torch_alone() -> list[str]:
    """Torch and numpy of the versions here; what torch needs comes with it."""
    return [f"{name}=={version(name).partition('+')[0]}" for name in ("torch", "numpy")]


def settings(folder: Path, registry: str) -> dict[str, str]:
    places = f'graphroot = "{folder / "storage"}"\nrunroot = "{folder / "run"}"\n'
    return {
        "storage.conf": f'[storage]\ndriver = "vfs"\n{places}',
        "registries.conf": f'[[registry]]\nlocation = "{registry}"\ninsecure = true\n',
    }
