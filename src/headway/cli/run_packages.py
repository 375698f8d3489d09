"""The packages of `code.requirements`, installed for the workers of a run."""

from __future__ import annotations

from collections.abc import Callable

from headway.cli.output import say
from headway.clock import SystemClock
from headway.errors import SpecError
from headway.launch.packages import InstalledPackages, Uv, install_packages
from headway.launch.requirements_file import RequirementsRefused, read_requirements
from headway.spec.load import Loaded
from headway.spec.resolve import WorkerPython
from headway.state.run_directory import RunDirectory
from headway.state.trusted_code import is_kept, keep_digest


def packages_of(
    loaded: Loaded, worker: Callable[[], WorkerPython], location: str
) -> InstalledPackages | None:
    """None if the run has no requirements. Keeps their lock in the run directory at `location`, as
    `packages/KEY.txt`, and takes the one that an earlier start has kept there: while requirements
    and workers are the same, so are the packages."""
    found = installed_packages(loaded, worker, location)
    if found is not None:
        if _kept(location, found.key) != found.lock:
            RunDirectory(location).store.write(_file(found.key), found.lock.encode())
        keep_digest(found.lock)
    return found


def installed_packages(
    loaded: Loaded, worker: Callable[[], WorkerPython], location: str
) -> InstalledPackages | None:
    """The same, without writing to the run directory."""
    code = loaded.run.code
    if code is None or code.requirements is None:
        return None
    try:
        file = read_requirements(loaded.folder / code.requirements)
        uv, is_script = Uv(say, SystemClock()), loaded.run.command is not None
        return install_packages(
            file, worker(), is_script, lambda key: _kept_by_user(location, key), uv, say
        )
    except RequirementsRefused as refused:
        where = str(loaded.located.mark(("code", "requirements")))
        raise SpecError(refused.message, where, refused.hint) from None


def _kept_by_user(location: str, key: str) -> str | None:
    """Return the lock that the run directory keeps, or None if it was not made on this machine:
    others may write there, and name packages of theirs."""
    lock = _kept(location, key)
    if lock is None or is_kept(lock):
        return lock
    kept = RunDirectory(location).store.location(_file(key))
    say(f"packages are resolved anew: {kept} was not made on this machine")
    return None


def _kept(location: str, key: str) -> str | None:
    try:
        return RunDirectory(location).store.read(_file(key)).decode()
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def _file(key: str) -> str:
    return f"packages/{key}.txt"
