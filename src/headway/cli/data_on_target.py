"""Prepares a set on a target, by a Job whose pods read the sources: `headway data prepare --on`,
and `headway run --on` where no source is on this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from headway.cli.output import hint, say, short_count, warn
from headway.cli.preparation_look import PreparationLook
from headway.cli.progress import MovingLine
from headway.cli.set_preparation import report_left_out
from headway.cli.target_render import errors_located
from headway.cli.target_run import TargetRun
from headway.cli.target_sets import path_on_claim, why_only_here
from headway.clock import SystemClock
from headway.data.prepare.in_parts import put_tokenizer
from headway.data.prepare.job import PrepareJob, completed, recipe_without_tokens
from headway.data.prepare.job_text import preparation_key, text_of_job
from headway.data.prepare.recipe import (
    PARTS_PER_NODE,
    RECIPE,
    TokenizerFacts,
    differences,
    parts_for,
    read_recipe,
    source_units,
)
from headway.data.prepare.set_tokenizer import companions_digest, load_set_tokenizer
from headway.data.prepare.sources import (
    FoundSources,
    SourceFile,
    SourcesAway,
    SourcesRefused,
    find_sources,
)
from headway.data.set_format import MANIFEST, read_manifest
from headway.data.tokenizer import TokenizerSource
from headway.errors import BadInput, HeadwayError, NotFound, RunFailed
from headway.kube.data_job import Preparation, data_objects
from headway.kube.names import STORAGE
from headway.kube.storage_layout import PREPARED_THERE
from headway.launch.data_run import DataRun
from headway.launch.storage_prune import note_used
from headway.spec.data_config import CLAIM, HUB
from headway.spec.load import LoadedTarget
from headway.state.set_files import ATTEMPTS, FAILED
from headway.state.store import Store

IN_SET = "in the set"
"""Name, for pods, of a tokenizer that is put into the set from here."""


@dataclass(frozen=True)
class TargetSet:
    """A set on a target's storage that is prepared there."""

    name: str
    """Name shown to people."""
    pods: str
    """Location as pods see it."""
    here: str
    """Location from this machine."""
    run: DataRun
    is_done: bool

    @property
    def as_named(self) -> str:
        """As a run file names it."""
        return self.pods.replace(f"{STORAGE}/", CLAIM)


def why_not_there(job: PrepareJob) -> str | None:
    """Why the sources have to be prepared on this machine; None if they need not."""
    return why_only_here(job.sources, job.settings.deduplicate, job.settings.transform)


def prepare_on(
    job: PrepareJob,
    name: str,
    place: str | None,
    where: TargetRun,
    found: LoadedTarget,
    nodes: int | None,
    secrets: Sequence[str] = (),
    until_planned: bool = False,
) -> TargetSet:
    """Prepares the set on the target, or watches whoever does; a complete one is left unchanged.

    `place`: `claim:PATH`, an address, or a name for the set; None: by what it is made of.
    `until_planned`: returns when tokenizer and recipe are there."""
    if reason := why_not_there(job):
        raise BadInput(f"{name} cannot be prepared on {where.on}: {reason}")
    on_claim, given = _on_claim(job, where), job
    with TemporaryDirectory(prefix="headway-") as scratch:
        job, tokenizer = _with_own_tokenizer(job, Path(scratch))
        listed = _listed(job, where)
        # As pods see it: what identifies the set has nothing of this machine. The code is that of a
        # model or a loss: `why_not_there` refuses transforms.
        job = replace(job, sources=on_claim, beside=Path(STORAGE), code=None)
        key = preparation_key(replace(job, into=""), tokenizer, listed.files if listed else None)
        folder = f"{PREPARED_THERE}{key}" if place is None else None
        pods, here = locations(place or f"sets/{folder}", where)
        job = replace(job, into=pods)
        store = Store(here)
        if folder is None:
            _refuse_another(job, store, listed, given)
        number = hashlib.sha256(f"{key} {pods}".encode()).hexdigest()[:12]
        nodes = nodes or found.target.prepare.nodes
        parts = _num_parts(job, listed, nodes)
        wanted = Preparation(number, parts, nodes, text_of_job(job), tuple(secrets))
        with errors_located(found):
            objects = data_objects(wanted, found.target)
        run = DataRun(where.kube, wanted.name, where.on, SystemClock())
        made = TargetSet(name, pods, here, run, is_done=False)
        if folder is not None:
            by = where.name or wanted.name
            note_used(Store(where.storage), f"sets/{folder}", SystemClock(), where.on, by)
        if store.size(MANIFEST) is not None:
            return replace(made, is_done=True)

        def start() -> None:
            if tokenizer is not None:
                put_tokenizer(Path(scratch), store)
            if not run.is_active():
                store.remove(FAILED)
                store.remove(ATTEMPTS)
            if run.start(objects):
                at_once = f", {nodes} at a time" if nodes < parts else ""
                in_parts = f"{parts} part{'s' * (parts > 1)}{at_once}"
                say(f"preparing {name} on {where.on} in {in_parts}: {pods}")
            else:
                say(f"{name} is being prepared on {where.on}: {pods}")

        return replace(made, is_done=_watched(made, store, start, until_planned))


