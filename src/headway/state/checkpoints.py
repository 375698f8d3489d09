"""Checkpoints as files: what a manifest says, which ones count, and which ones stay.

    checkpoints/step-00000300.g000002/
        rank-0.safetensors   tensors, or rows of them, that rank 0 of the writing node held
        rank-0.json          what is in it; written after it
        manifest.json        written last: all of the above with sizes and digests, and all scalars

Without a manifest there is no checkpoint. Every (step, generation) has its own folder, so nothing
that was written is written over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, Literal

import xxhash
from pydantic import Field, ValidationError

from headway.errors import NotFound
from headway.spec.changes import identity_digest
from headway.spec.run import Keep, RunFile, Section
from headway.state.generations import Generation, generations, taken_over_by
from headway.state.rundir import RunDirectory
from headway.state.store import Store

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
READ_BYTES = 2**23
SAMPLE = "evaluation"
"""Among a checkpoint's scalars: which part of the validation sets its loss is of, or `all`.
Missing in checkpoints from when evaluations took the first sequences of a set."""
ARITHMETIC = "arithmetic"
"""Also there: the version of the rule that says which numbers a step computes with. Missing: 1."""


FileName = Annotated[str, Field(pattern=r"^rank-[0-9]+\.safetensors$")]
"""So a manifest cannot point outside its folder."""


class StoredFile(Section):
    size: int
    """Bytes."""
    xxh3: str
    """Digest, 128 bits, hexadecimal."""


class Chunk(Section):
    """Rows of one tensor in one file."""

    file: FileName
    """Name beside the manifest."""
    start: int
    """First row of the tensor's first dimension."""
    rows: int
    """How many; 1 for a tensor without dimensions."""
    offset: int
    """First byte in the file."""


class StoredTensor(Section):
    dtype: str
    """As safetensors names it."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    chunks: tuple[Chunk, ...]
    """In the order of their rows."""


class Part(Section):
    """What one rank wrote."""

    file: str
    """Name beside the manifest."""
    stored: StoredFile
    """Its size and digest."""
    tensors: dict[str, StoredTensor]
    """Its chunks, by the tensor's name."""


class CheckpointManifest(Section):
    version: Literal[1] = 1
    """Version of the checkpoint format."""
    step: int
    """Steps committed."""
    generation: int
    """Of the commit."""
    run: str
    """Name of the run that wrote it."""
    created: str
    """When."""
    headway: str
    """Version that wrote it."""
    identity: str
    """Digest of the settings that decide the weights (all but the length of the run)."""
    data_digest: str
    """Of the training set."""
    position: int
    """Samples consumed: where the order goes on."""
    validation_loss: float | None
    """Mean over the validation sets, if they were evaluated at this step."""
    scalars: dict[str, Any]
    """Loss scale, guard: everything that is no tensor."""
    tensors: dict[str, StoredTensor]
    """Every tensor: `model/NAME` and `optimizer/NAME/KEY`."""
    files: dict[FileName, StoredFile]
    """Every file of tensors."""
    digest: str = ""
    """Of all the above, as JSON without spaces: xxh3, 128 bits, hexadecimal."""


@dataclass(frozen=True)
class Found:
    """A folder of a save, which may still prove not to count."""

    step: int
    generation: int
    has_manifest: bool = True

    @property
    def folder(self) -> str:
        return folder_of(self.step, self.generation)


def folder_of(step: int, generation: int) -> str:
    return f"{FOLDER}/step-{step:08d}.g{generation:06d}"


def found_folders(directory: RunDirectory) -> list[Found]:
    """Every save that was ever begun, newest first: by step, then by generation."""
    names = directory.store.names(FOLDER)
    whole = {name.removesuffix(f"/{MANIFEST}") for name in names if name.endswith(f"/{MANIFEST}")}
    found = []
    for folder in {name.rsplit("/", 1)[0] for name in names}:
        match = re.match(rf"^{FOLDER}/step-(\d{{8,}})\.g(\d{{6,}})$", folder)
        if match:
            found.append(Found(int(match[1]), int(match[2]), folder in whole))
    return sorted(found, key=lambda one: (one.step, one.generation), reverse=True)


def found_checkpoints(directory: RunDirectory) -> list[Found]:
    """Those that have a manifest."""
    return [found for found in found_folders(directory) if found.has_manifest]


