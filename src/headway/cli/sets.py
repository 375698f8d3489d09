"""The sets a run file names, prepared when they are not yet."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from headway.errors import BadInput, needs_train

if TYPE_CHECKING:
    from headway.data.making.prepare import Job
    from headway.data.tokenizer import TokenizerSource
    from headway.spec.load import Loaded
    from headway.spec.run import DataSet, Source, Tokenizer

PREPARED = "prepared"
"""Folder beside the run file for what `run` prepares by itself."""
HELD_OUT = "held_out"


@dataclass(frozen=True)
class Sets:
    """Where the sets of a run are."""

    train: str
    validation: dict[str, str]


def sets_of(loaded: Loaded, background: ExitStack) -> Sets:
    """Prepared, or for `stream` being prepared until `background` is closed."""
    data = loaded.run.data
    assert data.train is not None
    if data.train.hold_out is not None and HELD_OUT in data.validation:
        raise BadInput(
            f"data.validation has a set {HELD_OUT}, and so has hold_out",
            "give that set another name, or leave hold_out out",
        )
    if data.train.stream:
        train = _streamed("train", data.train, loaded, background)
    else:
        train = ready_set("train", data.train, loaded, tokenizer_of=None)
    validation = {
        name: ready_set(name, dataset, loaded, tokenizer_of=train)
        for name, dataset in data.validation.items()
    }
    if data.train.hold_out is not None:
        # With the tokenizer that is there by now: training one reads all the text.
        other = data.train.model_copy(update={"tokenizer": None})
        validation[HELD_OUT] = ready_set(HELD_OUT, other, loaded, tokenizer_of=train, side=HELD_OUT)
    return Sets(train, validation)


def _streamed(name: str, dataset: DataSet, loaded: Loaded, background: ExitStack) -> str:
    """A set that is being prepared in the background, if it is not finished already."""
    job = job_of(dataset, loaded, tokenizer_of=None)
    from headway.cli.streaming import Preparation
    from headway.data.shards import MANIFEST

    into = loaded.folder / PREPARED / f"{name}-{state_of(job)}-stream"
    if not (into / MANIFEST).is_file():
        preparation = background.enter_context(Preparation(replace(job, into=str(into))))
        preparation.wait_until_begun()
    return str(into)


def ready_set(
    name: str, dataset: DataSet, loaded: Loaded, tokenizer_of: str | None, side: str = "train"
) -> str:
    """The set's location, prepared."""
    if dataset.mixture is not None:
        return _ready_mixture(name, dataset, loaded, tokenizer_of)
    if dataset.path is not None:
        return located(dataset.path, loaded.folder)
    return _prepared(name, dataset, loaded, tokenizer_of, side)


def located(path: str, folder: Path) -> str:
    """A path relative to the run file, or an address as it is."""
    return path if "://" in path else str(folder / path)


def job_of(source: Source, loaded: Loaded, tokenizer_of: str | None, side: str = "train") -> Job:
    """What `source` asks to be prepared; where to is still to be said."""
    try:
        from headway.data.making.prepare import Job
        from headway.data.making.recipe import Settings
    except ImportError as error:
        raise needs_train("preparing data", error) from None

    masked = loaded.run.objective.type == "masked"
    share = getattr(source, "hold_out", None)
    assert source.sources is not None
    return Job(
        sources=source.sources,
        tokenizer=_tokenizer_source(source.tokenizer, tokenizer_of),
        into="",
        beside=loaded.folder,
        settings=Settings(
            layout="windows" if masked else "stream",
            window_tokens=loaded.run.data.sequence_length if masked else None,
            column=source.column,
            template=source.template,
            messages=source.messages,
            transform=source.transform,
            ids=source.ids,
            mask=source.mask,
            deduplicate=source.deduplicate,
            hold_out=share,
            side="held_out" if side == HELD_OUT else "train",
        ),
        code=loaded.folder / loaded.run.code.path if loaded.run.code else None,
        anonymous=source.anonymous,
    )


