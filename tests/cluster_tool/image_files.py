"""What is in Headway's image: this machine's Python, busybox, and the libraries they need.

torch and the other packages stay in `.venv`, which pods see by a claim; but the system libraries
that its shared objects ask for must be here.
"""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster_tool.commands import run

BUSYBOX = Path("/bin/busybox")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
USER = 1000
NOT_NEEDED = re.compile(
    r"(^|/)(site-packages|dist-packages|tests?|idlelib|turtledemo|tkinter|ensurepip|lib2to3"
    r"|config-[^/]*|__pycache__)(/|$)"
)
"""Of the standard library."""


@dataclass(frozen=True)
class Entry:
    """A file (its content, or where that is), a link (its target), or neither: a folder."""

    mode: int
    content: bytes | Path | None = None
    target: str | None = None
    owner: int = 0


Files = dict[str, Entry]
"""By absolute path in the image."""


def venv() -> Path:
    assert sys.prefix != sys.base_prefix, "the test cluster's pods run the packages of a venv"
    return Path(sys.prefix)


def pause_files() -> Files:
    return {"/bin/busybox": Entry(0o755, BUSYBOX)}


def headway_files(scratch: Path) -> Files:
    """`scratch` is a folder for what has to be made first."""
    files = {**_system(), **_commands(), **_python(), **_bytecode(scratch)}
    files.update(
        _libraries([*_shared_objects(venv()), *_shared_objects(_stdlib()), _python_file()])
    )
    return files


def input_facts() -> Iterator[str]:
    """Changes whenever the files might: cheap to ask, unlike the files themselves."""
    yield f"{sys.version} {sys.base_prefix} {venv()}"
    # Written anew whenever a library of the system comes, goes or changes.
    singles = (BUSYBOX, CERTIFICATES, Path("/etc/ld.so.cache"), _python_file())
    for path in (*singles, *_sources(), *_shared_objects(venv())):
        if path.exists():
            facts = path.stat()
            yield f"{path} {facts.st_size} {facts.st_mtime_ns}"


def _system() -> Files:
    bundle = str(CERTIFICATES)
    files = {
        "/etc/passwd": Entry(
            0o644,
            b"root:x:0:0::/:/bin/sh\nheadway:x:%d:%d::/home/headway:/bin/sh\n" % (USER, USER),
        ),
        "/etc/group": Entry(0o644, b"root:x:0:\nheadway:x:%d:\n" % USER),
        "/etc/nsswitch.conf": Entry(0o644, b"passwd: files\ngroup: files\nhosts: files dns\n"),
        "/home/headway": Entry(0o755, owner=USER),
        "/tmp": Entry(0o1777),
        "/var/tmp": Entry(0o1777),
        **{folder: Entry(0o755) for folder in ("/dev", "/proc", "/run", "/sys")},
    }
    if CERTIFICATES.exists():
        files[bundle] = Entry(0o644, CERTIFICATES)
        expected = ssl.get_default_verify_paths().openssl_cafile
        if expected != bundle:
            files[expected] = Entry(0o777, target=bundle)
    return files


def _commands() -> Files:
    names = run(BUSYBOX, "--list").split()
    links = {f"/bin/{name}": Entry(0o777, target="busybox") for name in names if name != "busybox"}
    return {**pause_files(), **links, "/usr/bin/env": Entry(0o777, target="/bin/busybox")}


def _python_file() -> Path:
    return (venv() / "bin" / "python").resolve()


def _stdlib() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _sources() -> Iterator[Path]:
    """The standard library's files that are needed."""
    root = _stdlib()
    for path in sorted(root.rglob("*")):
        if path.is_file() and not NOT_NEEDED.search(str(path.relative_to(root))):
            yield path


def _python() -> Files:
    """At the same place, because `.venv/bin/python` is a link to it, maybe by way of others."""
    files = {str(_python_file()): Entry(0o755, _python_file())}
    link = venv() / "bin" / "python"
    while link.is_symlink():
        target = link.parent / link.readlink()
        if target.is_symlink() and not target.is_relative_to(venv()):
            files[str(target)] = Entry(0o777, target=str(target.readlink()))
        link = target
    for path in _sources():
        files[str(path)] = Entry(0o755 if path.suffix == ".so" else 0o644, path)
    return files


def _bytecode(scratch: Path) -> Files:
    """Compiled here, since a pod cannot write it, and without it a worker starts seconds later.

    The machine's own bytecode is not taken: which files have some depends on what ran before.
    """
    copies = []
    for path in _sources():
        if path.suffix == ".py":
            copy = scratch / path.relative_to("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
            copies.append(copy)
    with tempfile.NamedTemporaryFile("w", suffix=".list") as listed:
        listed.write("\n".join(map(str, copies)))
        listed.flush()
        # The hash seed decides the order of sets in the bytecode.
        python = ("env", "PYTHONHASHSEED=0", sys.executable, "-m", "compileall", "-q")
        # Not by the sources' times: the archive has none.
        trusting = ("--invalidation-mode", "unchecked-hash")
        run(*python, *trusting, "-s", scratch, "-p", "/", "-i", listed.name, seconds=600)
    made = sorted(scratch.rglob("*.pyc"))
    return {f"/{path.relative_to(scratch)}": Entry(0o644, path) for path in made}


def _shared_objects(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*.so*") if path.is_file() and not path.is_symlink())
    return sorted(path for path in found if re.search(r"\.so(\.[0-9.]+)?$", path.name))


def _libraries(objects: list[Path]) -> Files:
    """Those not in `.venv`; with the loader, which ldd names as well."""
    command = ["env", "-u", "LD_LIBRARY_PATH", "ldd", *map(str, objects)]
    # It fails if a single one has no dynamic section, and says "not found" of what comes with GPUs.
    listed = subprocess.run(command, capture_output=True, text=True, timeout=600).stdout
    paths = {Path(found) for found in re.findall(r"(/\S+) \(0x[0-9a-f]+\)", listed)}
    needed = sorted(path for path in paths if not path.is_relative_to(venv()))
    assert any("ld-linux" in path.name for path in needed), "ldd found no loader"
    return {str(path): Entry(0o755, path.resolve()) for path in needed}
