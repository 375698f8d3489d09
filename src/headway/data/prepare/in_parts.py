"""One of several processes, on any machines, that prepare a set together. None has a lock, and none
knows which others are alive: whatever two of them write under one name has the same content, or is
written by whoever is first.

    part 0            lists the sources, makes the tokenizer, writes the recipe
    part i of n       makes the units i, i + n, ... of the recipe
    who sees all      writes the manifest

What nobody can mend by trying again is written to failed.txt, and ends them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from headway.clock import Clock
from headway.data.prepare.job import (
    PrepareJob,
    build,
    completed,
    found_sources,
    make_tokens,
    recipe_without_tokens,
)
from headway.data.prepare.manifest import is_finished, recipe_records, write_set_manifest
from headway.data.prepare.progress import PrepareProgress, ProgressReporter
from headway.data.prepare.recipe import (
    RECIPE,
    Recipe,
    SourceUnit,
    TokenizerFacts,
    read_recipe,
    source_units,
    units_in_turn,
)
from headway.data.prepare.set_tokenizer import fetched_tokenizer
from headway.data.prepare.shard_writer import record_file
from headway.data.set_format import MANIFEST, SHARDS, TOKENIZER, SetManifest, read_manifest
from headway.data.tokenizer import TOKENIZER_JSON, TokenizerSource
from headway.errors import BadInput, CheckFailed, HeadwayError, NotFound, RunFailed
from headway.state.set_files import FAILED
from headway.state.store import Store

LOOK_SECONDS = 2.0
PLAN_SECONDS = 1800.0
"""Time for part 0 to list the sources and to make the tokenizer, since this one began to wait."""
SAY_SECONDS = 60.0
OTHERS_SECONDS = 60.0
"""Time for which a part that is done looks whether the others are. The last one always sees it."""
FAILED_SECONDS = 30.0
"""Pause between two looks whether another part has failed for good."""
FINAL = (BadInput, NotFound, CheckFailed)
"""What would happen again."""


class PreparationFailed(BadInput):
    """Another part has found what ends the preparation."""


def prepare_in_parts(
    job: PrepareJob,
    part: int,
    num_parts: int,
    progress: Callable[[PrepareProgress], None],
    clock: Clock,
    say: Callable[[str], None],
    is_last_attempt: bool = False,
) -> SetManifest | None:
    """Prepares a part; returns the manifest if all parts are done, whoever has written it.
    `is_last_attempt`: whatever ends it is written to failed.txt, for those who wait."""
    store = Store(job.into)
    with _failures_told(store, is_last_attempt):
        _refuse_failed(store)
        if store.size(MANIFEST) is not None:
            return read_manifest(store)
        if job.settings.deduplicate or job.settings.transform is not None:
            raise BadInput("deduplicate and transform cannot be prepared in parts")
        job = completed(job)
        reporter = ProgressReporter(_watching(progress, store, clock), clock)
        recipe = (
            _planned(job, store, reporter) if part == 0 else _planned_elsewhere(store, clock, say)
        )
        units = source_units(recipe)
        build(job, store, recipe, units_in_turn(units, part, num_parts), reporter)
        return _joined(store, recipe, units, job.allow_unreadable, clock, say)


@contextmanager
def _failures_told(store: Store, is_last_attempt: bool) -> Iterator[None]:
    try:
        yield
    except PreparationFailed:
        raise
    except HeadwayError as error:
        if isinstance(error, FINAL) or is_last_attempt:
            store.write(FAILED, str(error).encode())
        raise
    except Exception as error:
        if is_last_attempt:
            store.write(FAILED, f"{type(error).__name__}: {error}".encode())
        raise


def _refuse_failed(store: Store) -> None:
    if store.size(FAILED) is not None:
        raise PreparationFailed(store.read(FAILED).decode())


def _watching(
    progress: Callable[[PrepareProgress], None], store: Store, clock: Clock
) -> Callable[[PrepareProgress], None]:
    """Shows progress, and now and then looks whether another part has failed for good."""
    looked = clock.monotonic()

    def show(now: PrepareProgress) -> None:
        nonlocal looked
        progress(now)
        if clock.monotonic() - looked >= FAILED_SECONDS:
            looked = clock.monotonic()
            _refuse_failed(store)

    return show


def _planned(job: PrepareJob, store: Store, reporter: ProgressReporter) -> Recipe:
    """The recipe. One that exists is final: others are at work by it."""
    if (begun := read_recipe(store)) is not None:
        return begun
    recipe = recipe_without_tokens(job, found_sources(job))
    tokens = _shared_tokens(job, recipe, store, reporter)
    # Of two that plan at the same time, as when one was taken for dead, the first is right.
    store.create(RECIPE, recipe.model_copy(update={"tokens": tokens}).content)
    made = read_recipe(store)
    assert made is not None
    return made


def _shared_tokens(
    job: PrepareJob, recipe: Recipe, store: Store, reporter: ProgressReporter
) -> TokenizerFacts:
    """Facts about the tokenizer in the set. One that exists is final: whoever has launched this
    has put it there, or another that plans."""
    if store.size(f"{TOKENIZER}/{TOKENIZER_JSON}") is None:
        with TemporaryDirectory() as made:
            make_tokens(job, recipe, Path(made), reporter)
            put_tokenizer(Path(made), store)
    with fetched_tokenizer(store) as folder, TemporaryDirectory() as copy:
        given = replace(job, tokenizer=TokenizerSource(load=str(folder.resolve())))
        return make_tokens(given, recipe, Path(copy), reporter)


def put_tokenizer(folder: Path, store: Store) -> None:
    """Copies a tokenizer's files into a set that has none yet, the one that completes it last."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == TOKENIZER_JSON):
        store.create(f"{TOKENIZER}/{path.name}", path.read_bytes())


def _planned_elsewhere(store: Store, clock: Clock, say: Callable[[str], None]) -> Recipe:
    began = said = clock.monotonic()
    while (recipe := read_recipe(store)) is None:
        _refuse_failed(store)
        now = clock.monotonic()
        if now - began > PLAN_SECONDS:
            raise RunFailed(
                f"{store.root}: no recipe for {PLAN_SECONDS / 60:.0f} minutes",
                "the part with index 0 lists the sources and makes the tokenizer: its log says "
                "how far it is",
            )
        if now - said >= SAY_SECONDS:
            said = now
            say(f"waiting for the list of sources and the tokenizer for {now - began:.0f} s")
        clock.sleep(LOOK_SECONDS)
    return recipe


def _joined(
    store: Store,
    recipe: Recipe,
    units: Sequence[SourceUnit],
    allow_unreadable: bool,
    clock: Clock,
    say: Callable[[str], None],
) -> SetManifest | None:
    deadline = clock.monotonic() + OTHERS_SECONDS
    while True:
        if store.size(MANIFEST) is not None:
            return read_manifest(store)
        there = set(store.names(SHARDS))
        # Few are read by parts that are done long before the others.
        if all(record_file(unit.number, 0) in there for unit in units):
            records = recipe_records(store, recipe)
            if all(is_finished(records, unit.number) for unit in units):
                return write_set_manifest(
                    store, recipe, units, records, allow_unreadable=allow_unreadable
                )
        _refuse_failed(store)
        if clock.monotonic() > deadline:
            say("this part is done; others are not: the last of them completes the set")
            return None
        clock.sleep(LOOK_SECONDS)
