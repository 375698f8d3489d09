"""Checkpoints as files: manifests, which checkpoints count, and retention.

    checkpoints/step-00000300.g000002/
        rank-0.safetensors   tensors, or rows of them, that rank 0 wrote
        rank-0.json          what is in it; written after it
        manifest.json        written last: all of the above with sizes and digests, and all scalars

Without a manifest there is no checkpoint, and none counts that the run's chain does not keep
(`chain`). Every (step, generation) has its own folder, so no file is ever overwritten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, Literal

import xxhash
from pydantic import Field, ValidationError

from headway.clock import Clock, stamp
from headway.errors import NotFound
from headway.spec.run_file import KeepConfig, RunFile
from headway.spec.run_identity import identity_digest
from headway.spec.section import Section
from headway.state.chain import Chain, KeptCheckpoint, Link, machine
from headway.state.run_directory import MODEL, RunDirectory
from headway.state.store import Store
from headway.state.stored_file import READ_BYTES, StoredFile, content_is_right

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
SAMPLE = "evaluation"
"""Key among a checkpoint's scalars: the part of the validation sets that was evaluated, or
`all`."""


FileName = Annotated[str, Field(pattern=r"^rank-[0-9]+\.safetensors$")]
"""A manifest cannot point outside its folder."""


class TensorChunk(Section):
    """Rows of one tensor in one file."""

    file: FileName
    """File name, beside the manifest."""
    start: int
    """First row of the tensor's first dimension."""
    rows: int
    """Number of rows; 1 for a tensor without dimensions."""
    offset: int
    """First byte in the file."""


class StoredTensor(Section):
    dtype: str
    """Data type, as safetensors names it."""
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    chunks: tuple[TensorChunk, ...]
    """Chunks in the order of their rows."""


class RankManifest(Section):
    """What one rank wrote."""

    file: str
    """File name, beside the manifest."""
    stored: StoredFile
    """Size and digests of the file."""
    tensors: dict[str, StoredTensor]
    """Tensors in the file, by name."""


class CheckpointManifest(Section):
    version: Literal[2] = 2
    """Version of the checkpoint format."""
    step: int
    """Steps committed so far."""
    generation: int
    """Generation that committed the step."""
    run: str
    """Name of the run that wrote it."""
    created: str
    """Time of the save."""
    headway: str
    """Version of Headway that wrote it."""
    identity: str
    """Digest of the settings that decide the weights (all but the length of the run)."""
    data_digest: str
    """Digest of the training set."""
    position: int
    """Samples consumed so far: the position in the data order."""
    validation_loss: float | None
    """Mean loss over the validation sets, if they were evaluated at this step."""
    scalars: dict[str, Any]
    """State that is not a tensor: loss scale, guard, ..."""
    tensors: dict[str, StoredTensor]
    """Tensors by name: `model/NAME` and `optimizer/NAME/KEY`."""
    files: dict[FileName, StoredFile]
    """Files of tensors, by name."""
    digest: str = ""
    """xxh3_128 digest of all the above as JSON without spaces, hexadecimal."""


@dataclass(frozen=True)
class FoundCheckpoint:
    """A folder of a save; it may turn out not to count."""

    step: int
    generation: int
    has_manifest: bool = True

    @property
    def folder(self) -> str:
        return folder_of(self.step, self.generation)


@dataclass(frozen=True)
class Unusable:
    """A checkpoint that counts, and why it cannot be used."""

    words: str
    is_missing: bool = False
    """Whether something of it is not there; else its content is wrong."""


def folder_of(step: int, generation: int) -> str:
    return f"{FOLDER}/step-{step:08d}.g{generation:06d}"


def found_folders(directory: RunDirectory) -> list[FoundCheckpoint]:
    """All saves, finished or not, newest first: by step, then by generation."""
    names = directory.store.names(FOLDER, partial=True)  # all that a killed save may have left
    whole = {name.removesuffix(f"/{MANIFEST}") for name in names if name.endswith(f"/{MANIFEST}")}
    found = []
    for folder in {name.rsplit("/", 1)[0] for name in names}:
        match = re.match(rf"^{FOLDER}/step-(\d{{8,}})\.g(\d{{6,}})$", folder)
        if match:
            found.append(FoundCheckpoint(int(match[1]), int(match[2]), folder in whole))
    return sorted(found, key=lambda one: (one.step, one.generation), reverse=True)


