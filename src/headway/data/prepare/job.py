"""Prepares a set from its sources: reads, tokenises on all cores, writes. It can be killed at any
moment; the same command resumes it."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from headway.clock import Clock
from headway.cores import num_cores
from headway.data.prepare.build_shards import ShardBuilder, ShardRecords
from headway.data.prepare.extract import Extractor
from headway.data.prepare.manifest import write_set_manifest
from headway.data.prepare.partial_manifest import PartialManifest, Publisher, finished_units
from headway.data.prepare.progress import PrepareProgress, ProgressReporter
from headway.data.prepare.recipe import (
    Recipe,
    RecipeSettings,
    SourceUnit,
    TokenizerFacts,
    differences,
    read_recipe,
    source_units,
)
from headway.data.prepare.set_tokenizer import (
    NO_TOKENIZER,
    companions_digest,
    fetched_tokenizer,
    load_set_tokenizer,
    train_set_tokenizer,
    write_tokenizer,
)
from headway.data.prepare.shard_writer import ShardRecord, read_records
from headway.data.prepare.sources import HUB, FoundSources, find_sources
from headway.data.set_format import MANIFEST, SHARDS, SetManifest, read_manifest
from headway.data.tokenizer import TokenizerSource
from headway.errors import BadInput, StillRunning
from headway.state.store import Store
from headway.state.transform_code import transform_digest

SMALL_BYTES = 2**23
"""Sources up to this size are encoded before other processes would have started."""
LOCK = ".preparing"


@dataclass(frozen=True)
class PrepareJob:
    """What to prepare, and how."""

    sources: Sequence[str]
    tokenizer: TokenizerSource
    into: str
    """Location of the set."""
    beside: Path
    """Folder that relative paths start from."""
    settings: RecipeSettings = field(default_factory=RecipeSettings)
    code: Path | None = None
    """Folder of the user's code, for `settings.transform`."""
    anonymous: bool = False
    strict: bool = False
    """Whether the first problem stops the preparation."""
    allow_unreadable: bool = False
    """Whether files may be damaged, and most of the records unusable."""
    processes: int | None = None
    """Number of processes. None: one per core, or a single one for small sources."""


def prepare(
    job: PrepareJob, progress: Callable[[PrepareProgress], None], clock: Clock
) -> SetManifest:
    """Prepares the set at `job.into`, or resumes preparing it; a finished one is left unchanged.

    Layout stream: an end-of-text token follows every document. Layout windows: see windows.py. Text
    is never encoded as special tokens, even where it spells one.
    """
    job = completed(job)
    store = Store(job.into)
    with _alone(store):
        reporter = ProgressReporter(progress, clock)
        recipe = _begin(job, store, found_sources(job), reporter)
        if store.size(MANIFEST) is not None:
            return read_manifest(store)
        store.remove_partial(SHARDS)  # of an attempt that was killed
        units = source_units(recipe)
        publisher = Publisher(store, PartialManifest(recipe), clock)
        build(job, store, recipe, units, reporter, publisher.manifest, publisher.shard_finished)
        publisher.manifest.read_records(store)
        return write_set_manifest(
            store, recipe, publisher.manifest, allow_unreadable=job.allow_unreadable
        )


def completed(job: PrepareJob) -> PrepareJob:
    """The job with its settings complete; refuses contradictory ones."""
    return replace(job, settings=_complete(job))


def found_sources(job: PrepareJob) -> FoundSources:
    found = find_sources(job.sources, job.beside, job.anonymous)
    if job.strict and found.problems:
        first = found.problems[0]
        raise BadInput(f"{first.where}: {first.kind}", first.message)
    return found


def build(
    job: PrepareJob,
    store: Store,
    recipe: Recipe,
    units: Sequence[SourceUnit],
    reporter: ProgressReporter,
    prepared: PartialManifest,
    shard_finished: Callable[[ShardRecord], None],
) -> ShardRecords:
    """Builds what is missing of `units`. Returns the records of shards that were there before, but
    for units that are published or belong to a finished part."""
    prepared.read(store)
    # With `strict` every record is looked at.
    done = {unit.number for unit in finished_units(store, prepared) if not job.strict}
    todo = [unit for unit in units if unit.number not in done]
    num_before = sum(unit.num_bytes for unit in units if unit.number in done)
    records = read_records(store, recipe.digest, [unit.number for unit in todo])
    with fetched_tokenizer(store) as folder:
        builder = ShardBuilder(store, recipe, folder, reporter, job.strict, shard_finished)
        builder.build(todo, num_before, records, _processes(job, units))
    # Before the manifest: a set that has one is not opened here again.
    builder.clear()
    return records


