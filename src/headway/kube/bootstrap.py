"""Brings Headway into a worker's pod whose image has none. The worker's container runs this file:

    python3 FOLDER/bootstrap.py COMMAND

An init container of the coordinator's image has copied it there, with the wheels that ship with the
release, each named by its SHA-256, and `wheels.json`, which says what Headway requires and which
wheel is which (`kube/wheels.py`). What the image lacks is unpacked below FOLDER; what it has at a
version that is required is kept. Then the process becomes `headway COMMAND`.

It needs the standard library only, and starts on Python 3.7, to say that it is too old.

Exit codes: 2, the image lacks something, and all of it is said: the run fails. 7, the files cannot
be read or unpacked here: another pod may do better.
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import sys
import time
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # Python 3.7 could not evaluate these
    from collections.abc import Callable

    Plan = dict[str, Any]
    """`wheels.json`."""
    Wheel = dict[str, Any]
    Version = tuple[int, ...]

LIST, UNPACKED = "wheels.json", "unpacked"
BAD_INPUT, CANNOT_UNPACK = 2, 7
MACHINES = ("x86_64", "aarch64")


class CannotUnpack(Exception):
    """A fault of this machine, such as a full disk."""


class Image(NamedTuple):
    python: Version
    machine: str
    libc: str
    """Name and version, such as `glibc 2.36`; empty if it is another."""
    installed: Callable[[str], str | None]
    """Version of a package, by name; None if there is none."""

    @property
    def glibc(self) -> Version:
        return release(self.libc.split()[-1])[:2]


# What is needed


def required(plan: Plan, spec: str) -> Plan:
    """Return the plan for a run: which stores its spec uses decides what reaches them."""
    to_bring = dict(plan["requires"], **(plan["s3"] if "s3://" in spec else {}))
    in_image = dict(plan["image"], **(plan["gcs"] if "gs://" in spec else {}))
    return dict(plan, requires=to_bring, image=in_image)


def release(version: str) -> Version:
    """2.14.0 of `2.14.0a0+nv26.8`: vendors number what they build before a release like this."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in numbers.group().split(".")) if numbers else ()


def satisfies(version: str, asked: str) -> bool:
    """`asked` is such as `>=2,<3`. Only numbers of releases are compared."""
    return all(_is_within(release(version), one) for one in asked.split(",") if one)


def lowest(asked: str) -> str:
    """`>=2.14` of `<2.16,>=2.14`. What is newer than all that was tested may do as well."""
    return ",".join(one for one in asked.split(",") if not one.startswith("<"))


def _is_within(have: Version, one: str) -> bool:
    found = re.match(r"(>=|<=|==|!=|~=|>|<) *([0-9][^*]*?)(\.\*)?$", one)
    assert found is not None, one
    operator, text, is_prefix = found.groups()
    wanted = release(text)
    if operator == "~=":
        return have >= wanted and have[: len(wanted) - 1] == wanted[:-1]
    if is_prefix:
        return (have[: len(wanted)] == wanted) == (operator == "==")
    length = max(len(have), len(wanted))
    left, right = (numbers + (0,) * (length - len(numbers)) for numbers in (have, wanted))
    return {
        ">=": left >= right,
        "<=": left <= right,
        "==": left == right,
        "!=": left != right,
        ">": left > right,
        "<": left < right,
    }[operator]


def to_bring(plan: Plan, image: Image) -> list[str]:
    """Packages that Headway, or another that is brought, asks for, and that the image does not have
    at such a version. One that is kept has what it needs itself."""
    if image.installed("headway") == plan["version"]:
        return []
    brought, asked = ["headway"], dict(plan["requires"])
    while True:
        lacking = [
            name
            for name in sorted(asked)
            if name not in brought and not _has(image, name, asked[name])
        ]
        if not lacking:
            return brought
        brought += lacking
        for name in lacking:
            for other, more in plan["packages"][name]["requires"].items():
                asked[other] = f"{asked.get(other, '')},{more}"


def _has(image: Image, name: str, asked: str) -> bool:
    version = image.installed(name)
    return version is not None and satisfies(version, asked)


def wheel_of(name: str, plan: Plan, image: Image) -> Wheel | None:
    for wheel in plan["wheels"]:
        if wheel["name"] == name and _fits(wheel["tag"], image):
            found: Wheel = wheel
            return found
    return None


def _fits(tag: str, image: Image) -> bool:
    interpreters, abi, platforms = tag.split("-")
    if platforms == "any":
        return "py3" in interpreters.split(".")
    built_for = (3, int(interpreters[3:]))
    # With the stable ABI also for all later ones.
    if built_for != image.python and (abi != "abi3" or built_for > image.python):
        return False
    return any(
        machine == image.machine and (int(major), int(minor)) <= image.glibc
        for major, minor, machine in re.findall(r"manylinux_(\d+)_(\d+)_(\w+)", platforms)
    )


