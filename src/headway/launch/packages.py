"""Packages of `code.requirements`: resolved for the workers' Python, torch and processor, wheels
only, and installed once for each state of the requirements, into a folder that goes on the workers'
Python path. By uv, on the machine that launches: pods need no index.

torch and Headway are the workers' own. They are constraints of the resolution, so that what does
not fit them is refused; and left out of its result, so that nothing replaces them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, requires
from pathlib import Path
from uuid import uuid4

from headway.clock import Clock
from headway.errors import BadInput
from headway.kube.images import stock_images, target_images
from headway.kube.storage_layout import SITE
from headway.launch.hardware import torch_version
from headway.launch.requirements_file import (
    OWN,
    RequirementsFile,
    RequirementsRefused,
    is_lock,
    locked_names,
    package_name,
)
from headway.spec.pod_config import ARCHITECTURE
from headway.spec.resolve import WorkerPython
from headway.spec.target_file import Target

LOCK = "lock.txt"
ARCHIVE = "packages.tar.gz"
HEADER = "# headway: "
RESOLVE_SECONDS = 300.0
INSTALL_SECONDS = 900.0
WORDS_SECONDS = 10.0
LOOK_SECONDS = 0.05
PLATFORM = "{}-manylinux_2_28"
"""That of RHEL 8: images with a torch that Headway takes have its libc or a later one."""
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""As Linux names them and wheels do, by the names of Kubernetes and macOS."""
CONTENT = "1"
"""Version of what is made of the same requirements."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class InstalledPackages:
    folder: Path
    """In the cache: `site`, the lock, and the archive once it was asked for."""
    key: str
    lock: str
    worker: WorkerPython
    """What they were resolved for; without torch if nothing needs it."""

    @property
    def site(self) -> Path:
        return self.folder / SITE

    def archive(self) -> Path:
        """One file with all of it, the same bytes from the same files."""
        path = self.folder / ARCHIVE
        if not path.is_file():
            _pack(self.site, path)
        return path


class Uv:
    """Runs uv, with words for whoever waits."""

    def __init__(self, say: Say, clock: Clock, command: Sequence[str] | None = None) -> None:
        self._say = say
        self._clock = clock
        self._command = list(command) if command is not None else [find_uv()]

    def run(self, arguments: Sequence[str], what: str, seconds: float) -> float:
        """Seconds that it took. Raises RequirementsRefused with uv's own sentence if it fails."""
        environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
        began = said = self._clock.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [*self._command, *arguments, "--no-progress", "--color", "never"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                env=environment,
                # A uv.toml or pyproject.toml beside the run file is not about these packages.
                cwd=tempfile.gettempdir(),
            )
            try:
                while process.poll() is None:
                    now = self._clock.monotonic()
                    if now - began > seconds:
                        raise RequirementsRefused(
                            f"{what}: no result within {seconds:.0f} s",
                            "is the package index reachable from here? Run the same command again: "
                            "uv keeps what it has fetched",
                        )
                    if now - said >= WORDS_SECONDS:
                        said = now
                        self._say(f"{what}: {now - began:.0f} s")
                    self._clock.sleep(LOOK_SECONDS)
            finally:
                process.kill()
                process.wait()
            if process.returncode:
                output.seek(0)
                raise _refusal(what, output.read(), self._command[0])
        return self._clock.monotonic() - began


