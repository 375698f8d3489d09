"""The programs of the cluster: ready-made by checksum, else built with Go; the rest from Debian."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster_tool.commands import need_root, run

REPOSITORY = Path(__file__).parents[2]
READY_MADE = REPOSITORY.parent / "shared" / "kube" / "bin"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headway-tests"

KUBE_SOURCE = Path(__file__).parent / "kube"
KUBE_VERSION = "v1.34.4"
MODULES = {
    "coredns": ("github.com/coredns/coredns", "v1.15.0"),
    "karpenter-kwok": ("sigs.k8s.io/karpenter/kwok", "v1.14.1"),
    "kueue": ("sigs.k8s.io/kueue/cmd/kueue", "v0.17.0"),
    "kwok": ("sigs.k8s.io/kwok/cmd/kwok", "v0.8.0"),
    "versitygw": ("github.com/versity/versitygw/cmd/versitygw", "v1.8.0"),
}
PACKAGES = (
    *("containerd", "runc", "containernetworking-plugins", "etcd-server", "iptables"),
    *("conntrack", "socat", "busybox-static", "e2fsprogs", "iproute2", "util-linux"),
)
POLICY = Path("/usr/sbin/policy-rc.d")
"""Asked by Debian's packages whether they may start their services."""


def binary(name: str) -> Path:
    """The program's file. `kube` looks at its own name, so the version is in the folder's."""
    version = KUBE_VERSION if name == "kube" else MODULES[name][1]
    kept = CACHE / "bin" / f"{name}-{version}" / name
    if kept.is_file():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    made = kept.with_name(f"{name}.{os.getpid()}")
    packed = READY_MADE / f"{name}.xz"
    if packed.is_file():
        _unpack(packed, made)
    elif name == "kube":
        _build_kube(made)
    else:
        _install(name, made)
    made.chmod(0o755)
    made.replace(kept)
    return kept


def _unpack(packed: Path, made: Path) -> None:
    lines = (packed.parent / "SHA256SUMS").read_text().splitlines()
    sums = {name: checksum for checksum, name in (line.split() for line in lines)}
    content = packed.read_bytes()
    assert hashlib.sha256(content).hexdigest() == sums.get(packed.name), (
        f"{packed} is not what {packed.parent / 'SHA256SUMS'} says"
    )
    made.write_bytes(lzma.decompress(content))


def module_folder(path: str, version: str, checksum: str | None = None) -> Path:
    """Source of a Go module, downloaded if need be: some ship files that no program has in it. With
    `checksum`, as Go writes it, Go's database of checksums is not asked."""
    unasked = {"GONOSUMDB": path} if checksum is not None else {}
    words = ("mod", "download", "-json", f"{path}@{version}")
    told = json.loads(_go(*words, folder=CACHE, environment=unasked))
    assert checksum in (None, told["Sum"]), f"{path} {version} has the checksum {told['Sum']}"
    return Path(told["Dir"])


def _go(*words: str, folder: Path, environment: dict[str, str] | None = None) -> str:
    """What it prints."""
    go = shutil.which("go")
    assert go, (
        f"there is no Go here for `go {words[0]}`, and {READY_MADE} does not have what is needed: "
        "install Go, or name another cluster by HEADWAY_TEST_KUBECONFIG"
    )
    variables = {**os.environ, "CGO_ENABLED": "0", **(environment or {})}
    command = [go, *words]
    done = subprocess.run(
        command, cwd=folder, env=variables, check=True, timeout=3600, stdout=subprocess.PIPE
    )
    return done.stdout.decode()


def _build_kube(made: Path) -> None:
    print(f"building Kubernetes {KUBE_VERSION} with Go, about 8 minutes", file=sys.stderr)
    package = "k8s.io/component-base/version"
    major, minor, _ = KUBE_VERSION.removeprefix("v").split(".")
    versions = {"gitVersion": KUBE_VERSION, "gitMajor": major, "gitMinor": minor}
    flags = " ".join(f"-X {package}.{key}={value}" for key, value in versions.items())
    _go("build", "-trimpath", "-ldflags", f"-s -w {flags}", "-o", str(made), folder=KUBE_SOURCE)


def _install(name: str, made: Path) -> None:
    module, version = MODULES[name]
    print(f"building {name} {version} with Go, a few minutes", file=sys.stderr)
    folder = made.parent
    _go("install", f"{module}@{version}", folder=folder, environment={"GOBIN": str(folder)})
    (folder / module.rpartition("/")[2]).rename(made)


def install_packages() -> None:
    """What comes from Debian, without its services: the cluster starts its own processes."""
    missing = [package for package in PACKAGES if not _installed(package)]
    if not missing:
        return
    need_root()
    assert shutil.which("apt-get"), f"the test cluster needs these Debian packages: {missing}"
    print(f"installing {' '.join(missing)}", file=sys.stderr)
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    with _no_services():
        run("apt-get", "update", "-q", seconds=600)
        run("apt-get", "install", "-yq", "--no-install-recommends", *missing, seconds=600)


def _installed(package: str) -> bool:
    asked = ["dpkg-query", "--show", "--showformat", "${db:Status-Status}", package]
    answer = subprocess.run(asked, capture_output=True, text=True)
    return answer.stdout == "installed"


@contextmanager
def _no_services() -> Iterator[None]:
    """A machine that has a policy already keeps it."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()