def _watched(made: TargetSet, store: Store, start: Callable[[], None], until_planned: bool) -> bool:
    """Whether it is complete; else it is planned."""
    look = PreparationLook(store, made.name, SystemClock())

    def is_enough() -> bool:
        return until_planned and store.size(RECIPE) is not None

    try:
        for _ in range(2):
            start()
            with closing(MovingLine()) as line:
                if made.run.watch(look.state, is_enough, line):
                    break
            say("all parts have ended, and none has seen the others' last shards: joining them")
        else:
            raise RunFailed(
                f"{made.pods}: the parts are prepared, but not joined",
                "run the same command again",
            )
    except KeyboardInterrupt:
        say(f"no longer watching; {made.name} is still being prepared on {made.run.on}")
        hint(
            "the same command watches it again",
            f"to end it: headway delete {made.run.name} --on {made.run.on}",
        )
        raise typer.Exit(130) from None
    if store.size(MANIFEST) is None:
        return False
    manifest = read_manifest(store)
    say(
        f"prepared {made.name}: {short_count(manifest.num_documents)} documents, "
        f"{short_count(manifest.num_tokens)} tokens, in {made.pods}"
    )
    report_left_out(manifest, store)
    return True


def _on_claim(job: PrepareJob, where: TargetRun) -> list[str]:
    """The sources as pods see them."""
    sources = []
    for source in job.sources:
        if source.startswith(CLAIM):
            source = f"{STORAGE}/{path_on_claim(source, where.target, where.on)}"
        sources.append(source)
    return sources


def locations(place: str, where: TargetRun) -> tuple[str, str]:
    """Where the set is, as pods see it and from this machine."""
    if "://" in place:
        return place.rstrip("/"), place.rstrip("/")
    if place.startswith(CLAIM):
        place = path_on_claim(place, where.target, where.on)
    storage = where.target.storage
    is_claim = storage is not None and storage.claim is not None
    return f"{STORAGE if is_claim else where.storage}/{place}", f"{where.storage}/{place}"


def _with_own_tokenizer(job: PrepareJob, scratch: Path) -> tuple[PrepareJob, str | None]:
    """A tokenizer in a folder of this machine goes into the set from here; its files are then in
    `scratch`. Returns its digest, None if pods get the tokenizer themselves."""
    load = job.tokenizer.load
    if load is None or not (job.beside / Path(load).expanduser()).is_dir():
        return job, None
    facts = load_set_tokenizer(
        load, job.beside, job.settings.layout, scratch, job.tokenizer.chat_template
    )
    digest = f"{facts.digest} {companions_digest(scratch)}"
    return replace(job, tokenizer=TokenizerSource(load=IN_SET)), digest