def instead(wheels: list[Wheel], image: Image) -> list[str]:
    """Those that the image has at a version that is not taken."""
    return [
        f"{wheel['name']} {version} -> {wheel['version']}"
        for wheel in wheels
        for version in [image.installed(wheel["name"])]
        if version is not None
    ]


def problems(plan: Plan, image: Image) -> list[str]:
    """All that keeps Headway from running in this image."""
    found = []
    first, last = plan["pythons"]
    if not release(first) <= image.python <= release(last):
        has = ".".join(map(str, image.python))
        found.append(f"it has Python {has}, and {first} to {last} is needed")
    if image.machine not in MACHINES:
        found.append(f"it is for {image.machine}, and {' or '.join(MACHINES)} is needed")
    if not image.libc.startswith("glibc"):
        found.append("its C library is not glibc (musl?)")
    for name, asked in plan["image"].items():
        version, needed = image.installed(name), name + lowest(asked)
        if version is None:
            found.append(f"it has no {name}, and {needed} is needed")
        elif not satisfies(version, lowest(asked)):
            found.append(f"it has {name} {version}, and {needed} is needed")
    if found:
        return found
    lacking = [name for name in to_bring(plan, image) if wheel_of(name, plan, image) is None]
    return [f"the coordinator's image has no wheel of {name} for {image.libc}" for name in lacking]


def untested(plan: Plan, image: Image) -> list[str]:
    """Packages of the image that are newer than all versions that Headway is tested with."""
    versions = [(name, asked, image.installed(name)) for name, asked in plan["image"].items()]
    return [
        f"{name} {version} is newer than those that Headway is tested with: {name}{asked}"
        for name, asked, version in versions
        if version is not None and not satisfies(version, asked)
    ]


# The program


def read_plan(folder: str) -> Plan:
    with open(os.path.join(folder, LIST)) as listed, open(os.environ["HEADWAY_SPEC"]) as spec:
        return required(json.load(listed), spec.read())


def this_image() -> Image:
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        libc = ""
    return Image(sys.version_info[:2], platform.machine(), libc, installed_version)


def installed_version(name: str) -> str | None:
    try:
        from importlib import metadata
    except ImportError:  # Python 3.7, which is too old anyway
        return None
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def say(words: str) -> None:
    print(words, flush=True)


def unpack(wheels: list[Wheel], folder: str) -> None:
    """Without commands and headers, which pip would put elsewhere."""
    for wheel in wheels:
        try:
            with zipfile.ZipFile(os.path.join(folder, wheel["sha256"])) as archive:
                names = [name for name in archive.namelist() if ".data/" not in name]
                archive.extractall(os.path.join(folder, UNPACKED), names)
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            words = f"{wheel['name']} cannot be unpacked in {folder}"
            raise CannotUnpack(f"{words}: {type(error).__name__}: {error}") from None


def bring(folder: str) -> int:
    """Return 0 if all is there."""
    plan, image = read_plan(folder), this_image()
    lacking = problems(plan, image)
    if lacking:
        say(f"error: Headway {plan['version']} cannot run in this image: {'; '.join(lacking)}")
        say("hint: headway image build --push REGISTRY/NAME --on TARGET builds one that has it")
        return BAD_INPUT
    for words in untested(plan, image):
        say(f"warning: {words}")
    found = [wheel_of(name, plan, image) for name in to_bring(plan, image)]
    wheels, began = [wheel for wheel in found if wheel is not None], time.monotonic()
    if not wheels:
        say(f"the image has Headway {plan['version']}")
        return 0
    unpack(wheels, folder)
    size, took = sum(wheel["size"] for wheel in wheels), time.monotonic() - began
    say(f"brought {len(wheels)} packages, {size / 1e6:.1f} MB, in {took:.1f} s")
    replaced = instead(wheels, image)
    if replaced:
        say(f"instead of the image's: {', '.join(replaced)}")
    return 0


def start(folder: str, command: list[str]) -> None:
    """Becomes `headway COMMAND`. By a path before that of the image, which keeps its own; without
    the working folder (-P), whose files may have the names of packages."""
    paths = [os.path.join(folder, UNPACKED), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.execv(sys.executable, [sys.executable, "-P", "-m", "headway.cli.main", *command])


def main(folder: str, command: list[str]) -> int:
    # As the first process of a pod it has no default handler.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    try:
        code = bring(folder)
    except (CannotUnpack, OSError, ValueError) as error:  # ValueError: damaged JSON
        say(f"error: {error}")
        return CANNOT_UNPACK
    if code == 0:
        start(folder, command)
    return code


if __name__ == "__main__":
    sys.exit(main(os.path.dirname(os.path.abspath(__file__)), sys.argv[1:]))
