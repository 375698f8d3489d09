"""Code and packages of a run on a target: from the user's folder to that of a pod."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from headway.cli.target_launch import upload_folders
from headway.cli.target_render import target_plan
from headway.errors import BadInput
from headway.kube.names import FETCHED
from headway.kube.storage_layout import SITE, folders_to_fetch
from headway.launch.packages import InstalledPackages, unpack_packages
from headway.launch.upload import fetch
from headway.spec.load import load_run, load_target
from headway.spec.resolve import WorkerPython
from headway.state.store import Store

WORKER = WorkerPython(python="3.12", architecture="aarch64")


class Counting(Store):
    """How many files are sent to it."""

    num_sent = 0

    def send(self, path: Path, name: str) -> None:
        self.num_sent += 1
        super().send(path, name)


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_what_a_pod_has_is_what_the_user_has(folder: Path, tmp_path: Path) -> None:
    write(folder, "src/train.py", "src/conf/a.yaml", "requirements.txt")
    cached = tmp_path / "cache"
    write(cached / SITE, "timm/__init__.py", "bin/timm")
    (cached / SITE / "bin" / "timm").chmod(0o755)
    loaded = load_run(None, ["code={path: src, requirements: requirements.txt}"])
    plan = target_plan(loaded, load_target("lab", folder), None)
    plan = plan.with_packages(InstalledPackages(cached, "key", "lock", WORKER))
    assert plan.resolved.packages_for == WORKER
    storage, pod = Counting(tmp_path / "storage"), tmp_path / "pod"
    upload_folders(storage, plan, "lab")
    for name in folders_to_fetch(plan.resolved).values():
        fetch(storage, name, pod / name)
    assert plan.resolved.packages is not None
    assert plan.resolved.run.code is not None
    site = pod / plan.resolved.packages.removeprefix(f"{FETCHED}/")
    code = pod / plan.resolved.run.code.path.removeprefix(f"{FETCHED}/")
    unpack_packages(site)
    unpack_packages(site)
    assert (site / "timm/__init__.py").read_text() == "timm/__init__.py"
    assert (site / "bin/timm").stat().st_mode & 0o111
    assert (code / "conf/a.yaml").read_text() == "src/conf/a.yaml"


def test_the_code_of_a_launch_is_that_of_its_plan(folder: Path, tmp_path: Path) -> None:
    """Preparing data may take hours, and code is edited meanwhile."""
    write(folder, "src/train.py")
    plan = target_plan(load_run(None, ["code={path: src}"]), load_target("lab", folder), None)
    (folder / "src" / "later.py").write_text("added later")
    storage = Store(tmp_path / "storage")
    upload_folders(storage, plan.with_sets([], {}), "lab")
    (name,) = folders_to_fetch(plan.resolved).values()
    fetch(storage, name, tmp_path / "pod")
    assert [path.name for path in (tmp_path / "pod").iterdir()] == ["train.py"]
    (folder / "src" / "train.py").unlink()
    with pytest.raises(BadInput, match=r"train\.py was deleted meanwhile"):
        upload_folders(Store(tmp_path / "other"), plan, "lab")
    assert plan.code is not None
    assert plan.code.listing.digest == plan.resolved.code_digest


def test_an_edit_uploads_the_code_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    """As many requests as there are files, a few at a time; packages stay."""
    write(folder, *(f"src/{number}.py" for number in range(200)), "requirements.txt")
    write(tmp_path / "cache" / SITE, "timm.py")
    storage = Counting(tmp_path / "storage")

    def launch() -> int:
        before = storage.num_sent
        loaded = load_run(None, ["code={path: src, requirements: requirements.txt}"])
        plan = target_plan(loaded, load_target("lab", folder), None)
        packages = InstalledPackages(tmp_path / "cache", "key", "lock", WORKER)
        upload_folders(storage, plan.with_packages(packages), "lab")
        return storage.num_sent - before

    assert launch() == 201
    assert launch() == 0
    (folder / "src" / "7.py").write_text("edited")
    assert launch() == 200


@pytest.mark.parametrize("filters", [True, False], ids=["filters", "python-3.11.3"])
def test_an_archive_of_somebody_else_writes_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filters: bool
) -> None:
    if not filters:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    site = tmp_path / "packages" / "site"
    site.parent.mkdir()
    with tarfile.open(site.with_name("packages.tar.gz"), "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../outside.py"))
    with pytest.raises((BadInput, tarfile.TarError)):
        unpack_packages(site)
    assert not list(tmp_path.rglob("outside.py"))
    assert not site.exists()