def _complete(job: PrepareJob) -> RecipeSettings:
    """The settings completed from the job; refuses contradictory ones."""
    settings = job.settings
    if settings.layout == "windows" and (settings.window_tokens or 0) < 3:
        raise BadInput(
            f"windows of {settings.window_tokens} tokens have no room for text",
            "[CLS] and [SEP] take two tokens: use longer windows",
        )
    ways = {"template", "messages", "transform", "ids"}
    given = sorted(way for way in ways if getattr(settings, way) is not None)
    if len(given) > 1:
        raise BadInput(f"give only one of {' and '.join(given)}")
    if settings.mask is not None and settings.ids is None:
        raise BadInput("mask needs ids", "it says which of the ids count for the loss")
    if settings.mask is not None and settings.layout == "windows":
        raise BadInput(
            "mask cannot be used with windows: which tokens count is drawn anew in each epoch",
            "remove mask; what a file has masked already, unmask puts back",
        )
    if settings.unmask is not None and (settings.ids is None or settings.layout != "windows"):
        raise BadInput("unmask needs ids, and windows for a masked model")
    train_vocab = job.tokenizer.train_vocab
    if train_vocab is not None and (settings.ids or settings.messages):
        raise BadInput("token ids and conversations need an existing tokenizer")
    if settings.deduplicate and "://" in job.into:
        raise BadInput(
            "deduplicate needs a local folder to prepare into",
            "prepare into a folder, or without deduplicate",
        )
    code_digest = None
    if settings.transform is not None and job.code is not None:
        code_digest = transform_digest(job.code, settings.transform)
    return settings.model_copy(update={"train_vocab": train_vocab, "code_digest": code_digest})


def _begin(
    job: PrepareJob, store: Store, found: FoundSources, reporter: ProgressReporter
) -> Recipe:
    """The recipe, new or from an earlier attempt; stored together with the tokenizer."""
    begun = read_recipe(store)
    if begun is None and store.size(MANIFEST) is not None:
        # Runs may be reading it.
        raise BadInput(
            f"{store.root} already holds a prepared set",
            "delete the folder, or prepare into another",
        )
    recipe = recipe_without_tokens(job, found)
    if begun is not None and job.tokenizer.train_vocab is not None:
        # An earlier attempt has trained it: do not train again.
        recipe = recipe.model_copy(update={"tokens": begun.tokens})
    else:
        with tempfile.TemporaryDirectory() as temporary:
            tokens = make_tokens(job, recipe, Path(temporary), reporter)
            recipe = recipe.model_copy(update={"tokens": tokens})
            if begun is None:
                write_tokenizer(Path(temporary), store)
    if begun is None:
        recipe.save(store)
    elif begun.digest != recipe.digest:
        changes = "\n  ".join(differences(begun, recipe)[:10])
        raise BadInput(
            f"{store.root} holds a different preparation:\n  {changes}",
            "delete the folder, or prepare into another",
        )
    return recipe


def recipe_without_tokens(job: PrepareJob, found: FoundSources) -> Recipe:
    is_elsewhere = all("://" in file.name or file.name.startswith(HUB) for file in found.files)
    return Recipe(
        settings=job.settings,
        tokens=NO_TOKENIZER,
        files=tuple(found.files),
        # Nothing starts from it then: the recipe is the same wherever it was made.
        beside="" if is_elsewhere else str(job.beside),
        code=None if job.code is None else str(job.code),
        anonymous=job.anonymous,
        left_out=tuple(found.problems),
    )


def make_tokens(
    job: PrepareJob, recipe: Recipe, folder: Path, reporter: ProgressReporter
) -> TokenizerFacts:
    """Facts about the tokenizer, which is written to `folder`."""
    settings = job.settings
    if job.tokenizer.load is not None:
        tokens = load_set_tokenizer(
            job.tokenizer.load,
            job.beside,
            settings.layout,
            folder,
            job.tokenizer.chat_template,
            job.tokenizer.revision,
        )
        # Errors in a template or the user's function are raised before anything is written.
        called = f"tokenizer `{job.tokenizer.load}`"
        Extractor(settings, tokens, folder, job.code, called)
        if settings.messages is None and settings.transform is None:
            return tokens
        return tokens.model_copy(update={"chat_digest": companions_digest(folder)})
    assert job.tokenizer.train_vocab is not None
    return train_set_tokenizer(recipe, job.sources, job.tokenizer.train_vocab, folder, reporter)


def _processes(job: PrepareJob, units: Sequence[SourceUnit]) -> int:
    if job.processes is not None:
        return job.processes
    if sum(unit.num_bytes for unit in units) <= SMALL_BYTES and not any(
        source.file.startswith(HUB) for unit in units for source in unit.ranges
    ):
        return 1
    return num_cores()


@contextmanager
def _alone(store: Store) -> Iterator[None]:
    """Locks a local folder against a second preparation. Object stores have no lock: two
    preparations write the same bytes under the same names."""
    if not store.is_local:
        yield
        return
    store.path().mkdir(parents=True, exist_ok=True)
    path = store.path(LOCK)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StillRunning(
                f"{store.root} is being prepared by another process",
                "wait until it has finished, or stop it",
            ) from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