def _listed(job: PrepareJob, where: TargetRun) -> FoundSources | None:
    """What the sources name; None if they cannot be listed from here, which is said."""
    files: list[SourceFile] = []
    addresses = [source for source in job.sources if not source.startswith(CLAIM)]
    try:
        if addresses:
            files += find_sources(addresses, job.beside, job.anonymous).files
    except (SourcesAway, SourcesRefused) as error:
        _warn_not_listed(error)
        return None
    except NotFound:
        raise
    except HeadwayError as error:
        if not any(source.startswith(HUB) for source in addresses):
            raise
        _warn_not_listed(error)
        return None
    for source in job.sources:
        if source.startswith(CLAIM):
            files += _listed_claim(source, where)
    return FoundSources(files, [])


def _warn_not_listed(error: HeadwayError) -> None:
    warn(
        f"{error.message}: pods may reach it all the same; but files that change under the same "
        "names are not noticed"
    )


def _listed_claim(source: str, where: TargetRun) -> list[SourceFile]:
    path = path_on_claim(source, where.target, where.on)
    # Of a pattern, all below the folder before it: whatever changes there makes another set.
    fixed = path.partition("*")[0].partition("?")[0].partition("[")[0]
    fixed = fixed if fixed == path else fixed.rpartition("/")[0]
    found = Store(f"{where.storage}/{fixed}".rstrip("/")).facts()
    if not found:
        raise NotFound(f"nothing found at {source} of target {where.on}", "check the path")
    return [
        SourceFile(name=f"{source}#{name}", size=facts.size, fingerprint=facts.tag)
        for name, facts in found.items()
    ]


def _num_parts(job: PrepareJob, listed: FoundSources | None, nodes: int) -> int:
    if listed is None:
        return nodes * PARTS_PER_NODE
    units = source_units(recipe_without_tokens(job, listed))
    return parts_for(units, nodes, job.settings.unit_bytes)


def _refuse_another(
    job: PrepareJob, store: Store, listed: FoundSources | None, given: PrepareJob
) -> None:
    """A place that the user names may hold a set that is made of something else. `given`: as this
    machine sees it, with its tokenizer."""
    begun = read_recipe(store)
    if begun is None:
        if store.size(MANIFEST) is not None:
            raise BadInput(f"{store.root} already holds a prepared set", "choose another --into")
        return
    is_compared = listed is not None and not any(CLAIM in one.name for one in listed.files)
    found = listed if is_compared and listed is not None else FoundSources(list(begun.files), [])
    wanted = recipe_without_tokens(completed(job), found).model_copy(
        update={"tokens": _tokens_like(begun.tokens, given)}
    )
    if begun.digest != wanted.digest:
        changes = "\n  ".join(differences(begun, wanted)[:10])
        raise BadInput(
            f"{store.root} holds a different preparation:\n  {changes}", "choose another --into"
        )


def _tokens_like(begun: TokenizerFacts, job: PrepareJob) -> TokenizerFacts:
    """Facts of a set, with the digests of the tokenizer that is wanted now. One that is trained on
    the text is known by its settings; of one that cannot be loaded here, nothing is known."""
    load = job.tokenizer.load
    if load is None:
        return begun
    source, layout = job.tokenizer, job.settings.layout
    with TemporaryDirectory(prefix="headway-") as scratch:
        folder = Path(scratch)
        try:
            facts = load_set_tokenizer(
                load, job.beside, layout, folder, source.chat_template, source.revision
            )
        except HeadwayError as error:
            warn(f"{error.message}: whether the set has another tokenizer is not known here")
            return begun
        digests = {"digest": facts.digest}
        if begun.chat_digest is not None:
            digests["chat_digest"] = companions_digest(folder)
    return begun.model_copy(update=digests)
