"""Checkpoints as files: what a manifest says, which ones are whole, which one is the newest.

    checkpoints/step-00000300/
        model.safetensors       weights
        optimizer.safetensors   its moments, by parameter name
        manifest.json           written last; sizes and digests of the others, and all scalars

A save is made beside its place and renamed into it: it is whole or it does not exist.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any, Literal

import xxhash
from pydantic import ValidationError

from headway.errors import BadInput, NotFound
from headway.spec.run import Section
from headway.state.rundir import RunDirectory, flush_to_disk, write_whole

MANIFEST = "manifest.json"
READ_BYTES = 2**22


class StoredFile(Section):
    size: int
    """Bytes."""
    xxh3: str
    """Digest, 128 bits, hexadecimal."""


class CheckpointManifest(Section):
    version: Literal[1] = 1
    """Version of the checkpoint format."""
    step: int
    """Steps committed."""
    run: str
    """Name of the run that wrote it."""
    created: str
    """When."""
    headway: str
    """Version that wrote it."""
    data_digest: str
    """Of the training set."""
    scalars: dict[str, Any]
    """Loss scale, guard: everything that is no tensor."""
    files: dict[str, StoredFile]
    """Every file beside the manifest."""


def folder_of(directory: RunDirectory, step: int) -> Path:
    return directory.checkpoints / f"step-{step:08d}"


def steps_saved(directory: RunDirectory) -> list[int]:
    """Steps that have a manifest, oldest first."""
    found = []
    for folder in directory.checkpoints.glob("step-*"):
        match = re.match(r"^step-(\d{8,})$", folder.name)
        if match and (folder / MANIFEST).is_file():
            found.append(int(match[1]))
    return sorted(found)


def find_checkpoint(directory: RunDirectory, step: int | None = None) -> Path:
    """Folder of the checkpoint at `step`, or of the newest one."""
    steps = steps_saved(directory)
    if not steps:
        raise NotFound(f"run {directory.name} has no checkpoint yet")
    if step is not None and step not in steps:
        raise NotFound(
            f"run {directory.name} has no checkpoint at step {step}",
            f"it has {', '.join(str(known) for known in steps)}",
        )
    return folder_of(directory, steps[-1] if step is None else step)


def read_manifest(folder: Path) -> CheckpointManifest:
    """The manifest, after every file was held against its size and digest."""
    try:
        manifest = CheckpointManifest.model_validate_json((folder / MANIFEST).read_bytes())
    except ValidationError as error:
        raise BadInput(f"{folder / MANIFEST} is damaged: {error}") from None
    for name, stored in manifest.files.items():
        problem = _problem(folder / name, stored)
        if problem is not None:
            raise BadInput(f"checkpoint {folder}: {name} {problem}")
    return manifest


def _problem(path: Path, stored: StoredFile) -> str | None:
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    if size != stored.size:
        return f"has {size} bytes instead of {stored.size}"
    if digest_of(path) != stored.xxh3:
        return "does not have the content that was written"
    return None


def digest_of(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def partial_folder(directory: RunDirectory, step: int) -> Path:
    """An empty folder to write a save into."""
    partial = directory.checkpoints / f".partial-{step:08d}"
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    return partial


def describe_files(folder: Path) -> dict[str, StoredFile]:
    return {
        path.name: StoredFile(size=path.stat().st_size, xxh3=digest_of(path))
        for path in sorted(folder.iterdir())
    }


def commit(directory: RunDirectory, partial: Path, manifest: CheckpointManifest) -> Path:
    """Gives the save its manifest and its name, once all it lists is on the disk."""
    for name in manifest.files:
        flush_to_disk(partial / name)
    text = manifest.model_dump_json(indent=2)
    write_whole(partial / MANIFEST, text + "\n")
    folder = folder_of(directory, manifest.step)
    if folder.exists():
        # The same step again, as after a stop right at a resume. Removing gigabytes takes time, in
        # which a crash must not find the old one gone and the new one not yet there.
        old = directory.checkpoints / f".partial-{manifest.step:08d}-old"
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        partial.rename(folder)
        shutil.rmtree(old)
    else:
        partial.rename(folder)
    flush_to_disk(directory.checkpoints)
    return folder


def drop_old(directory: RunDirectory, keep_last: int) -> None:
    """Removes all but the newest, and what saves that were cut short have left."""
    for partial in directory.checkpoints.glob(".partial-*"):
        shutil.rmtree(partial)
    for step in steps_saved(directory)[:-keep_last]:
        folder = folder_of(directory, step)
        # Without its manifest it no longer counts, however far the removal gets.
        (folder / MANIFEST).unlink()
        shutil.rmtree(folder)