def _prepared(
    name: str, source: Source, loaded: Loaded, tokenizer_of: str | None, side: str = "train"
) -> str:
    """One folder for each state of the sources, so that edited text or settings are prepared anew
    and what is there is never rewritten."""
    from headway.cli.preparing import prepare_showing
    from headway.data.shards import MANIFEST

    job = job_of(source, loaded, tokenizer_of, side)
    into = loaded.folder / PREPARED / f"{name}-{state_of(job)}"
    if not (into / MANIFEST).is_file():
        prepare_showing(replace(job, into=str(into)), name)
    return str(into)


def state_of(job: Job) -> str:
    """Twelve letters for what the set will be made from."""
    from headway.data.making.sources import find_sources
    from headway.state.code import code_digest_1

    found = find_sources(job.sources, job.beside, job.anonymous)
    state = {
        "files": [file.model_dump() for file in found.files],
        "changed": [_changed(job.beside / file.name) for file in found.files],
        "settings": job.settings.model_dump(),
        "code": code_digest_1(job.code) if job.settings.transform and job.code else None,
        "tokenizer": _tokenizer_state(job.tokenizer, job.beside),
    }
    return xxhash.xxh3_64_hexdigest(json.dumps(state, sort_keys=True).encode())[:12]


def _changed(path: Path) -> int | None:
    """When a large file was written: of those not all content is looked at."""
    from headway.data.making.sources import WHOLE_BYTES

    if not path.is_file() or path.stat().st_size <= WHOLE_BYTES:
        return None
    return path.stat().st_mtime_ns


def _ready_mixture(name: str, dataset: DataSet, loaded: Loaded, tokenizer_of: str | None) -> str:
    try:
        from headway.data.reading.mixture import MIXTURE, Wanted, write_mixture
        from headway.data.reading.sets import open_set
    except ImportError as error:
        raise needs_train("preparing data", error) from None

    assert dataset.mixture is not None
    wanted = []
    shared = tokenizer_of
    for member_name, member in dataset.mixture.items():
        if member.path is not None:
            location = located(member.path, loaded.folder)
        else:
            # The mixture's own tokenizer goes to its first member, the others take it from there.
            if member.tokenizer is None and shared is None:
                member = member.model_copy(update={"tokenizer": dataset.tokenizer})
            location = _prepared(f"{name}-{member_name}", member, loaded, shared)
        shared = shared or location
        wanted.append(
            Wanted(name=member_name, location=location, weight=member.weight, epochs=member.epochs)
        )
    # By content as well: a set may have been prepared anew in the place of the one before.
    digests = []
    for one in wanted:
        with closing(open_set(one.location)) as member_set:
            digests.append(member_set.digest)
    text = json.dumps([[one.model_dump() for one in wanted], digests])
    into = loaded.folder / PREPARED / f"{name}-{xxhash.xxh3_64_hexdigest(text.encode())[:12]}"
    if not (into / MIXTURE).is_file():
        write_mixture(into, wanted)
    return str(into)


def _tokenizer_state(source: TokenizerSource, folder: Path) -> list[object]:
    """A tokenizer in a folder is known by its content: the name may stay while it changes."""
    if source.load is not None and (folder / source.load / "tokenizer.json").is_file():
        content = (folder / source.load / "tokenizer.json").read_bytes()
        return [xxhash.xxh3_64_hexdigest(content), None]
    return [source.load, source.train_vocab]


def _tokenizer_source(tokenizer: Tokenizer | None, tokenizer_of: str | None) -> TokenizerSource:
    """As `tokenizer` says or, where nobody does, that of the set at `tokenizer_of`."""
    from headway.data.tokenizer import TokenizerSource

    if tokenizer is None:
        assert tokenizer_of is not None, "require_complete has seen to it"
        return TokenizerSource(load=tokenizer_folder(tokenizer_of) if tokenizer_of else "")
    if tokenizer.train is not None:
        return TokenizerSource(train_vocab=tokenizer.train.vocab)
    return TokenizerSource(load=tokenizer.from_)


def tokenizer_folder(location: str) -> str:
    """On this machine, of a set or a mixture wherever it is."""
    from headway.data.reading.sets import open_set

    with closing(open_set(location)) as samples:
        return str(samples.tokenizer_folder)
