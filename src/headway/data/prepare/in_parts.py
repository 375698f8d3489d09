"""One of several processes, on any machines, that prepare a set together. None has a lock, and none
knows which others are alive: whatever two of them write under one name has the same content, or is
written by whoever is first.

    part 0            lists the sources, makes the tokenizer, writes the recipe
    each part         makes its units, and publishes what all have finished: partial_manifest.py
    who sees all      writes the manifest

What nobody can mend by trying again is written to failed.txt, and ends them all. So is what ends a
part ATTEMPTS times in a row before it finishes a shard. A lost machine is not: a process that is
told to end takes its attempt back, and one that is not told has mostly finished a shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
from headway.data.prepare.manifest import remove_progress, write_set_manifest
from headway.data.prepare.partial_manifest import PartialManifest, Publisher, write_part
from headway.data.prepare.progress import PrepareProgress, ProgressReporter
from headway.data.prepare.recipe import (
    RECIPE,
    Recipe,
    TokenizerFacts,
    read_recipe,
    units_of_part,
)
from headway.data.prepare.set_tokenizer import fetched_tokenizer
from headway.data.prepare.shard_writer import ShardRecord
from headway.data.set_format import MANIFEST, TOKENIZER, SetManifest, read_manifest
from headway.data.tokenizer import TOKENIZER_JSON, TokenizerSource
from headway.errors import BadInput, CheckFailed, HeadwayError, NotFound, RunFailed
from headway.state.set_files import ATTEMPTS as ATTEMPTS_FOLDER
from headway.state.set_files import FAILED
from headway.state.store import Store

LOOK_SECONDS = 2.0
PLAN_SECONDS = 1800.0
"""Time for part 0 to list the sources and to make the tokenizer, since this one began to wait."""
SAY_SECONDS = 60.0
OTHERS_SECONDS = 60.0
"""Time for which one of the last parts looks whether the others are done. The last one sees it at
once, except in a file system that keeps listings."""
ATTEMPTS = 10
FAILED_SECONDS = 30.0
"""Pause between two looks whether another part has failed for good."""
FINAL = (BadInput, NotFound, CheckFailed)
"""What would happen again."""


class PreparationFailed(BadInput):
    """Another part has found what ends the preparation."""


class Attempts:
    """How often a part was begun since it last finished a shard."""

    def __init__(self, store: Store, part: int) -> None:
        self.number = 0
        self._store = store
        self._file = f"{ATTEMPTS_FOLDER}/{part}"

    def begin(self) -> None:
        with suppress(FileNotFoundError):
            self.number = int(self._store.read(self._file))
        if self.number >= ATTEMPTS:
            raise BadInput(
                f"a part has ended {ATTEMPTS} times without a word before it finished a shard: its "
                "pods were killed, most likely because they needed more memory",
                "prepare: {resources: {cpu: ..., memory: ...}} of the target",
            )
        self.number += 1
        self._store.write(self._file, str(self.number).encode())

    def take_back(self) -> None:
        """Does not count the present attempt."""
        if self.number:
            self.number -= 1
            self._store.write(self._file, str(self.number).encode())

    def clear(self) -> None:
        if self.number:
            self.number = 0
            self._store.remove(self._file)


def prepare_in_parts(
    job: PrepareJob,
    part: int,
    num_parts: int,
    nodes: int,
    progress: Callable[[PrepareProgress], None],
    clock: Clock,
    say: Callable[[str], None],
    attempts: Attempts | None = None,
) -> SetManifest | None:
    """Prepares a part; returns the manifest if all parts are done, whoever has written it. `nodes`:
    parts that run at the same time."""
    store = Store(job.into)
    attempts = attempts or Attempts(store, part)
    with _failures_told(store, attempts):
        _refuse_failed(store)
        if store.size(MANIFEST) is not None:
            return read_manifest(store)
        attempts.begin()
        if job.settings.deduplicate or job.settings.transform is not None:
            raise BadInput("deduplicate and transform cannot be prepared in parts")
        job = completed(job)
        reporter = ProgressReporter(_watching(progress, store, clock), clock)
        recipe = (
            _planned(job, store, reporter) if part == 0 else _planned_elsewhere(store, clock, say)
        )
        publisher, lines = Publisher(store, PartialManifest(recipe), clock), list[bytes]()

        def shard_finished(record: ShardRecord) -> None:
            lines.append(record.model_dump_json().encode())
            publisher.shard_finished(record)
            attempts.clear()

        all_units = publisher.manifest.units
        numbers = units_of_part(len(all_units), part, num_parts, nodes)
        units = all_units[numbers.start : numbers.stop : numbers.step]
        old = build(job, store, recipe, units, reporter, publisher.manifest, shard_finished)
        lines += [record.model_dump_json().encode() for record in old.values()]
        if lines:  # else it has no units, or has been run before
            write_part(store, numbers, lines)
        is_last = part >= num_parts - nodes
        deadline = clock.monotonic() + (OTHERS_SECONDS if is_last else 0)
        if (made := _joined(store, recipe, publisher, job, clock, deadline)) is None:
            say("this part is done; others are not: the last of them completes the set")
        return made


@contextmanager
def _failures_told(store: Store, attempts: Attempts) -> Iterator[None]:
    try:
        yield
    except PreparationFailed:
        raise
    except HeadwayError as error:
        if isinstance(error, FINAL) or attempts.number >= ATTEMPTS:
            store.write(FAILED, str(error).encode())
        raise
    except Exception as error:
        if attempts.number >= ATTEMPTS:
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
    publisher: Publisher,
    job: PrepareJob,
    clock: Clock,
    deadline: float,
) -> SetManifest | None:
    """The manifest, as soon as all parts are done; None if they are not at the deadline."""
    while True:
        if store.size(MANIFEST) is not None:
            remove_progress(store)
            return read_manifest(store)
        publisher.publish()
        if publisher.manifest.is_complete:
            return write_set_manifest(
                store, recipe, publisher.manifest, allow_unreadable=job.allow_unreadable
            )
        _refuse_failed(store)
        if clock.monotonic() >= deadline:
            return None
        clock.sleep(LOOK_SECONDS)
