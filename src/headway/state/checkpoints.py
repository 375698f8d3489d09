"""Checkpoints as files: manifests, which checkpoints count, and retention.

    checkpoints/step-00000300.g000002/
        rank-0.safetensors   tensors, or rows of them, that rank 0 of the writing node held
        rank-0.json          what is in it; written after it
        manifest.json        written last: all of the above with sizes and digests, and all scalars

Without a manifest there is no checkpoint. Every (step, generation) has its own folder, so no file
is ever overwritten.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, Literal

import xxhash
from pydantic import Field, ValidationError

from headway.errors import NotFound
from headway.spec.run_file import KeepConfig, RunFile
from headway.spec.run_identity import identity_digest
from headway.spec.section import Section
from headway.state.generations import Begun, Fences, taken_over_by
from headway.state.run_directory import MODEL, RunDirectory
from headway.state.store import Store
from headway.state.stored_file import READ_BYTES, StoredFile, WholeFile, content_is_right

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
SAMPLE = "evaluation"
"""Key among a checkpoint's scalars: the part of the validation sets that was evaluated, or `all`.
Missing in older checkpoints, whose evaluations took the first sequences of a set."""
ARITHMETIC = "arithmetic"
"""Key among the scalars: version of the arithmetic of a step. Missing: 1."""


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
    version: Literal[1, 2] = 2
    """Version of the checkpoint format. 1 had one digest for each file."""
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
    files: dict[FileName, StoredFile | WholeFile]
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


def found_checkpoints(directory: RunDirectory) -> list[FoundCheckpoint]:
    """Saves that have a manifest."""
    return [found for found in found_folders(directory) if found.has_manifest]


def steps_saved(directory: RunDirectory) -> list[int]:
    """Steps with a checkpoint that is not fenced, oldest first."""
    found = found_checkpoints(directory)
    known = fences_of(directory, found)
    return sorted({f.step for f in found if not fenced(f, known)})


def newest_saved(directory: RunDirectory) -> FoundCheckpoint | None:
    """The newest checkpoint that is not fenced."""
    fences = Fences(directory)
    for found in found_checkpoints(directory):
        if not fenced(found, fences.of([found.generation])):
            return found
    return None


def fences_of(directory: RunDirectory, found: Sequence[FoundCheckpoint]) -> Sequence[Begun]:
    """The generations that decide which of these count."""
    return Fences(directory).of(one.generation for one in found) if found else []


def fenced(found: FoundCheckpoint, known: Sequence[Begun]) -> str | None:
    """Why a checkpoint of an older generation does not count, or None."""
    later = taken_over_by(known, found.generation)
    if later is not None and found.step > later.first_step:
        return (
            f"generation {found.generation} wrote it, but generation {later.generation} resumed "
            f"from step {later.first_step} without it"
        )
    return None


def counts(found: FoundCheckpoint, directory: RunDirectory) -> bool:
    """Whether it is finished and not fenced."""
    return found.has_manifest and not fenced(found, fences_of(directory, [found]))


def write_manifest(store: Store, folder: str, manifest: CheckpointManifest) -> None:
    """Completes the checkpoint."""
    sealed = manifest.model_copy(update={"digest": _digest_of(manifest)})
    store.write(f"{folder}/{MANIFEST}", sealed.model_dump_json(indent=1).encode() + b"\n")


def _digest_of(manifest: CheckpointManifest) -> str:
    text = manifest.model_dump_json(exclude={"digest"})
    return xxhash.xxh3_128_hexdigest(text.encode())


def read_manifest(directory: RunDirectory, found: FoundCheckpoint) -> CheckpointManifest | str:
    """The manifest, or the reason why it is unusable."""
    try:
        content = directory.store.read(f"{found.folder}/{MANIFEST}")
        manifest = CheckpointManifest.model_validate_json(content)
    except ValidationError as error:
        return f"its manifest is damaged: {error.errors()[0]['msg']}"
    except FileNotFoundError:
        return "its manifest is missing"
    if (manifest.step, manifest.generation) != (found.step, found.generation):
        return f"its manifest belongs to step {manifest.step}, generation {manifest.generation}"
    if manifest.digest != _digest_of(manifest):
        return "its manifest is damaged: wrong digest"
    return manifest


def size_problem(store: Store, folder: str, manifest: CheckpointManifest) -> str | None:
    """The first file whose size is wrong, as a message, or None."""
    for name, stored in manifest.files.items():
        size = store.size(f"{folder}/{name}")
        if size is None:
            return f"{name} is missing"
        if size != stored.size:
            return f"{name} has {size} bytes, expected {stored.size}"
    return None


def candidates(
    directory: RunDirectory, step: int | None = None
) -> Iterator[tuple[FoundCheckpoint, CheckpointManifest | str]]:
    """Newest first, each with its manifest, or with the reason why it is unusable."""
    folders = found_folders(directory)
    known = fences_of(directory, folders)
    for found in folders:
        if step is not None and found.step != step:
            continue
        problem = fenced(found, known)
        if not found.has_manifest:
            problem = "it has no manifest: the save was not finished"
        manifest = problem or read_manifest(directory, found)
        if isinstance(manifest, CheckpointManifest):
            manifest = size_problem(directory.store, found.folder, manifest) or manifest
        yield found, manifest


def find_checkpoint(
    directory: RunDirectory, step: int | None = None
) -> tuple[FoundCheckpoint, CheckpointManifest]:
    """The newest intact checkpoint, or the one at `step`, with its content verified."""
    wrong = []
    for found, manifest in candidates(directory, step):
        if isinstance(manifest, CheckpointManifest):
            bad = [
                name
                for name, stored in manifest.files.items()
                if not content_is_right(directory.store, f"{found.folder}/{name}", stored)
            ]
            if not bad:
                return found, manifest
            manifest = f"{bad[0]} is damaged: wrong digest"
        wrong.append(f"{found.folder}: {manifest}")
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
    write_manifest(into.store, folder, taken)


def superseded(
    manifests: list[CheckpointManifest],
    known: Sequence[Begun],
    keep: KeepConfig,
    settled_step: float = inf,
) -> list[CheckpointManifest]:
    """Checkpoints to delete: neither among the last, nor the best, nor a milestone. A milestone is
    the first one since a step of `keep.every`: it comes later if another was being written then.

    Fenced checkpoints are deleted, and never displace valid ones. A checkpoint beyond
    `settled_step` is kept, and displaces none: it may still be fenced. Of two generations' saves of
    the same step, the newer is kept.
    """
    counting = [m for m in manifests if not fenced(FoundCheckpoint(m.step, m.generation), known)]
    unsettled = {(m.step, m.generation) for m in counting if m.step > settled_step}
    counting = [m for m in counting if m.step <= settled_step]
    counting.sort(key=lambda m: (m.step, m.generation))
    good = list({m.step: m for m in counting}.values())
    measured = [m for m in good if m.validation_loss is not None]
    best = [m for alike in _alike(measured) for m in sorted(alike, key=_by_loss)[: keep.best]]
    # Newest first: of those since the same step the oldest remains.
    milestones = {keep.every.newest_due(m.step): m for m in reversed(good)} if keep.every else {}
    milestones.pop(0, None)
    stay = {
        *(m.step for m in good[-keep.last :]),
        *(m.step for m in best),
        *(m.step for m in milestones.values()),
    }
    kept = {(m.step, m.generation) for m in good if m.step in stay} | unsettled
    return [m for m in manifests if (m.step, m.generation) not in kept]


def _alike(measured: list[CheckpointManifest]) -> Iterator[list[CheckpointManifest]]:
    """Groups whose losses are of the same sequences, and so can be compared."""
    for sample in {m.scalars.get(SAMPLE) for m in measured}:
        yield [m for m in measured if m.scalars.get(SAMPLE) == sample]


def _by_loss(manifest: CheckpointManifest) -> tuple[float, int]:
    assert manifest.validation_loss is not None
    return manifest.validation_loss, -manifest.step


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


class Retention:
    """Applies retention, for a saver that does so again and again: what never changes is read
    once. A run may keep hundreds of checkpoints, and have begun thousands of times."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._fences = Fences(directory)
        self._manifests: dict[FoundCheckpoint, CheckpointManifest] = {}
        """Without their tensors and files."""

    def apply(self, keep: KeepConfig, generation: int, settled_step: float = inf) -> None:
        """Deletes what is superseded, and unfinished saves of older generations. A damaged manifest
        is kept for inspection until a generation has started without it."""
        directory, folders = self._directory, found_folders(self._directory)
        known = self._fences.of(found.generation for found in folders)
        manifests = []
        for found in folders:
            if not found.has_manifest:
                continue
            manifest = self._manifests.get(found) or read_manifest(directory, found)
            if isinstance(manifest, CheckpointManifest):
                self._manifests[found] = manifest.model_copy(update={"tensors": {}, "files": {}})
                manifests.append(manifest)
            elif fenced(found, known):
                drop(directory, found.step, found.generation)
        for manifest in superseded(manifests, known, keep, settled_step):
            drop(directory, manifest.step, manifest.generation)
        if any(_is_left_over(found, generation) for found in folders):
            for found in found_folders(directory):  # again: it may have been finished meanwhile
                if _is_left_over(found, generation):
                    directory.store.remove(found.folder)
        self._fences.summarize()


def _is_left_over(found: FoundCheckpoint, generation: int) -> bool:
    return not found.has_manifest and found.generation < generation
