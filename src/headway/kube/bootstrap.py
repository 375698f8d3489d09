"""Brings Headway into a worker's pod whose image has none. An init container runs this file:

    python3 bootstrap.py fetch wheels.json FOLDER ADDRESS

and the worker's container then `python3 bootstrap.py start FOLDER COMMAND`.

It needs the standard library only, and starts on Python 3.7, to say that it is too old. The run's
ConfigMap has this file and `wheels.json`: what Headway requires, which wheels ship with the
release, and their SHA-256, by which they are asked for at ADDRESS, in the coordinator's pod. So
nobody on the way is trusted. What the image has at a version that is required is kept: in an image
that has this version of Headway, nothing is fetched.

Exit codes: 0, all is there. 2, the image lacks something, and all of it is said: the run fails. 7,
nothing came in time, or nothing right, or it cannot be unpacked here: another pod may do better.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import platform
import random
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

GIVE_UP_SECONDS = 600.0
CONNECT_SECONDS = 5.0
"""To one address: a name may still have that of a machine that was lost."""
TRANSFER_SECONDS = 60.0
"""For one read or write; the server gives a connection as long."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 5.0
MOST_WRONG = 3
"""Files that do not have the content they are named for, until that is no longer chance."""
PART_BYTES = 2**16
BAD_INPUT, NOTHING_CAME = 2, 7
MACHINES = ("x86_64", "aarch64")


class Lacking(Exception):
    """Something that will not come."""


class Broken(Exception):
    """What may work at the next attempt, or in another pod."""


class WrongContent(Broken):
    pass


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


def release(version: str) -> Version:
    """2.14.0 of `2.14.0a0+nv26.8`: vendors number what they build before a release like this."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in numbers.group().split(".")) if numbers else ()


def satisfies(version: str, asked: str) -> bool:
    """`asked` is such as `>=2,<3`. Only numbers of releases are compared."""
    return all(_is_within(release(version), one) for one in asked.split(",") if one)


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
        version = image.installed(name)
        if version is None:
            found.append(f"it has no {name}, and {name}{asked} is needed")
        elif not satisfies(version, asked):
            found.append(f"it has {name} {version}, and {name}{asked} is needed")
    if found:
        return found
    lacking = [name for name in to_bring(plan, image) if wheel_of(name, plan, image) is None]
    return [f"no wheel of {name} ships for {image.libc}" for name in lacking]


# Fetching it


class Server:
    """One connection for all files, for as long as it lasts."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._connection: http.client.HTTPConnection | None = None

    def get(self, wheel: Wheel, path: str) -> None:
        try:
            self._get(wheel["sha256"], wheel["size"], path)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Broken(f"{type(error).__name__}: {error}") from None
        except (Broken, Lacking):
            self.close()
            raise

    def _get(self, sha256: str, size: int, path: str) -> None:
        if self._connection is None:
            made = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_SECONDS)
            made.connect()
            made.sock.settimeout(TRANSFER_SECONDS)
            self._connection = made
        self._connection.request("GET", f"/{sha256}")
        answer = self._connection.getresponse()
        if answer.status == 404:
            raise Lacking
        if answer.status != 200:
            raise Broken(f"HTTP {answer.status}")
        digest, received = hashlib.sha256(), 0
        with open(path, "wb") as file:
            while received <= size:
                part = answer.read(PART_BYTES)
                if not part:
                    break
                received += len(part)
                digest.update(part)
                file.write(part)
        if received != size:
            raise Broken(f"{received} of {size} bytes came")
        if digest.hexdigest() != sha256:
            raise WrongContent(f"content other than {sha256}")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def fetch(wheels: list[Wheel], address: str, folder: str, clock: Any = time) -> None:
    """Unpacked into the folder once all are whole: until then, others may wait for our place.
    Raises Lacking or Broken."""
    server, said, num_wrong = Server(address), "", 0
    for wheel in wheels:
        deadline, pause = clock.monotonic() + GIVE_UP_SECONDS, FIRST_PAUSE_SECONDS
        while True:
            try:
                server.get(wheel, os.path.join(folder, wheel["sha256"]))
                break
            except Lacking:
                raise Lacking(_not_served(wheel)) from None
            except Broken as broken:
                words = f"{wheel['name']} from {address}: {broken}"
                num_wrong += isinstance(broken, WrongContent)
                if num_wrong >= MOST_WRONG:
                    raise Broken(words) from None
                if clock.monotonic() + pause > deadline:
                    raise Broken(f"waited {GIVE_UP_SECONDS:.0f} s for {words}") from None
                if words != said:
                    said = words
                    say(f"waiting for {words}")
                # Spread out: thousands may wait for a place.
                clock.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    server.close()
    for wheel in wheels:
        unpack(wheel, folder)


def _not_served(wheel: Wheel) -> str:
    what = f"{wheel['name']} {wheel['version']}"
    if wheel["name"] == "headway":
        return f"the coordinator's image has other files of {what} than the client has"
    return f"the coordinator's image does not have {what}"


def unpack(wheel: Wheel, folder: str) -> None:
    """Without commands and headers, which pip would put elsewhere. Raises Broken: its content is
    right, so it is this machine."""
    path = os.path.join(folder, wheel["sha256"])
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if ".data/" not in name]
            archive.extractall(folder, names)
        os.remove(path)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        words = f"{wheel['name']} cannot be unpacked in {folder}"
        raise Broken(f"{words}: {type(error).__name__}: {error}") from None


# The program


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


def fetched(listed: str, folder: str, address: str) -> int:
    # As the first process of a pod it has no default handler.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    with open(listed) as file:
        plan = json.load(file)
    image, version = this_image(), plan["version"]
    lacking = problems(plan, image)
    if lacking:
        return refuse(version, lacking)
    wheels = [wheel_of(name, plan, image) for name in to_bring(plan, image)]
    if not wheels:
        say(f"the image has Headway {version}")
        return 0
    found, began = [wheel for wheel in wheels if wheel is not None], time.monotonic()
    try:
        fetch(found, address, folder)
    except Lacking as error:
        return refuse(version, [str(error)])
    except Broken as error:
        say(f"error: {error}")
        return NOTHING_CAME
    size, took = sum(wheel["size"] for wheel in found), time.monotonic() - began
    say(f"brought {len(found)} packages, {size / 1e6:.1f} MB, in {took:.1f} s")
    replaced = instead(found, image)
    if replaced:
        say(f"instead of the image's: {', '.join(replaced)}")
    return 0


def start(folder: str, *command: str) -> None:
    """Becomes `headway COMMAND`. By a path before that of the image, which keeps its own; without
    the working folder (-P), whose files may have the names of packages."""
    paths = [folder, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.execv(sys.executable, [sys.executable, "-P", "-m", "headway.cli.main", *command])


def refuse(version: str, lacking: list[str]) -> int:
    say(f"error: Headway {version} cannot run in this image: {'; '.join(lacking)}")
    say("hint: headway image build --push REGISTRY/NAME --on TARGET builds one that has it")
    return BAD_INPUT


if __name__ == "__main__":
    if sys.argv[1] == "start":
        start(*sys.argv[2:])
    sys.exit(fetched(*sys.argv[2:]))
