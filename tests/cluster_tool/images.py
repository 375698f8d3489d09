"""Images as archives of our own making: no builder, no registry. Same input, same digest."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from cluster_tool import image_files
from cluster_tool.binaries import CACHE
from cluster_tool.commands import run
from cluster_tool.image_files import Entry, Files

PAUSE = "localhost/pause:1"
HEADWAY = "localhost/headway:test"
LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True)
class Image:
    """An archive that containerd imports."""

    name: str
    digest: str
    archive: Path

    @property
    def reference(self) -> str:
        """By digest, as targets want it."""
        return f"{self.name.rpartition(':')[0]}@{self.digest}"


def pause_image() -> Image:
    """What holds a pod's namespaces: it sleeps."""
    settings = {"Entrypoint": ["/bin/busybox", "sleep", "2147483647"]}
    facts = _facts(image_files.BUSYBOX.read_bytes())
    return kept_image(PAUSE, settings, facts, lambda scratch: image_files.pause_files())


def headway_image() -> Image:
    """The system of Headway's pods; Headway and its packages come by claims."""
    settings = {
        "User": f"{image_files.USER}:{image_files.USER}",
        "Env": ["PATH=/bin:/usr/bin", "HOME=/home/headway"],
        "Cmd": ["/bin/sh"],
    }
    facts = _facts("\n".join(image_files.input_facts()).encode())
    return kept_image(HEADWAY, settings, facts, image_files.headway_files)


def load(image: Image, socket: Path, name: str | None = None) -> None:
    """Into a containerd, where the kubelet finds it by its tag and by its digest, or by another
    `name` in place of that."""
    ctr = ("ctr", "--address", socket, "--namespace", "k8s.io", "images")
    run(*ctr, "import", image.archive)
    run(*ctr, "tag", "--force", image.name, name or image.reference)


def _facts(inputs: bytes) -> str:
    """Of what the image is made of, these two files among it."""
    ours = (Path(__file__), Path(image_files.__file__))
    return hashlib.sha256(b"".join([*(path.read_bytes() for path in ours), inputs])).hexdigest()


def kept_image(
    name: str,
    settings: dict[str, Any],
    facts: str,
    files: Callable[[Path], Files],
    base: Image | None = None,
) -> Image:
    """Return the image that was made of the same `facts` before, or make it, on top of `base`.
    `files` gets a folder for what has to be made first."""
    folder = CACHE / "images"
    short = name.rpartition("/")[2].partition(":")[0]
    known = folder / f"{short}-{facts[:32]}"
    if known.exists():
        digest = known.read_text()
        archive = folder / f"{digest.partition(':')[2]}.tar"
        if archive.exists():
            return Image(name, digest, archive)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        part = Path(scratch, "archive.tar")
        content, layer = files(Path(scratch, "files")), Path(scratch, "layer.tar")
        below = _layer_of(base, Path(scratch, "base.tar")) if base is not None else None
        digest = write_archive(part, name, settings, content, layer, below)
        archive = folder / f"{digest.partition(':')[2]}.tar"
        part.replace(archive)
    known.with_suffix(f".{os.getpid()}").write_text(digest)
    known.with_suffix(f".{os.getpid()}").replace(known)
    return Image(name, digest, archive)


def _layer_of(image: Image, into: Path) -> Path:
    """Copy the one layer of an image that was made here."""
    with tarfile.open(image.archive) as tar:
        manifest = json.load(tar.extractfile(_blob(image.digest)))  # type: ignore[arg-type]
        (described,) = manifest["layers"]
        source = tar.extractfile(_blob(described["digest"]))
        assert source is not None
        with into.open("wb") as file:
            shutil.copyfileobj(source, file)
    return into


def write_archive(
    archive: Path,
    name: str,
    settings: dict[str, Any],
    files: Files,
    layer: Path,
    below: Path | None = None,
) -> str:
    """In the OCI layout, with `below` as the first layer; its digest."""
    write_layer(layer, files)
    layers = {_digest_of(one): one for one in (below, layer) if one is not None}
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    where = {"architecture": machine, "os": "linux"}
    parts = {"type": "layers", "diff_ids": list(layers)}
    config = _json({**where, "config": settings, "rootfs": parts})
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CONFIG, _digest(config), len(config)),
            "layers": [
                _descriptor(LAYER, digest, one.stat().st_size) for digest, one in layers.items()
            ],
        }
    )
    described = _descriptor(MANIFEST, _digest(manifest), len(manifest))
    described.update(platform=where, annotations={"io.containerd.image.name": name})
    with tarfile.open(archive, "w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", _json({"schemaVersion": 2, "manifests": [described]}))
        for content in (config, manifest):
            _add(tar, _blob(_digest(content)), content)
        for digest, one in layers.items():
            with one.open("rb") as source:
                _add(tar, _blob(digest), source, one.stat().st_size)
    return _digest(manifest)


def write_layer(layer: Path, files: Files) -> None:
    """Sorted, without times and names: bytes depend on nothing but paths, modes and contents."""
    folders = {
        str(parent): Entry(0o755)
        for path in files
        for parent in PurePosixPath(path).parents
        if str(parent) != "/"
    }
    with tarfile.open(layer, "w", format=tarfile.GNU_FORMAT) as tar:
        for path, entry in sorted({**folders, **files}.items()):
            described = tarfile.TarInfo(path.lstrip("/"))
            described.mode = entry.mode
            described.uid = described.gid = entry.owner
            if entry.target is not None:
                described.type, described.linkname = tarfile.SYMTYPE, entry.target
                tar.addfile(described)
            elif entry.content is None:
                described.type = tarfile.DIRTYPE
                tar.addfile(described)
            else:
                content = entry.content
                data = content if isinstance(content, bytes) else content.read_bytes()
                described.size = len(data)
                tar.addfile(described, io.BytesIO(data))


def _add(tar: tarfile.TarFile, path: str, content: bytes | IO[bytes], size: int = 0) -> None:
    described = tarfile.TarInfo(path)
    source = io.BytesIO(content) if isinstance(content, bytes) else content
    described.size = len(content) if isinstance(content, bytes) else size
    tar.addfile(described, source)


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest, "size": size}


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _digest_of(path: Path) -> str:
    with path.open("rb") as source:
        return f"sha256:{hashlib.file_digest(source, 'sha256').hexdigest()}"


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
