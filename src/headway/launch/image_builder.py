"""Builds and pushes an image with docker, podman or buildah, which print to stderr meanwhile."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from headway.errors import BadInput, HeadwayError

BUILDERS = ("docker", "podman", "buildah")
STDERR = 2
"""File descriptor: stdout is for the digest."""


class ImageBuilder:
    """One of the programs, the first in PATH unless it is named."""

    def __init__(self, program: str | None = None) -> None:
        asked = (program,) if program else BUILDERS
        found = next(filter(shutil.which, asked), None)
        if found is None:
            verb = "is" if len(asked) == 1 else "are"
            raise BadInput(
                f"{', '.join(asked)} {verb} not in PATH",
                "apt-get install buildah; or build where one of docker, podman and buildah is",
            )
        self.program = found

    def pushed(self, context: Path, address: str, platform: str) -> str:
        """Build the folder, push it to this REGISTRY/NAME:TAG, and return its address by digest."""
        self._run(("build", "--platform", platform, "--tag", address, str(context)), "the build")
        name = address.rpartition(":")[0]
        login = f"{self.program} login {name.partition('/')[0]}"
        if self.program == "docker":
            self._run(("push", address), "the push", login)
            return f"{name}@{self._digest_in_docker(address, name)}"
        digest = context.parent / "digest"
        self._run(("push", "--digestfile", str(digest), address), "the push", login)
        return f"{name}@{digest.read_text().strip()}"

    def _digest_in_docker(self, address: str, name: str) -> str:
        """Docker writes no file with it, and lists the image under all names it was pushed to."""
        command = ("image", "inspect", "--format", "{{json .RepoDigests}}", address)
        listed: list[str] = json.loads(self._run(command, "the look at the image", is_read=True))
        digests = {known: digest for known, _, digest in (one.partition("@") for one in listed)}
        # Docker leaves out the name of its own registry.
        short = name.removeprefix("docker.io/").removeprefix("library/")
        found = digests.get(name) or digests.get(short)
        if found is None:
            raise HeadwayError(f"docker does not say under which digest it pushed {address}")
        return found

    def _run(
        self, arguments: Sequence[str], what: str, todo: str | None = None, is_read: bool = False
    ) -> str:
        ended = subprocess.run(
            [self.program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if is_read else STDERR,
            text=True,
        )
        if ended.returncode:
            raise HeadwayError(
                f"{what} failed: {self.program} {arguments[0]} ended with exit code "
                f"{ended.returncode}, and says why above",
                todo or self._another(),
            )
        return ended.stdout or ""

    def _another(self) -> str | None:
        others = [one for one in BUILDERS if one != self.program and shutil.which(one)]
        return f"to build with another program: --builder {others[0]}" if others else None
