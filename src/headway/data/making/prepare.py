"""From sources to a prepared set: read, tokenise on all cores, write; may be killed at any moment
and is taken up again by the same command."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from headway.clock import Clock
from headway.data.making.extract import Extractor
from headway.data.making.finish import finish
from headway.data.making.make import Maker
from headway.data.making.recipe import (
    Recipe,
    Settings,
    Tokens,
    Unit,
    differences,
    read_recipe,
    units_of,
    units_of_part,
)
from headway.data.making.report import Progress, Reporter
from headway.data.making.roles import (
    companions_digest,
    fetched_tokenizer,
    load_tokens,
    put_tokenizer,
)
from headway.data.making.sources import HUB, Found, find_sources
from headway.data.making.train_tokenizer_on import NO_TOKENS, train_tokens_on
from headway.data.making.writer import read_records
from headway.data.shards import MANIFEST, SetManifest, read_manifest
from headway.data.tokenizer import TokenizerSource
from headway.errors import BadInput, StillRunning
from headway.state.code import code_digest, has_code
from headway.state.store import Store

SMALL_BYTES = 2**23
"""Sources up to here are done before other processes would have started."""
LOCK = ".preparing"


@dataclass(frozen=True)
class Job:
    """What to prepare, and how to go about it."""

    sources: Sequence[str]
    tokenizer: TokenizerSource
    into: str
    """Folder or store of the set."""
    beside: Path
    """Folder that relative names start from."""
    settings: Settings = field(default_factory=Settings)
    code: Path | None = None
    """Folder of the user's own code, for `settings.transform`."""
    anonymous: bool = False
    strict: bool = False
    """Stop at the first problem."""
    processes: int | None = None
    """None: one for each core, unless there is little to do."""
    part: tuple[int, int] | None = None
    """(i, n): only the i-th of n parts, counted from 0; `join` makes a set of them."""


@dataclass(frozen=True)
class PartDone:
    """One part of several is finished."""

    num_units: int
    num_tokens: int


def prepare(job: Job, progress: Callable[[Progress], None], clock: Clock) -> SetManifest | PartDone:
    """Makes `job.into` a prepared set, or goes on making it; a finished one stays as it is.

    stream: the end-of-text token after every document. windows: see windows.py. Text never turns
    into special tokens, even where it spells one.
    """
    job = replace(job, settings=_complete(job))
    store = Store(job.into)
    with _alone(store, job.part):
        job = replace(job, settings=_with_code(job, read_recipe(store)))
        found = find_sources(job.sources, job.beside, job.anonymous)
        if job.strict and found.problems:
            first = found.problems[0]
            raise BadInput(f"{first.where}: {first.kind}", first.message)
        reporter = Reporter(progress, clock)
        recipe = _begin(job, store, found, reporter)
        if store.size(MANIFEST) is not None:
            return read_manifest(job.into)
        units = units_of(recipe)
        chosen = units if job.part is None else units_of_part(units, *job.part)
        records = {
            key: record
            for key, record in read_records(store).items()
            if record.recipe_digest == recipe.digest
        }
        with fetched_tokenizer(store) as folder:
            maker = Maker(store, recipe, folder, reporter, job.strict)
            maker.make(chosen, records, _processes(job, chosen))
        if job.part is not None:
            mine = {unit.number for unit in chosen}
            made = [record.shard for (unit, _), record in records.items() if unit in mine]
            return PartDone(len(chosen), sum(shard.num_tokens for shard in made if shard))
        # Before the manifest: nobody comes back to tidy up a set that has one.
        maker.clear()
        return finish(store, recipe, units, records)


def refuse_finished(store: Store) -> None:
    """Of a set that is finished nothing is written over; runs may be reading it."""
    if store.size(MANIFEST) is not None:
        raise BadInput(
            f"{store.root} already holds a prepared set",
            "delete the folder, or prepare into another",
        )


