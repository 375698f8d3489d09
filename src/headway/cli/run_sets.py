"""The sets that a run file names, prepared if they are not prepared yet."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import xxhash

from headway.cli.output import say
from headway.cores import num_cores
from headway.data.mixture_shares import NUM_SLOTS
from headway.errors import BadInput, HeadwayError, needs_train
from headway.spec.data_config import CLAIM, HELD_OUT, RecordConfig, StreamConfig
from headway.spec.hub_names import HubReference, at_commit
from headway.state.set_files import MIXTURE, PREPARED
from headway.state.store import Store

if TYPE_CHECKING:
    from headway.data.prepare.job import PrepareJob
    from headway.data.tokenizer import TokenizerSource
    from headway.spec.data_config import DataSetConfig, SourceConfig, TokenizerConfig
    from headway.spec.load import Loaded

HELD_OUT_BYTES = 2**22
"""Text that a held-out set beside `stream` has, about: a million tokens. It is prepared before the
run starts, of the first sources that hold so much."""


@dataclass(frozen=True)
class Sets:
    """Locations of the sets of a run."""

    train: str
    validation: dict[str, str]


class SetsThere(Protocol):
    """The target of a run, where sets can be and be prepared."""

    def takes(self, job: PrepareJob) -> bool:
        """Whether pods are to prepare it: no source is on this machine, and their image can."""
        ...

    def prepared(self, job: PrepareJob, name: str, is_streamed: bool) -> str:
        """Its location from this machine, once it is prepared, or for a streamed one planned."""
        ...

    def located(self, path: str) -> str:
        """Location, from this machine, of `claim:PATH`."""
        ...


def trainable_sets(loaded: Loaded, background: ExitStack, there: SetsThere | None = None) -> Sets:
    """Sets that fit the run's objective and sequence length. Workers would find out too, but only
    after their imports. A script has none. `there`: the target that it runs on."""
    if loaded.run.command is not None:
        return Sets("", {})
    try:
        from headway.cli.set_preparation import wait_for_first_samples
        from headway.data.reading.compatibility import (
            require_fit,
            require_layout,
            require_same_tokenizer,
        )
        from headway.data.reading.mixture import MixtureSet
        from headway.data.reading.sample_set import open_set
    except ImportError as error:
        raise needs_train("reading a prepared set", error) from None

    sets = sets_of(loaded, background, there)
    objective, length = loaded.run.objective.type, loaded.run.data.sequence_length
    with ExitStack() as stack:
        every = [
            stack.enter_context(closing(open_set(Store(location))))
            for location in (sets.train, *sets.validation.values())
        ]
        for samples in every:
            require_same_tokenizer(every[0], samples)
            grows = samples.in_sequence and isinstance(samples, MixtureSet)
            if samples.location != every[0].location and (grows or samples.is_growing):
                raise BadInput(
                    f"{samples.location} is for training alone: its samples are not known from the "
                    "start",
                    "name a set that is prepared; what it is: headway data show "
                    f"{samples.location}",
                )
            if there is not None and samples.is_growing:
                require_layout(samples, objective, length)  # workers wait for its first samples
                continue
            wait_for_first_samples(samples, length)
            require_fit(samples, objective, length)
    return sets


def sets_of(loaded: Loaded, background: ExitStack, there: SetsThere | None = None) -> Sets:
    """Prepares what is not prepared; with `stream`, in the background until that is closed."""
    data = loaded.run.data
    assert data.train is not None
    if data.train.mixture is not None:
        train = _ready_mixture("train", data.train, loaded, background, there)
    elif data.train.stream:
        train = _streamed("train", data.train, loaded, background, None, there)
    else:
        train = ready_set("train", data.train, loaded, tokenizer_of=None, there=there)
    validation = {
        name: ready_set(name, dataset, loaded, tokenizer_of=train, there=there)
        for name, dataset in data.validation.items()
    }
    if data.train.hold_out is not None:
        # With the tokenizer that the training set now has: training another reads all the text.
        other = data.train.model_copy(update={"tokenizer": None})
        validation[HELD_OUT] = ready_set(
            HELD_OUT, other, loaded, tokenizer_of=train, side=HELD_OUT, there=there
        )
    return Sets(train, validation)


def _streamed(
    name: str,
    source: SourceConfig,
    loaded: Loaded,
    background: ExitStack,
    tokenizer_of: str | None,
    there: SetsThere | None,
    num_streamed: int = 1,
) -> str:
    """Location of a set that is prepared in the background, unless it is complete. `num_streamed`:
    sets that share the cores of this machine."""
    job = job_of(source, loaded, tokenizer_of)
    if there is not None:
        settings = job.settings.model_copy(update={"in_sequence": True})
        return there.prepared(replace(job, settings=settings), name, is_streamed=True)
    from headway.cli.set_preparation import BackgroundPreparation
    from headway.data.set_format import MANIFEST

    into = _folder_of(job, loaded, name, "-stream")
    if not (into / MANIFEST).is_file():
        processes = max(1, num_cores() // num_streamed) if num_streamed > 1 else None
        job = replace(job, into=str(into), processes=processes)
        background.enter_context(BackgroundPreparation(job)).wait_until_begun(name)
    return str(into)


def ready_set(
    name: str,
    dataset: DataSetConfig,
    loaded: Loaded,
    tokenizer_of: str | None,
    side: str = "train",
    there: SetsThere | None = None,
) -> str:
    """Location of the set, once it is prepared."""
    if dataset.path is not None:
        return located(dataset.path, loaded.folder, there)
    return _prepared(name, dataset, loaded, tokenizer_of, side, there)


def located(path: str, folder: Path, there: SetsThere | None) -> str:
    """Resolves a path from the folder of the run file; an address stays as it is."""
    if path.startswith(CLAIM):
        if there is None:
            raise claim_needs_target(path)
        return there.located(path)
    return path if "://" in path else str(folder / path)


def claim_needs_target(path: str) -> BadInput:
    return BadInput(f"{path} is a path on the claim of a target", "add --on TARGET")


def job_of(
    source: SourceConfig, loaded: Loaded, tokenizer_of: str | None, side: str = "train"
) -> PrepareJob:
    """The preparation that `source` describes, without its destination."""
    try:
        from headway.data.prepare.job import PrepareJob
        from headway.data.prepare.recipe import RecipeSettings
    except ImportError as error:
        raise needs_train("preparing data", error) from None

    masked = loaded.run.objective.type == "masked"
    share = getattr(source, "hold_out", None)
    assert source.sources is not None
    settings = RecipeSettings(
        **source.model_dump(include=set(RecordConfig.model_fields)),
        layout="windows" if masked else "stream",
        window_tokens=loaded.run.data.sequence_length if masked else None,
        deduplicate=source.deduplicate,
        hold_out=share,
        side="held_out" if side == HELD_OUT else "train",
    )
    if side == HELD_OUT and source.stream:
        assert share is not None
        settings = settings.model_copy(update={"first_bytes": math.ceil(HELD_OUT_BYTES / share)})
    elif isinstance(source.stream, StreamConfig):
        settings = settings.streamed(int(source.stream.window.amount))
    commits = loaded.hub_commits or {}
    return PrepareJob(
        sources=[at_commit(one, commits) for one in source.sources],
        tokenizer=_tokenizer_source(source.tokenizer, tokenizer_of, commits),
        into="",
        beside=loaded.folder,
        settings=settings,
        code=loaded.folder / loaded.run.code.path if loaded.run.code else None,
        anonymous=source.anonymous,
        allow_unreadable=source.allow_unreadable,
    )


def _prepared(
    name: str,
    source: SourceConfig,
    loaded: Loaded,
    tokenizer_of: str | None,
    side: str = "train",
    there: SetsThere | None = None,
) -> str:
    """Each state of the sources has its own folder: edited text or settings are prepared again, and
    an existing set is never overwritten."""
    from headway.cli.set_preparation import prepare_with_progress
    from headway.data.set_format import MANIFEST

    job = job_of(source, loaded, tokenizer_of, side)
    if there is not None and there.takes(job):
        if (here := _prepared_here(job, loaded, name)) is not None:
            return str(here)
        return there.prepared(job, name, is_streamed=False)
    if on_claim := next((one for one in job.sources if one.startswith(CLAIM)), None):
        raise claim_needs_target(on_claim)
    into = _folder_of(job, loaded, name)
    if not (into / MANIFEST).is_file():
        prepare_with_progress(replace(job, into=str(into)), name)
    return str(into)


def prepared_here(loaded: Loaded) -> str | None:
    """Location of the training set, if it is prepared already and this machine has or reaches it.
    Mixtures are not looked for."""
    train = loaded.run.data.train
    if train is None or train.mixture is not None or train.is_streamed:
        return None
    if train.path is not None:
        return None if train.path.startswith(CLAIM) else located(train.path, loaded.folder, None)
    here = _prepared_here(job_of(train, loaded, tokenizer_of=None), loaded, "train")
    return None if here is None else str(here)


def _prepared_here(job: PrepareJob, loaded: Loaded, name: str) -> Path | None:
    """Where this machine has prepared it before, if it has."""
    from headway.data.set_format import MANIFEST

    is_on_claim = any(one.startswith(CLAIM) for one in job.sources)
    if is_on_claim or not any((loaded.folder / PREPARED).glob(f"{name}-*/{MANIFEST}")):
        return None
    try:
        into = _folder_of(job, loaded, name)
    except HeadwayError:  # pods may reach sources that this machine does not
        return None
    return into if (into / MANIFEST).is_file() else None


def _folder_of(job: PrepareJob, loaded: Loaded, name: str, suffix: str = "") -> Path:
    return loaded.folder / PREPARED / f"{name}-{_state_of(job)}{suffix}"


def _state_of(job: PrepareJob) -> str:
    """Twelve hexadecimal digits that identify what the set is made from."""
    from headway.data.prepare.sources import find_sources
    from headway.state.transform_code import transform_digest

    found = find_sources(job.sources, job.beside, job.anonymous)
    code, transform = None, job.settings.transform
    if transform is not None and job.code is not None:
        code = transform_digest(job.code, transform)
    state = {
        "files": [file.model_dump() for file in found.files],
        "changed": [_changed(job.beside / file.name) for file in found.files],
        "settings": job.settings.model_dump(),
        "code": code,
        "tokenizer": _tokenizer_state(job),
    }
    return xxhash.xxh3_64_hexdigest(json.dumps(state, sort_keys=True).encode())[:12]


def _changed(path: Path) -> int | None:
    """Time of the last change of a large file, of which not all content is hashed."""
    from headway.data.prepare.sources import WHOLE_BYTES

    if not path.is_file() or path.stat().st_size <= WHOLE_BYTES:
        return None
    return path.stat().st_mtime_ns


def _ready_mixture(
    name: str,
    dataset: DataSetConfig,
    loaded: Loaded,
    background: ExitStack,
    there: SetsThere | None,
) -> str:
    try:
        from headway.data.reading.mixture import MemberSpec, write_mixture
    except ImportError as error:
        raise needs_train("preparing data", error) from None

    assert dataset.mixture is not None
    locations: dict[str, str] = {}
    shared: str | None = None
    num_streamed = sum(bool(member.stream) for member in dataset.mixture.values())
    for member_name, member in dataset.mixture.items():
        if member.path is not None:
            location = located(member.path, loaded.folder, there)
        else:
            # The first member gets the tokenizer of the mixture, the others take it from there.
            if member.tokenizer is None and shared is None:
                member = member.model_copy(update={"tokenizer": dataset.tokenizer})
            called = f"{name}-{member_name}"
            if member.stream:
                location = _streamed(
                    called, member, loaded, background, shared, there, num_streamed
                )
            else:
                location = _prepared(called, member, loaded, shared, there=there)
        shared = shared or location
        locations[member_name] = location
    digests, weights = _weights(dataset, loaded, locations)
    wanted = [
        MemberSpec(
            name=member_name,
            location=locations[member_name],
            weight=weights[member_name],
            epochs=member.epochs,
        )
        for member_name, member in dataset.mixture.items()
    ]
    # By content too: another set may have been prepared in the same place.
    text = json.dumps([[one.model_dump() for one in wanted], digests])
    into = loaded.folder / PREPARED / f"{name}-{xxhash.xxh3_64_hexdigest(text.encode())[:12]}"
    if not (into / MIXTURE).is_file():
        write_mixture(Store(into), wanted, is_streamed=num_streamed > 0)
    return str(into)


def _weights(
    dataset: DataSetConfig, loaded: Loaded, locations: Mapping[str, str]
) -> tuple[list[str], Mapping[str, float | None]]:
    """Digests of a mixture's members, and their weights, as written or as their sizes decide."""
    from headway.cli.mixture_weights import SetSize, decided_weights, needs_sizes
    from headway.data.reading.sample_set import open_set
    from headway.data.reading.token_set import TokenSet

    assert dataset.mixture is not None
    digests: list[str] = []
    sizes: dict[str, SetSize | None] = dict.fromkeys(locations)
    for name, location in locations.items():
        with closing(open_set(Store(location))) as opened:
            digests.append(opened.digest)
            if isinstance(opened, TokenSet) and needs_sizes(dataset):
                num_samples = opened.num_samples(loaded.run.data.sequence_length)
                sizes[name] = SetSize(opened.num_tokens, num_samples)
    if not needs_sizes(dataset):
        return digests, {name: member.weight for name, member in dataset.mixture.items()}
    weights = decided_weights(loaded, sizes)
    if weights is None:
        unknown = next(name for name, size in sizes.items() if size is None)
        raise BadInput(
            f"{unknown} ({locations[unknown]}) is still being prepared: `temperature` and "
            "`max_epochs` need its size",
            f"wait until it is prepared: headway data show {locations[unknown]}",
        )
    say("shares: " + ", ".join(f"{name} {weights[name] / NUM_SLOTS:.1%}" for name in weights))
    return digests, weights


