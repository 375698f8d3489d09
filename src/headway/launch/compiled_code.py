"""Compiled code of a run: what the pods of a start have compiled, the pods that replace them fetch.

`compiled/MACHINE` in the run directory is one file: a MAC, then a tar of torch's cache folder. That
is code (pickles, Python files, shared libraries), the one exception to the rule that no pickle is
ever read, and others may be able to write there. So nothing of the tar is looked at before the MAC
fits. Its key is the run's: each launch makes a new one, which only the run's own pods have, so what
another run or an earlier start has written never fits.

The cache never stops a run: workers compile what is not fetched.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import platform
import tarfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread

from headway.clock import Clock
from headway.launch.hardware import ROOT, cuda_name
from headway.launch.packages import extract
from headway.state.store import Store

NUM_STEPS = 10
"""Steps after which a worker has compiled what it needs for training."""
SETTLED_SECONDS = 5.0
"""Age of the newest file from which on none is being written."""
LOOK_SECONDS = 600.0
"""Time between two searches for new files: an evaluation has graphs of its own."""
MOST_BYTES = 2**27
"""Maximum size of all files together: their archive is held in memory."""
MAC_BYTES = 32
CPU_FACTS = frozenset(
    {"vendor_id", "flags", "Features", "CPU implementer", "CPU part", "CPU variant", "isa"}
)
"""Lines of /proc/cpuinfo, on x86, ARM and RISC-V."""


class BadArchive(Exception):
    """The archive was not written by a pod of this start."""


class CompiledCode:
    """torch's cache folder on one node, and its archive in the run directory."""

    def __init__(
        self,
        store: Store,
        machine: str,
        key: bytes,
        folder: Path,
        clock: Clock,
        say: Callable[[str], None],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._store, self._name, self._key = store, f"compiled/{machine}", key
        self._folder, self._clock, self._say = folder, clock, say
        self._most_bytes = most_bytes
        self._known: set[str] = set()
        """Names of the files in the archive, and of those that are too large for it."""
        self._look_at = 0.0
        self._saving: Thread | None = None

    def fetch(self) -> None:
        """Fill the folder from the archive, before workers start."""
        try:
            size = self._store.size(self._name)
            if size is None or size > 2 * self._most_bytes:
                return
            archive = self._store.read_range(self._name, 0, size)
            self._known = set(unpack(archive, self._key, self._name, self._folder))
            self._say(f"fetched compiled code: {len(self._known)} files, {size >> 10} KiB")
        except BadArchive as error:
            self._say(f"{self._store.location(self._name)} is not used: {error}")
        except OSError as error:
            self._say(f"compiled code cannot be fetched: {error}")

    def keep(self, num_steps: int) -> None:
        """Write the archive if there is something new; called several times a second. `num_steps`
        were taken by the worker that has taken the fewest."""
        is_saving = self._saving is not None and self._saving.is_alive()
        now = self._clock.monotonic()
        if num_steps < NUM_STEPS or is_saving or now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        # The storage may take its time, and workers are looked after meanwhile.
        self._saving = Thread(target=self._save, name="compiled", daemon=True)
        self._saving.start()

    def _save(self) -> None:
        try:
            files = cached_files(self._folder)
            if files.keys() <= self._known:
                return
            facts = [path.stat() for path in files.values()]
            if self._clock.now() - max(fact.st_mtime for fact in facts) < SETTLED_SECONDS:
                self._look_at = self._clock.monotonic() + SETTLED_SECONDS
                return
            if sum(fact.st_size for fact in facts) > self._most_bytes:
                limit = f"{self._most_bytes >> 20} MiB"
                self._say(f"compiled code is too large to be kept: over {limit}")
            else:
                self._store.write(self._name, pack(files, self._key, self._name))
                self._say(f"kept compiled code for pods that start later: {len(files)} files")
            self._known = set(files)
        except OSError as error:
            self._say(f"compiled code cannot be kept: {error}")


def machine_kind(root: Path = ROOT) -> str:
    """Return a digest of what compiled code depends on beside the image, which all pods of a start
    share. torch's own keys do not know the processor, and a library that was built for another one
    ends a worker with SIGILL. `root` is the folder that holds proc."""
    driver = ""
    with suppress(OSError):
        driver = (root / "proc/driver/nvidia/version").read_text()
    facts = [platform.machine(), _processor(root / "proc/cpuinfo"), cuda_name(root), driver]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _processor(cpuinfo: Path) -> list[str]:
    lines = set()
    with suppress(OSError):
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in CPU_FACTS:
                lines.add(f"{name.strip()}: {' '.join(sorted(value.split()))}")
    return sorted(lines)


def cached_files(folder: Path) -> dict[str, Path]:
    """Return what a compiler has written, by name, without links, hidden or temporary files, and
    locks by which compilers of one machine wait for each other."""
    found = {path.relative_to(folder): path for path in sorted(folder.rglob("*"))}
    return {
        str(name): path
        for name, path in found.items()
        if path.is_file()
        and not path.is_symlink()
        and not any(part.startswith(".") for part in name.parts)
        and name.parts[0] != "locks"
        and name.suffix not in (".lock", ".tmp")
    }


def pack(files: Mapping[str, Path], key: bytes, kept_as: str) -> bytes:
    """Return the archive of files, by the names they have in it."""
    packed = io.BytesIO()
    # Names of kernels are those of all that was fused: USTAR has room for 100 characters of them.
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in files.items():
            tar.add(path, name)
    content = packed.getvalue()
    return _mac(content, key, kept_as) + content


def unpack(archive: bytes, key: bytes, kept_as: str, folder: Path) -> list[str]:
    """Write the archive's files below `folder` and return their names. Raises BadArchive before
    anything is written if the MAC does not fit."""
    mac, content = archive[:MAC_BYTES], archive[MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(content, key, kept_as)):
        raise BadArchive("it was changed, or written by an earlier start of the run")
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        names = tar.getnames()
        try:
            extract(tar, folder)
        except OSError:
            for name in names:  # one of them may be cut off
                Path(folder, name).unlink(missing_ok=True)
            raise
        return names


def _mac(content: bytes, key: bytes, kept_as: str) -> bytes:
    """Return the MAC over name and content: an archive that is moved to another name does not
    fit."""
    return hmac.digest(key, f"headway compiled\0{kept_as}\0".encode() + content, "sha256")