def _complete(job: Job) -> Settings:
    """The settings with what follows from the job, if they make sense together."""
    settings = job.settings
    if settings.layout == "windows" and (settings.window_tokens or 0) < 3:
        raise BadInput(
            f"windows of {settings.window_tokens} tokens hold no text",
            "[CLS] and [SEP] take two: give more",
        )
    ways = {"template", "messages", "transform", "ids"}
    given = sorted(way for way in ways if getattr(settings, way) is not None)
    if len(given) > 1:
        raise BadInput(f"give one of {' and '.join(given)}, not both")
    if settings.mask is not None and settings.ids is None:
        raise BadInput("mask goes with ids", "it says which of the ids count for the loss")
    if settings.ids is not None and settings.layout == "windows":
        raise BadInput("ids are taken over as they are, and windows would cut them anew")
    train_vocab = job.tokenizer.train_vocab
    if train_vocab is not None and job.part is not None:
        raise BadInput(
            "a part alone cannot train the tokenizer of all",
            "make it first: headway data tokenizer SOURCES --vocab N --into FOLDER",
        )
    if train_vocab is not None and (settings.ids or settings.messages):
        raise BadInput("token ids and conversations need the tokenizer they are meant for")
    if settings.deduplicate and (job.part is not None or "://" in job.into):
        raise BadInput(
            "duplicates are found by one preparation into a local folder",
            "leave out part, or prepare without deduplicate",
        )
    return settings.model_copy(update={"train_vocab": train_vocab})


def _with_code(job: Job, begun: Recipe | None) -> Settings:
    """With the digest of the transform's code: that of the recipe, if it is still that code."""
    if job.settings.transform is None or job.code is None:
        return job.settings
    known = begun.settings.code_digest if begun is not None else None
    digest = known if known is not None and has_code(job.code, known) else code_digest(job.code)
    return job.settings.model_copy(update={"code_digest": digest})


def _begin(job: Job, store: Store, found: Found, reporter: Reporter) -> Recipe:
    """The recipe, new or as it was begun with; it and the tokenizer are in the store then."""
    begun = read_recipe(store)
    if begun is None:
        refuse_finished(store)
    recipe = Recipe(
        settings=job.settings,
        tokens=NO_TOKENS,
        files=tuple(found.files),
        beside=str(job.beside),
        code=None if job.code is None else str(job.code),
        anonymous=job.anonymous,
        left_out=tuple(found.problems),
    )
    if begun is not None and job.tokenizer.train_vocab is not None:
        # Trained by the attempt that began; training is not repeated.
        recipe = recipe.model_copy(update={"tokens": begun.tokens})
    else:
        with tempfile.TemporaryDirectory() as temporary:
            tokens = _make_tokens(job, recipe, Path(temporary), reporter)
            recipe = recipe.model_copy(update={"tokens": tokens})
            if begun is None:
                put_tokenizer(Path(temporary), store)
    if begun is None:
        recipe.save(store)
    elif begun.digest != recipe.digest:
        changes = "\n  ".join(differences(begun, recipe)[:10])
        raise BadInput(
            f"{store.root} holds a preparation of something else:\n  {changes}",
            "delete the folder, or prepare into another",
        )
    return recipe


def _make_tokens(job: Job, recipe: Recipe, folder: Path, reporter: Reporter) -> Tokens:
    settings = job.settings
    if job.tokenizer.load is not None:
        tokens = load_tokens(job.tokenizer.load, job.beside, settings.layout, folder)
        # What is wrong with a template or the user's function is said before anything is begun.
        called = f"tokenizer `{job.tokenizer.load}`"
        Extractor(settings, tokens.vocab_size, folder, job.code, called)
        if settings.messages is None and settings.transform is None:
            return tokens
        return tokens.model_copy(update={"chat_digest": companions_digest(folder)})
    assert job.tokenizer.train_vocab is not None
    return train_tokens_on(recipe, job.sources, job.tokenizer.train_vocab, folder, reporter)


def _processes(job: Job, units: Sequence[Unit]) -> int:
    if job.processes is not None:
        return job.processes
    if sum(unit.num_bytes for unit in units) <= SMALL_BYTES and not any(
        piece.file.startswith(HUB) for unit in units for piece in unit.pieces
    ):
        return 1
    return len(os.sched_getaffinity(0))


@contextmanager
def _alone(store: Store, part: tuple[int, int] | None) -> Iterator[None]:
    """Two preparations of the same would write over each other. On an object store they cannot be
    told apart; there both write the same bytes under the same names."""
    if not store.is_local:
        yield
        return
    store.path().mkdir(parents=True, exist_ok=True)
    path = store.path(LOCK if part is None else f"{LOCK}-{part[0]}-of-{part[1]}")
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StillRunning(
                f"{store.root} is being prepared by another process", "wait for it, or stop it"
            ) from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