def _tokenizer_state(job: PrepareJob) -> list[object]:
    """A tokenizer in a folder is identified by its content: the folder may keep its name."""
    from headway.data.prepare.set_tokenizer import companions_digest

    source = job.tokenizer
    # Left out if there is none, so that prepared sets keep their names.
    template: list[object] = [source.chat_template] if source.chat_template is not None else []
    if source.load is not None and (job.beside / source.load / "tokenizer.json").is_file():
        folder = job.beside / source.load
        if job.settings.messages is not None or job.settings.transform is not None:
            template.append(companions_digest(folder))
        content = (folder / "tokenizer.json").read_bytes()
        return [xxhash.xxh3_64_hexdigest(content), None, *template]
    revision = [source.revision] if source.revision is not None else []
    return [source.load, source.train_vocab, *template, *revision]


def _tokenizer_source(
    tokenizer: TokenizerConfig | None, tokenizer_of: str | None, commits: Mapping[str, str]
) -> TokenizerSource:
    """The tokenizer that is given, else that of the set at `tokenizer_of`."""
    from headway.data.tokenizer import TokenizerSource

    if tokenizer is None:
        assert tokenizer_of is not None, "require_complete has seen to it"
        return TokenizerSource(load=tokenizer_folder(tokenizer_of) if tokenizer_of else "")
    if tokenizer.train is not None:
        return TokenizerSource(train_vocab=tokenizer.train.vocab)
    assert tokenizer.from_ is not None
    named = HubReference("models", tokenizer.from_, tokenizer.revision)
    return TokenizerSource(
        load=tokenizer.from_,
        chat_template=tokenizer.chat_template,
        revision=commits.get(named.id, tokenizer.revision),
    )


def tokenizer_folder(location: str) -> str:
    """Folder on this machine with the tokenizer of a set or mixture, wherever that is."""
    from headway.data.reading.sample_set import open_set

    with closing(open_set(Store(location))) as samples:
        return str(samples.tokenizer_folder)