def steps_saved(directory: RunDirectory) -> list[int]:
    """Steps with a checkpoint that counts by its name, oldest first."""
    known = generations(directory)
    return sorted({f.step for f in found_checkpoints(directory) if not fenced(f, known)})


def fenced(found: Found, known: list[Generation]) -> str | None:
    """Why the generation that wrote it had no right to, or None."""
    later = taken_over_by(known, found.generation)
    if later is not None and found.step > later.first_step:
        return (
            f"generation {found.generation} wrote it, and generation {later.generation} has begun "
            f"at step {later.first_step} without it"
        )
    return None


def counts(found: Found, directory: RunDirectory) -> bool:
    """By its name: it was finished, and no generation has begun without it."""
    return found.has_manifest and not fenced(found, generations(directory))


def write_manifest(store: Store, folder: str, manifest: CheckpointManifest) -> None:
    """With this the checkpoint exists."""
    sealed = manifest.model_copy(update={"digest": _digest_of(manifest)})
    store.write(f"{folder}/{MANIFEST}", sealed.model_dump_json(indent=1).encode() + b"\n")


def _digest_of(manifest: CheckpointManifest) -> str:
    text = manifest.model_dump_json(exclude={"digest"})
    return xxhash.xxh3_128_hexdigest(text.encode())


def read_manifest(directory: RunDirectory, found: Found) -> CheckpointManifest | str:
    """The manifest, or what is wrong with it."""
    try:
        content = directory.store.read(f"{found.folder}/{MANIFEST}")
        manifest = CheckpointManifest.model_validate_json(content)
    except ValidationError as error:
        return f"its manifest is damaged: {error.errors()[0]['msg']}"
    except FileNotFoundError:
        return "its manifest is missing"
    if (manifest.step, manifest.generation) != (found.step, found.generation):
        return f"its manifest is of step {manifest.step}, generation {manifest.generation}"
    if manifest.digest != _digest_of(manifest):
        return "its manifest does not have the content that was written"
    return manifest


def size_problem(store: Store, folder: str, manifest: CheckpointManifest) -> str | None:
    """What a look at the files' sizes tells."""
    for name, stored in manifest.files.items():
        size = store.size(f"{folder}/{name}")
        if size is None:
            return f"{name} is missing"
        if size != stored.size:
            return f"{name} has {size} bytes instead of {stored.size}"
    return None


def content_is_right(store: Store, folder: str, name: str, stored: StoredFile) -> bool:
    """Whether a file still has the content that was written. Reads all of it."""
    digest = xxhash.xxh3_128()
    for start in range(0, stored.size, READ_BYTES):
        digest.update(store.read_range(f"{folder}/{name}", start, READ_BYTES))
    return digest.hexdigest() == stored.xxh3


def candidates(
    directory: RunDirectory, step: int | None = None
) -> Iterator[tuple[Found, CheckpointManifest | str]]:
    """Newest first; each with its manifest, or with what is already known to be wrong with it."""
    known = generations(directory)
    for found in found_folders(directory):
        if step is not None and found.step != step:
            continue
        problem = fenced(found, known)
        if not found.has_manifest:
            problem = "it has no manifest: the save was never finished"
        manifest = problem or read_manifest(directory, found)
        if isinstance(manifest, CheckpointManifest):
            manifest = size_problem(directory.store, found.folder, manifest) or manifest
        yield found, manifest


def find_checkpoint(
    directory: RunDirectory, step: int | None = None
) -> tuple[Found, CheckpointManifest]:
    """The newest good one, or the one at `step`, its contents verified."""
    wrong = []
    for found, manifest in candidates(directory, step):
        if isinstance(manifest, CheckpointManifest):
            bad = [
                name
                for name, stored in manifest.files.items()
                if not content_is_right(directory.store, found.folder, name, stored)
            ]
            if not bad:
                return found, manifest
            manifest = f"{bad[0]} does not have the content that was written"
        wrong.append(f"{found.folder}: {manifest}")
    if wrong:
        raise NotFound(f"run {directory.name} has no good checkpoint:\n  " + "\n  ".join(wrong))
    steps = steps_saved(directory)
    if step is None or not steps:
        raise NotFound(f"run {directory.name} has no checkpoint yet")
    raise NotFound(
        f"run {directory.name} has no checkpoint at step {step}",
        f"it has {', '.join(str(known) for known in steps)}",
    )


