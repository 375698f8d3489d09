"""The wheels that ship with a release, for images with any Python and architecture of these:

    python docker/wheels.py fetch FOLDER    downloads them, exactly those of wheels.json
    python docker/wheels.py lock FOLDER     writes wheels.json for requirements/wheels.txt

By pip, from the index that it is set up for: no address is written down, hashes are.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from zipfile import ZipFile

try:
    from packaging.metadata import parse_email
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet
    from packaging.utils import canonicalize_name
except ImportError:  # where an image is built; `lock` alone needs them
    pass

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements" / "wheels.txt"
LOCK = ROOT / "src" / "headway" / "kube" / "wheels.json"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
GLIBC = (5, 12, 17, 24, 26, 27, 28)
"""Of manylinux_2_N. 2.28 is that of RHEL 8: images with a torch that Headway takes have it."""
IN_IMAGE = ("torch", "numpy")
"""Packages of the extra `train` that the workers' image must have: they are large."""
BROUGHT = ("transformers", "tokenizers", "safetensors")
"""Packages of the extra `train` that ship as well. Workers do without the others: for preparing
data, for chat templates, and for a tracker that is left out where it is not installed."""


def download(folder: Path, requirements: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for python in PYTHONS:
        for machine in MACHINES:
            tags = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC]
            options = [
                word for tag in [*tags, f"manylinux2014_{machine}"] for word in ("--platform", tag)
            ]
            for abi in (f"cp{python.replace('.', '')}", "abi3", "none"):
                options += ["--abi", abi]
            pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
            exactly = ["--no-deps", "--only-binary", ":all:", "--require-hashes"]
            kind = ["--python-version", python, "--implementation", "cp", *options]
            files = ["-r", str(requirements), "-d", str(folder)]
            subprocess.run([*pip, *exactly, *kind, *files], check=True)


def fetch(folder: Path) -> None:
    locked = json.loads(LOCK.read_text())["wheels"]
    hashes: dict[str, list[str]] = {}
    for wheel in locked:
        pinned = f"{wheel['name']}=={wheel['version']}"
        hashes.setdefault(pinned, []).append(f"--hash=sha256:{wheel['sha256']}")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.writelines(f"{pinned} {' '.join(allowed)}\n" for pinned, allowed in hashes.items())
        listed.flush()
        download(folder, Path(listed.name))
    found = {digest(path) for path in folder.glob("*.whl")}
    lacking = [wheel["name"] for wheel in locked if wheel["sha256"] not in found]
    assert not lacking, f"not downloaded: {lacking}"


def lock(folder: Path) -> None:
    download(folder, REQUIREMENTS)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    found = sorted(folder.glob("*.whl"))
    lines = {parts(path)[0]: metadata(path) for path in found}
    train = specifiers(extras["train"], {})
    made = {
        "pythons": [PYTHONS[0], PYTHONS[-1]],
        "requires": specifiers(project["dependencies"], lines)
        | {name: train[name] for name in BROUGHT},
        "s3": specifiers(extras["s3"], lines),
        "gcs": specifiers(extras["gcs"], {}),
        "image": {name: train[name] for name in IN_IMAGE},
        "packages": {
            name: {"version": version, "requires": specifiers(lines[name], lines)}
            for name, version, _ in map(parts, found)
        },
    }
    head = json.dumps(made, indent=1)[:-2]
    listed = ",\n".join(f"  {json.dumps(described(path))}" for path in found)
    LOCK.write_text(f'{head},\n "wheels": [\n{listed}\n ]\n}}\n')


def described(wheel: Path) -> dict[str, str | int]:
    name, version, tag = parts(wheel)
    size = wheel.stat().st_size
    return {"name": name, "version": version, "tag": tag, "size": size, "sha256": digest(wheel)}


def parts(wheel: Path) -> tuple[str, str, str]:
    name, version, *_, python, abi, platforms = wheel.name.removesuffix(".whl").split("-")
    return canonicalize_name(name), version, f"{python}-{abi}-{platforms}"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def metadata(wheel: Path) -> list[str]:
    """What it requires."""
    with ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return parse_email(archive.read(name))[0].get("requires_dist", [])


def needed(lines: list[str], extras: Collection[str]) -> Iterator[Requirement]:
    """What any of the Pythons and machines requires."""
    environments = [
        {"extra": extra, "python_version": python, "python_full_version": f"{python}.0"}
        | {"platform_machine": machine, "sys_platform": "linux", "platform_system": "Linux"}
        for extra in ("", *extras)
        for python in PYTHONS
        for machine in MACHINES
    ]
    for one in map(Requirement, lines):
        if one.marker is None or any(map(one.marker.evaluate, environments)):
            yield one


def specifiers(lines: list[str], packages: dict[str, list[str]]) -> dict[str, str]:
    """Also for what an extra of a package requires: whoever asks for it needs that, even if the
    package itself is there already."""
    found: dict[str, SpecifierSet] = {}
    for one in needed(lines, ()):
        name = canonicalize_name(one.name)
        plain = {str(other) for other in needed(packages.get(name, []), ())}
        extras = needed(packages.get(name, []), one.extras) if one.extras else ()
        for other in (one, *(other for other in extras if str(other) not in plain)):
            name = canonicalize_name(other.name)
            found[name] = found.get(name, SpecifierSet()) & other.specifier
    return {name: str(asked) for name, asked in found.items()}


if __name__ == "__main__":
    {"fetch": fetch, "lock": lock}[sys.argv[1]](Path(sys.argv[2]))