def saved_checkpoints(directory: RunDirectory) -> list[FoundCheckpoint]:
    """The checkpoints that count, newest first."""
    link = Chain(directory).last()
    kept = link.keeps if link is not None else ()
    return [FoundCheckpoint(*one.name) for one in newest_first(kept)]


def steps_saved(directory: RunDirectory) -> list[int]:
    """Steps with a checkpoint, oldest first."""
    return sorted({found.step for found in saved_checkpoints(directory)})


def newest_saved(directory: RunDirectory) -> FoundCheckpoint | None:
    return next(iter(saved_checkpoints(directory)), None)


def write_manifest(store: Store, folder: str, manifest: CheckpointManifest) -> KeptCheckpoint:
    """Complete the checkpoint. It counts once it is in the chain."""
    sealed = manifest.model_copy(update={"digest": _digest_of(manifest)})
    store.write(f"{folder}/{MANIFEST}", sealed.model_dump_json(indent=1).encode() + b"\n")
    return KeptCheckpoint(
        step=sealed.step,
        generation=sealed.generation,
        digest=sealed.digest,
        validation_loss=sealed.validation_loss,
        sample=sealed.scalars.get(SAMPLE),
        by=machine(),
    )


def _digest_of(manifest: CheckpointManifest) -> str:
    text = manifest.model_dump_json(exclude={"digest"})
    return xxhash.xxh3_128_hexdigest(text.encode())


def read_manifest(
    directory: RunDirectory, step: int, generation: int
) -> CheckpointManifest | Unusable:
    folder = folder_of(step, generation)
    try:
        content = directory.store.read(f"{folder}/{MANIFEST}")
        manifest = CheckpointManifest.model_validate_json(content)
    except ValidationError as error:
        return Unusable(f"its manifest is damaged: {error.errors()[0]['msg']}")
    except FileNotFoundError:
        return Unusable("its manifest is missing", is_missing=True)
    if (manifest.step, manifest.generation) != (step, generation):
        return Unusable(
            f"its manifest belongs to step {manifest.step}, generation {manifest.generation}"
        )
    if manifest.digest != _digest_of(manifest):
        return Unusable("its manifest is damaged: wrong digest")
    return manifest


def size_problem(store: Store, folder: str, manifest: CheckpointManifest) -> Unusable | None:
    """Return what is wrong with the first file whose size is."""
    for name, stored in manifest.files.items():
        size = store.size(f"{folder}/{name}")
        if size is None:
            return Unusable(f"{name} is missing", is_missing=True)
        if size != stored.size:
            return Unusable(f"{name} has {size} bytes, expected {stored.size}")
    return None


def look_at(directory: RunDirectory, kept: KeptCheckpoint) -> CheckpointManifest | Unusable:
    """Return the manifest of a checkpoint whose files are there and have the right sizes."""
    manifest = read_manifest(directory, *kept.name)
    if isinstance(manifest, CheckpointManifest):
        if manifest.digest != kept.digest:
            return Unusable("its manifest is not the one that was recorded")
        return size_problem(directory.store, folder_of(*kept.name), manifest) or manifest
    return manifest


def candidates(
    directory: RunDirectory, link: Link | None
) -> Iterator[tuple[FoundCheckpoint, CheckpointManifest | Unusable]]:
    """Yield the checkpoints that count, newest first."""
    for kept in newest_first(link.keeps if link is not None else ()):
        yield FoundCheckpoint(*kept.name), look_at(directory, kept)


def newest_first(keeps: Iterable[KeptCheckpoint]) -> list[KeptCheckpoint]:
    return sorted(keeps, key=lambda kept: kept.name, reverse=True)


def find_checkpoint(
    directory: RunDirectory, step: int | None = None
) -> tuple[FoundCheckpoint, CheckpointManifest]:
    """The newest intact checkpoint, or the one at `step`, with its content verified."""
    wrong = []
    for found, manifest in candidates(directory, Chain(directory).last()):
        if step is not None and found.step != step:
            continue
        if isinstance(manifest, CheckpointManifest):
            bad = [
                name
                for name, stored in manifest.files.items()
                if not content_is_right(directory.store, f"{found.folder}/{name}", stored)
            ]
            if not bad:
                return found, manifest
            manifest = Unusable(f"{bad[0]} is damaged: wrong digest")
        wrong.append(f"{found.folder}: {manifest.words}")
    if wrong:
        raise NotFound(f"run {directory.name} has no intact checkpoint:\n  " + "\n  ".join(wrong))
    steps = steps_saved(directory)
    if step is None or not steps:
        raise NotFound(f"run {directory.name} has no checkpoint yet")
    raise NotFound(
        f"run {directory.name} has no checkpoint at step {step}",
        f"steps with a checkpoint: {', '.join(str(known) for known in steps)}",
    )