def find_uv() -> str:
    """The one that is installed with Headway, else the one in PATH."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise BadInput(
            "code.requirements needs uv, which is not installed",
            "pip install 'headway[requirements]'",
        )
    return found


def python_here() -> WorkerPython:
    """This interpreter, which starts the workers of a run here."""
    return WorkerPython(
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        torch=torch_version(),
        architecture=ARCHITECTURES.get(platform.machine(), platform.machine()),
    )


def python_on(target: Target) -> WorkerPython:
    """As the target says; else as the image is known to be; else this machine's, which pods compare
    with their own."""
    here, images, stock = python_here(), target_images(target), stock_images()
    is_stock = images.worker == stock.pytorch
    architecture = target.pod.architecture or target.pod.node_selector.get(ARCHITECTURE)
    return WorkerPython(
        python=target.python or (stock.python if is_stock else here.python),
        torch=target.torch or (stock.torch if is_stock else here.torch),
        architecture=ARCHITECTURES.get(architecture, here.architecture)
        if architecture is not None
        else here.architecture,
    )


def install_packages(
    file: RequirementsFile,
    worker: WorkerPython,
    is_script: bool,
    kept_lock: Callable[[str], str | None],
    uv: Uv,
    say: Say,
) -> InstalledPackages:
    """Those of the cache, if the same lock was installed before. `kept_lock`: the lock that an
    earlier start of the run has kept, by the key of its requirements; others may have written it,
    so that only runs that have it get what it names."""
    bounds = [*_bounds(is_script), *([f"torch=={_public(worker.torch)}"] if worker.torch else [])]
    key = _key(file, worker, bounds)
    cache = _cache()
    cache.mkdir(parents=True, exist_ok=True)
    known = cache / f"{key}.txt"
    lock = _accepted(kept_lock(key), worker)
    is_kept = lock is not None
    if lock is None and known.is_file():
        lock = known.read_text()
    half = cache / f".{key}-{uuid4().hex[:8]}"
    half.mkdir()
    try:
        if lock is None:
            lock = _lock(file, worker, bounds, half, uv, say)
        folder = cache / hashlib.sha256(f"{CONTENT}\n{lock}".encode()).hexdigest()
        if not folder.is_dir():
            (half / LOCK).write_text(lock)
            _install(file, worker, half, uv, say)
            try:
                half.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another run was faster
                    raise
        if not is_kept and not known.is_file():
            new = known.with_name(f".{known.name}-{uuid4().hex[:8]}")
            new.write_text(lock)
            new.replace(known)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return InstalledPackages(folder, key, lock, _worker_of(lock))


def _accepted(lock: str | None, worker: WorkerPython) -> str | None:
    """None unless it is one, and for this worker."""
    if lock is None or not lock.startswith(HEADER) or not is_lock(lock):
        return None
    try:
        of = _worker_of(lock)
    except (ValueError, TypeError):
        return None
    torch = _public(worker.torch) if worker.torch is not None else None
    fits = (of.python, of.architecture) == (worker.python, worker.architecture)
    return lock if fits and of.torch in (None, torch) else None


def unpack_packages(site: Path) -> None:
    """In a pod, from the archive beside it: all or nothing."""
    archive, into = site.with_name(ARCHIVE), site
    if into.is_dir():
        return
    half = into.with_name(f".{into.name}-{uuid4().hex[:8]}")
    try:
        with tarfile.open(archive) as packed:
            extract(packed, half)
        half.rename(into)
        archive.unlink()
    finally:
        shutil.rmtree(half, ignore_errors=True)


def extract(packed: tarfile.TarFile, into: Path) -> None:
    """Extract an archive that others may have written: nothing leaves the folder."""
    if hasattr(tarfile, "data_filter"):
        packed.extractall(into, filter="data")
        return
    for member in packed:  # Python before 3.11.4
        path = Path(member.name)
        is_plain = member.isfile() or member.isdir()
        if not is_plain or path.is_absolute() or ".." in path.parts:
            raise BadInput(f"{ARCHIVE}: {member.name} is no file of a package")
    packed.extractall(into)


def require_worker(wanted: WorkerPython, have: WorkerPython) -> None:
    """In a pod: it is what the packages were resolved for."""
    facts = {
        "python": (wanted.python, have.python, "Python"),
        "torch": (wanted.torch, have.torch, "torch"),
        "pod.architecture": (wanted.architecture, have.architecture, "the architecture"),
    }
    for key, (asked, found, what) in facts.items():
        if asked is None or (found is not None and _public(asked) == _public(found)):
            continue
        has = f"{what} {found}" if found is not None else f"no {what}"
        names = {ours: theirs for theirs, ours in ARCHITECTURES.items()}
        value = names.get(found or "", found)
        raise BadInput(
            f"code.requirements were resolved for {what} {asked}, and this image has {has}",
            f"in the target: {key}: {_public(value or '?')}, then headway run --on TARGET again",
        )


# Resolving


def _lock(
    file: RequirementsFile,
    worker: WorkerPython,
    bounds: Sequence[str],
    scratch: Path,
    uv: Uv,
    say: Say,
) -> str:
    what = f"resolving {file.path.name} for {_named(worker)}"
    say(what)
    found = {name: scratch / f"{name}.txt" for name in ("asked", "bounds", "own", "all", "some")}
    found["asked"].write_text(file.text)
    found["bounds"].write_text("\n".join([*bounds, ""]))
    found["own"].write_text("headway\n")
    # Versions that are preferred if they fit: the image's, if it was made like this environment.
    found["all"].write_text("".join(f"{name}=={version}\n" for name, version in _installed_here()))
    options = [*_for_worker(worker), "--generate-hashes", "--no-header", "--no-annotate"]
    compile_ = ["pip", "compile", str(found["asked"]), *options, "--excludes", str(found["own"])]
    everything = [*compile_, "-c", str(found["bounds"]), "-o", str(found["all"])]
    try:
        seconds = uv.run(everything, what, RESOLVE_SECONDS)
    except RequirementsRefused as refused:
        sentence = refused.message.partition(f"{what}: ")[2]
        ours = [one for one in bounds if re.search(rf"\b{package_name(one)}\b", sentence)]
        if refused.hint is None and ours:
            refused.hint = f"Headway needs in its workers: {', '.join(ours)}"
        raise
    names = locked_names(found["all"].read_text())
    needs_torch = "torch" in names
    if needs_torch and worker.torch is None:
        raise RequirementsRefused(
            f"code.requirements: {file.path.name} needs torch, and which one workers have is not "
            "known",
            "in the target: torch: VERSION, that of its image",
        )
    header = f"{HEADER}{json.dumps(_facts(worker, needs_torch))}\n"
    if file.has_hashes:
        return header + file.text
    if not needs_torch:
        return header + found["all"].read_text()
    found["own"].write_text("\n".join([*OWN, ""]))
    without = [*compile_, "-c", str(found["all"]), "-o", str(found["some"])]
    uv.run(without, what, RESOLVE_SECONDS - seconds)
    return header + found["some"].read_text()


def _install(file: RequirementsFile, worker: WorkerPython, folder: Path, uv: Uv, say: Say) -> None:
    lock, site = folder / LOCK, folder / SITE
    names = locked_names(lock.read_text())
    number = f"{len(names)} package{'' if len(names) == 1 else 's'}"
    what = f"installing {number} of {file.path.name}"
    say(what)
    site.mkdir()
    if names:
        exactly = ["--require-hashes", "--no-deps", "--target", str(site), "-r", str(lock)]
        uv.run(["pip", "install", *exactly, *_for_worker(worker)], what, INSTALL_SECONDS)
    for own, why in OWN.items():
        if any((site / name).exists() for name in (own, f"{own}.py")):
            package = _owner(site, own)
            raise RequirementsRefused(
                f"code.requirements: {package} has a module {own!r}, which would replace {own}: "
                f"{why}",
                f"remove {package} from {file.path.name}",
            )
    for script in (site / "bin").glob("*"):
        _make_movable(script)
    for left in folder.glob("*.txt"):
        if left.name != LOCK:
            left.unlink()


def _for_worker(worker: WorkerPython) -> list[str]:
    python = ["--python", sys.executable, "--no-python-downloads"]
    kind = ["--python-version", worker.python]
    return [
        *("--only-binary", ":all:"),
        *python,
        *kind,
        *("--python-platform", PLATFORM.format(worker.architecture)),
    ]


def _bounds(is_script: bool) -> Iterator[str]:
    """What Headway itself needs in a worker: packages come before those of the image, and must not
    break it. A script worker does not train."""
    try:
        lines = requires("headway") or []
    except PackageNotFoundError:
        lines = []
    for line in lines:
        requirement, _, marker = line.partition(";")
        is_ours = not marker or (not is_script and re.search(r"extra == .train.", marker))
        if is_ours and not requirement.startswith("torch"):
            yield requirement.strip()


def _installed_here() -> list[tuple[str, str]]:
    found = {one.metadata["Name"]: one.version for one in distributions()}
    return sorted((name, version) for name, version in found.items() if name and name not in OWN)


def _facts(worker: WorkerPython, needs_torch: bool) -> dict[str, str | None]:
    torch = _public(worker.torch) if needs_torch and worker.torch is not None else None
    return {"python": worker.python, "torch": torch, "architecture": worker.architecture}


def _worker_of(lock: str) -> WorkerPython:
    return WorkerPython(**json.loads(lock.partition("\n")[0].removeprefix(HEADER)))


def _named(worker: WorkerPython) -> str:
    torch = f", torch {_public(worker.torch)}" if worker.torch is not None else ""
    return f"Python {worker.python} on {worker.architecture}{torch}"


def _public(version: str) -> str:
    """Without the part that names the hardware it was built for."""
    return version.partition("+")[0]


def _key(file: RequirementsFile, worker: WorkerPython, bounds: Sequence[str]) -> str:
    facts = [CONTENT, file.text, worker.python, worker.architecture, *sorted(bounds)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _cache() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "headway" / "packages"


def _refusal(what: str, output: str, program: str) -> RequirementsRefused:
    """uv's own sentence: it names the package, and why."""
    if "unexpected argument" in output:
        return RequirementsRefused(
            f"{program} is too old: {output.splitlines()[0]}", "pip install 'headway[requirements]'"
        )
    text, _, advice = output.partition("\nhint:")
    lines = [re.sub(r"^\s*(error:|cause:|Caused by:)?\s*", "", line) for line in text.splitlines()]
    kept = [
        line for line in lines if line and not line.startswith(("Resolved", "Using", "Prepared"))
    ]
    sentence = " ".join(kept).replace(" Because", ": because", 1)
    hint = " ".join(advice.split()) or None
    if "no usable wheels" in sentence or "building from source is disabled" in sentence:
        hint = (
            "only wheels are installed: another version may have one for this Python and "
            "processor; else install the package in the image"
        )
    elif "Failed to fetch" in sentence:
        hint = "is the package index reachable from here? Run the same command again"
    elif "torch" in sentence:
        hint = "torch is the workers' own: choose versions that fit it, or an image with another"
    return RequirementsRefused(f"code.requirements: {what}: {sentence[:2000]}", hint)


