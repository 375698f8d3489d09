"""Samples of one epoch of a run's training set, and what the run takes of each set of a mixture, as
far as this machine knows them: read from the manifest of a set that is prepared, without opening
it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.mixture_weights import SetSize, decided_weights, samples_of_mixture
from headway.cli.preflight import steps_of
from headway.data.mixture_shares import NUM_SLOTS
from headway.errors import HeadwayError
from headway.spec.hub_names import SOURCE
from headway.state.set_files import MANIFEST, MIXTURE, PREPARED

if TYPE_CHECKING:
    from headway.spec.data_config import DataSetConfig, MixtureMemberConfig
    from headway.spec.load import Loaded
    from headway.state.run_directory import RunDirectory

REMOTE = ("://", SOURCE, "claim:")
GIVE = "--set 'train_for=N tokens'"


def epoch_samples(loaded: Loaded) -> int | None:
    """None: the set is not prepared, or elsewhere."""
    train, length = loaded.run.data.train, loaded.run.data.sequence_length
    if train is None or train.is_streamed:
        return None
    if train.mixture is not None:
        sizes = _sizes_of_members(loaded, train.mixture)
        return samples_of_mixture(
            [size.samples if size else None for size in sizes.values()],
            [one.epochs for one in train.mixture.values()],
        )
    if train.path is not None:
        if _is_remote(train.path):
            return None
        return samples_of_set(str(loaded.folder / train.path), length)
    if any(map(_is_remote, train.sources or ())):
        return None  # which state of them was prepared, only they say
    return _samples_of_sources(loaded)


@dataclass(frozen=True)
class MemberUse:
    """What a run takes of a set of its mixture. None: it depends on a set that this machine does
    not know."""

    share: float | None
    """Fraction of the run's samples."""
    epochs: float | None
    """Number of times that the run reads the set."""


def uses_of_members(loaded: Loaded) -> dict[str, MemberUse]:
    """Keyed by the members' names. Empty if the training set is no mixture."""
    train = loaded.run.data.train
    if train is None or train.mixture is None:
        return {}
    sizes, run_samples = _sizes_of_members(loaded, train.mixture), _samples_to_train(loaded)
    weights = decided_weights(_with_begun_here(loaded), sizes)
    uses = {}
    for name, own in sizes.items():
        share = None if weights is None else weights[name] / NUM_SLOTS
        epochs = None
        if share is not None and run_samples is not None and own is not None:
            epochs = share * run_samples / own.samples
        uses[name] = MemberUse(share, epochs)
    return uses


def _with_begun_here(loaded: Loaded) -> Loaded:
    """With what the run's first start decided, if it was on this machine."""
    from headway.cli.hub_pins import spec_before, with_begun
    from headway.spec.resolve import run_directory

    location = run_directory(loaded)
    return loaded if "://" in location else with_begun(loaded, spec_before(location))


def _sizes_of_members(
    loaded: Loaded, members: Mapping[str, MixtureMemberConfig]
) -> dict[str, SetSize | None]:
    """Size of each set. None: it is not prepared, or elsewhere."""
    return {
        name: None
        if one.path is None or _is_remote(one.path)
        else _size_of_set(loaded.folder / one.path, loaded.run.data.sequence_length)
        for name, one in members.items()
    }


def _samples_to_train(loaded: Loaded) -> float | None:
    """Samples of the whole run. None: it depends on an epoch of unknown length."""
    run = loaded.run
    if run.train_for.unit == "epochs":
        return _times(run.train_for.amount, epoch_samples(loaded))
    steps = steps_of(run)
    if steps is None or run.batch is None:
        return None
    return steps * run.batch.global_.sequences(run.data.sequence_length)


def _times(amount: float | None, number: float | None) -> float | None:
    return None if amount is None or number is None else amount * number


def _samples_of_sources(loaded: Loaded) -> int | None:
    from headway.cli.run_sets import prepared_here

    if not any((loaded.folder / PREPARED).glob(f"train-*/{MANIFEST}")):
        return None
    with suppress(HeadwayError):  # the train extra is missing, or a source is
        location = prepared_here(loaded)
        length = loaded.run.data.sequence_length
        return None if location is None else samples_of_set(location, length)
    return None


def samples_of_run(directory: RunDirectory) -> int | None:
    """As its workers counted them; None before its first start."""
    started = [event for event in directory.history() if event["event"] == "started"]
    return started[-1]["samples"] if started else None


def samples_of_set(location: str, sequence_length: int) -> int | None:
    """None: it is not complete, not on this machine, or for another length. As `num_samples` of the
    set counts them when it is opened."""
    if "://" in location:
        return None
    folder = Path(location)
    with suppress(OSError, ValueError, KeyError, TypeError):
        if (folder / MIXTURE).is_file():
            members = json.loads((folder / MIXTURE).read_text("utf-8"))["members"]
            each = [
                samples_of_set(str(folder / member["location"]), sequence_length)
                for member in members
                if "://" not in member["location"]
            ]
            if len(each) < len(members):
                return None
            return samples_of_mixture(each, [member.get("epochs") for member in members])
        size = _size_of_set(folder, sequence_length)
        return None if size is None else size.samples
    return None


def _size_of_set(folder: Path, sequence_length: int) -> SetSize | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text("utf-8"))
        tokens, samples = int(manifest["num_tokens"]), 0
        if manifest["layout"] == "stream":
            samples = (tokens - 1) // sequence_length
        elif manifest["window_tokens"] == sequence_length:
            samples = tokens // sequence_length
        return SetSize(tokens, samples) if samples else None
    return None


def what_is_missing(loaded: Loaded) -> str:
    """Why the number of steps is not known, and how to give it."""
    train, length = loaded.run.data.train, loaded.run.train_for
    if train is not None and train.is_streamed:
        return (
            f"train_for: {length}: an epoch of a streamed set has no known length; give tokens or "
            f"steps: {GIVE}"
        )
    if (where := _elsewhere(train)) is not None:
        return (
            f"train_for: {length}: how many steps an epoch has is in {where}, which a plan does "
            f"not fetch; `headway data show` says its number of tokens: {GIVE}"
        )
    return (
        f"train_for: {length}: how many steps an epoch has, only the prepared training set says, "
        "and it is not prepared on this machine (the first headway run prepares it); for a time "
        f"and a cost before that, give what you expect: {GIVE}"
    )


def _elsewhere(train: DataSetConfig | None) -> str | None:
    if train is None:
        return None
    if train.path is not None:
        return train.path if _is_remote(train.path) else None
    members = train.mixture.values() if train.mixture else ()
    return next((one.path for one in members if one.path and _is_remote(one.path)), None)


def _is_remote(path: str) -> bool:
    return REMOTE[0] in path or path.startswith(REMOTE[1:])