def take_over(
    source: RunDirectory,
    found: FoundCheckpoint,
    manifest: CheckpointManifest,
    into: RunDirectory,
    run: RunFile,
    clock: Clock,
) -> None:
    """Copies a checkpoint of one run into another, as its starting point: generation 0."""
    folder = folder_of(found.step, 0)
    for name in manifest.files:
        with into.store.writing(f"{folder}/{name}") as output:
            size = manifest.files[name].size
            for content in source.store.read_ranges(f"{found.folder}/{name}", 0, size, READ_BYTES):
                output.write(content)
    # Small files that a new run needs before its first start.
    for name in (*source.store.names(MODEL), *source.store.names("tokenizer")):
        into.store.write(name, source.store.read(name))
    taken = manifest.model_copy(
        update={"generation": 0, "run": into.name, "identity": identity_digest(run)}
    )
    kept = write_manifest(into.store, folder, taken)
    Chain(into).adopt(kept, stamp(clock.now()))


def retained(
    keeps: Iterable[KeptCheckpoint], keep: KeepConfig, settled_step: float = inf
) -> tuple[KeptCheckpoint, ...]:
    """Return those that stay: the last, the best, and the milestones. A milestone is the first one
    since a step of `keep.every`: it comes later if another was being written then.

    A checkpoint beyond `settled_step` stays, and displaces none: the next generation may begin
    before it. Of two generations' saves of the same step, the newer stays.
    """
    counting = sorted(keeps, key=lambda kept: kept.name)
    unsettled = [one for one in counting if one.step > settled_step]
    good = list({one.step: one for one in counting if one.step <= settled_step}.values())
    measured = [one for one in good if one.validation_loss is not None]
    best = [one for alike in _alike(measured) for one in sorted(alike, key=_by_loss)[: keep.best]]
    # Newest first: of those since the same step the oldest remains.
    milestones = (
        {keep.every.newest_due(one.step): one for one in reversed(good)} if keep.every else {}
    )
    milestones.pop(0, None)
    stay = {one.name for one in (*good[-keep.last :], *best, *milestones.values())}
    return (*(one for one in good if one.name in stay), *unsettled)


def _alike(measured: list[KeptCheckpoint]) -> Iterator[list[KeptCheckpoint]]:
    """Groups whose losses are of the same sequences, and so can be compared."""
    for sample in {one.sample for one in measured}:
        yield [one for one in measured if one.sample == sample]


def _by_loss(kept: KeptCheckpoint) -> tuple[float, int]:
    assert kept.validation_loss is not None
    return kept.validation_loss, -kept.step


def drop(directory: RunDirectory, step: int, generation: int) -> None:
    """Deletes a checkpoint, the manifest first: an interrupted removal leaves no checkpoint."""
    folder = folder_of(step, generation)
    directory.store.remove(f"{folder}/{MANIFEST}")
    directory.store.remove(folder)


def clear_failed(directory: RunDirectory, step: int, generation: int) -> None:
    """Deletes the generation's failed saves before `step`: those without a manifest. Only its
    leader calls this, before it saves `step`."""
    for found in found_folders(directory):
        if not found.has_manifest and found.generation == generation and found.step < step:
            directory.store.remove(found.folder)


def clean_up(directory: RunDirectory, link: Link, generation: int) -> None:
    """Delete what does not count any more: checkpoints that the link does not keep, and unfinished
    saves of older generations. A checkpoint that a later generation was resumed without stays until
    that generation has saved one beyond it."""
    kept = {one.name for one in link.keeps}
    own = [one.step for one in link.keeps if one.generation == generation]
    saved_step = max(own, default=-1)
    for found in found_folders(directory):
        name = (found.step, found.generation)
        is_behind = found.step < saved_step if found.generation == generation else True
        if name in kept or found.generation > generation or not is_behind:
            continue
        if not found.has_manifest or found.step <= saved_step:
            drop(directory, *name)