def take_over(
    source: RunDirectory,
    found: Found,
    manifest: CheckpointManifest,
    into: RunDirectory,
    run: RunFile,
) -> None:
    """Puts a checkpoint of one run into another, as what that one begins with: generation 0."""
    folder = folder_of(found.step, 0)
    for name in manifest.files:
        with into.store.writing(f"{folder}/{name}") as output:
            for start in range(0, manifest.files[name].size, READ_BYTES):
                output.write(source.store.read_range(f"{found.folder}/{name}", start, READ_BYTES))
    # The small parts: what a new run needs before it has started once.
    for name in (*source.store.names("model"), *source.store.names("tokenizer")):
        into.store.write(name, source.store.read(name))
    taken = manifest.model_copy(
        update={"generation": 0, "run": into.name, "identity": identity_digest(run)}
    )
    write_manifest(into.store, folder, taken)


def superseded(
    manifests: list[CheckpointManifest],
    known: list[Generation],
    keep: Keep,
    settled_step: float = inf,
) -> list[CheckpointManifest]:
    """Which checkpoints retention lets go: neither among the last, nor the best, nor a milestone.

    Those that do not count are not kept for their own sake, nor do they push out good ones; nor
    does one beyond `settled_step`, which stays: it may turn out not to count. Of the same step by
    two generations, the newer stays.
    """
    counting = [m for m in manifests if not fenced(Found(m.step, m.generation), known)]
    unsettled = {(m.step, m.generation) for m in counting if m.step > settled_step}
    counting = [m for m in counting if m.step <= settled_step]
    counting.sort(key=lambda m: (m.step, m.generation))
    good = list({m.step: m for m in counting}.values())
    measured = [m for m in good if m.validation_loss is not None]
    best = [m for alike in _alike(measured) for m in sorted(alike, key=_by_loss)[: keep.best]]
    every = int(keep.every.amount) if keep.every else None
    stay = {
        *(m.step for m in good[-keep.last :]),
        *(m.step for m in best),
        *(m.step for m in good if every and m.step % every == 0),
    }
    kept = {(m.step, m.generation) for m in good if m.step in stay} | unsettled
    return [m for m in manifests if (m.step, m.generation) not in kept]


def _alike(measured: list[CheckpointManifest]) -> Iterator[list[CheckpointManifest]]:
    """Those whose losses are of the same sequences, and so can be compared."""
    for sample in {m.scalars.get(SAMPLE) for m in measured}:
        yield [m for m in measured if m.scalars.get(SAMPLE) == sample]


def _by_loss(manifest: CheckpointManifest) -> tuple[float, int]:
    assert manifest.validation_loss is not None
    return manifest.validation_loss, -manifest.step


def drop(directory: RunDirectory, step: int, generation: int) -> None:
    """The manifest first: without it the rest no longer counts, however far the removal gets."""
    folder = folder_of(step, generation)
    directory.store.remove(f"{folder}/{MANIFEST}")
    directory.store.remove(folder)


def clear_failed(directory: RunDirectory, step: int, generation: int) -> None:
    """By the leader of the generation, before it saves `step`: its earlier saves that have no
    manifest have failed, whichever rank has written a file since."""
    for found in found_folders(directory):
        if not found.has_manifest and found.generation == generation and found.step < step:
            directory.store.remove(found.folder)


def retire(directory: RunDirectory, keep: Keep, generation: int, settled_step: float = inf) -> None:
    """Applies retention, and clears what older generations left without a manifest. A damaged
    manifest is left for a look until a generation has begun without it."""
    known = generations(directory)
    manifests = []
    for found in found_checkpoints(directory):
        manifest = read_manifest(directory, found)
        if isinstance(manifest, CheckpointManifest):
            manifests.append(manifest)
        elif fenced(found, known):
            drop(directory, found.step, found.generation)
    for manifest in superseded(manifests, known, keep, settled_step):
        drop(directory, manifest.step, manifest.generation)
    for found in found_folders(directory):
        if not found.has_manifest and found.generation < generation:
            directory.store.remove(found.folder)