# Files


def _pack(site: Path, path: Path) -> None:
    """Names in order, no times and no owners: the same files have the same digest."""
    half = path.with_name(f".{path.name}-{uuid4().hex[:8]}")
    try:
        with (
            half.open("wb") as file,
            gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for each in sorted(site.rglob("*")):
                name = each.relative_to(site).as_posix()
                # Python writes __pycache__ when they are imported here.
                if "__pycache__" not in name.split("/") and each.is_file():
                    entry = tarfile.TarInfo(name)
                    entry.size = each.stat().st_size
                    entry.mode = 0o755 if each.stat().st_mode & 0o100 else 0o644
                    with each.open("rb") as content:
                        archive.addfile(entry, content)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def _make_movable(script: Path) -> None:
    """A command begins with the path of an interpreter of this machine."""
    first, _, rest = script.read_bytes().partition(b"\n")
    if first.startswith(b"#!") and b"python" in first:
        script.unlink()  # it may be a second name of a file in uv's own cache
        script.write_bytes(b"#!/usr/bin/env python3\n" + rest)
        script.chmod(0o755)


def _owner(site: Path, module: str) -> str:
    for record in site.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines()
        if any(line.startswith((f"{module}/", f"{module}.py,")) for line in lines):
            return record.parent.name.partition("-")[0]
    return "a package"
