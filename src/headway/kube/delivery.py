"""What of a run lies on this machine, and where it goes on a target's storage.

    ROOT/runs/NAME            run directories
    ROOT/sets/DIGEST          prepared sets
    ROOT/code/DIGEST          Python files of a code folder
    ROOT/models/DIGEST        a model's folder in the HF format

ROOT is the claim's mount or the bucket's URL. All of it is inside what the target names: what lies
beside that prefix may be somebody else's. Things are kept by their content, so they are brought
there once, whoever brings them, and nothing is ever overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.errors import SpecError
from headway.kube.names import FETCHED, HEADWAY, STORAGE
from headway.kube.overrides import Unfit
from headway.spec.load import Loaded
from headway.spec.resolve import Resolved
from headway.spec.run import DataSet, Model, RunFile, Source
from headway.spec.target import Target
from headway.state.listing import listing_of

Kind = Literal["sets", "code", "models"]
Key = tuple[str, ...]
"""Of the run file."""
MODEL, TEACHER, CODE = ("model", "from"), ("objective", "teacher", "from"), ("code", "path")
TRAIN = ("data", "train")
HELD_OUT = "held_out"
"""The validation set that `hold_out` makes."""
PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})
"""Never read, so never brought anywhere."""


@dataclass(frozen=True)
class Place:
    """A folder on this machine that the run needs."""

    key: Key
    """What names it."""
    kind: Kind | Literal["tokenizers"]
    """A tokenizer's folder stays here: a prepared set has its own copy."""
    path: Path


@dataclass(frozen=True)
class Layout:
    """Of a target's storage, as the run's pods see it."""

    root: str
    runs: str
    """Parent of run directories. Not below the root where the run file names a bucket itself."""

    @classmethod
    def of(cls, run: RunFile, target: Target) -> Layout:
        own = run.storage.rstrip("/") if "://" in run.storage else None
        if target.storage is not None:
            root = (target.storage.url or STORAGE).rstrip("/")
        elif own is not None:
            root = own
        else:
            raise Unfit(
                "it is missing: checkpoints would be on a pod's disk, and lost with it",
                ("storage",),
                "storage: {claim: NAME}, or s3://BUCKET/PREFIX",
            )
        return cls(root, own or f"{root}/runs")

    def kept(self, kind: Kind, digest: str) -> str:
        """Where it is brought to."""
        return f"{self.root}/{kind}/{digest}"

    def seen(self, kind: Kind, digest: str) -> str:
        """Where workers read it: sets where they are, and models of a claim; code, and models of a
        bucket, from a folder of the pod, into which it fetches what has this digest. For others may
        write to the storage, and code is run."""
        if kind == "code" or (kind == "models" and "://" in self.root):
            return f"{FETCHED}/{kind}/{digest}"
        return self.kept(kind, digest)


def local_places(loaded: Loaded, is_folder: Callable[[Path], bool]) -> list[Place]:
    """Hub names and addresses are none. `is_folder` tells a hub name from a folder: both may be
    plain words."""
    run, folder = loaded.run, loaded.folder
    return [
        *_models_here(loaded, is_folder),
        *_sets_here(run, folder),
        *_tokenizers_here(run, folder),
        *([Place(CODE, "code", folder / run.code.path)] if run.code else []),
    ]


def sets_there(
    run: RunFile, layout: Layout, digests: Mapping[Key, str]
) -> tuple[str, dict[str, str]]:
    """Locations of the training set and of the validation sets by name, for workers. A digest that
    is not known yet is stood in for."""
    train, *others = (
        (key, address or layout.seen("sets", digests.get(key) or stand_in(key)))
        for key, address in sets_of(run).items()
    )
    return train[1], {key[-1]: location for key, location in others}


def sets_of(run: RunFile) -> dict[Key, str | None]:
    """All sets of the run, the training set first: the address of one that stays where it is, None
    for one that is brought there."""
    sets: dict[Key, str | None] = {
        key: dataset.path if dataset.path is not None and "://" in dataset.path else None
        for key, dataset in _datasets(run)
    }
    if run.data.train is not None and run.data.train.hold_out is not None:
        sets["data", "validation", HELD_OUT] = None
    return sets


def moved(
    resolved: Resolved, layout: Layout, places: Sequence[Place], digests: Mapping[Key, str]
) -> Resolved:
    """With locations as they are in the run's pods. The sets' are as `sets_there` gave them."""
    by_key = {place.key: place for place in places}

    def seen(key: Key) -> str:
        place = by_key[key]
        assert place.kind != "tokenizers"
        return layout.seen(place.kind, digests.get(key) or stand_in(key))

    def model_there(key: Key, model: Model) -> Model:
        if key in by_key:
            return model.model_copy(update={"from_": seen(key)})
        if model.from_ is not None and "@" in model.from_ and "://" not in model.from_:
            # Another run of this target.
            return model.model_copy(update={"from_": f"{layout.runs}/{model.from_}"})
        return model

    run = resolved.run
    changed: dict[str, object] = {}
    if run.model is not None:
        changed["model"] = model_there(MODEL, run.model)
    if run.objective.teacher is not None:
        teacher = model_there(TEACHER, run.objective.teacher)
        changed["objective"] = run.objective.model_copy(update={"teacher": teacher})
    if run.code is not None:
        changed["code"] = run.code.model_copy(update={"path": seen(CODE)})
    return resolved.model_copy(
        update={
            "run": run.model_copy(update=changed),
            # Nothing is in it: all paths are whole by now, and names on the hub stay names.
            "folder": HEADWAY,
            "run_directory": f"{layout.runs}/{resolved.name}",
        }
    )


def fetched_from(resolved: Resolved) -> dict[str, str]:
    """Of a run in its pods: folders that have to be fetched, and what they are called below the
    storage's root."""
    run = resolved.run
    models = (run.model, run.objective.teacher)
    named = [model.from_ for model in models if model is not None]
    named += [run.code.path] if run.code is not None else []
    prefix = f"{FETCHED}/"
    return {path: path.removeprefix(prefix) for path in named if path and path.startswith(prefix)}


def stand_in(key: Key) -> str:
    """For a digest that is not known before the data is prepared."""
    return f"<digest of {'.'.join(key)}>"


def model_files(folder: Path) -> list[Path]:
    """What is brought there of a model's folder."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and not path.name.startswith(".") and path.suffix not in PICKLES
    )


def model_digest(folder: Path) -> str:
    """Of these files, by name and content."""
    return listing_of({path.name: path for path in model_files(folder)}).digest


def _models_here(loaded: Loaded, is_folder: Callable[[Path], bool]) -> Iterator[Place]:
    run, folder = loaded.run, loaded.folder
    models = {MODEL: run.model, TEACHER: run.objective.teacher}
    for key, model in models.items():
        if model is None or model.from_ is None or "://" in model.from_:
            continue
        if "@" in model.from_:
            if "/" in model.from_:
                raise SpecError(
                    f"{'.'.join(key)}: {model.from_} is a run on this machine, which pods cannot "
                    "see",
                    str(loaded.located.mark(key)),
                    "name a run of the target, or headway export it and name that folder",
                )
        elif _looks_local(model.from_) or is_folder(folder / model.from_):
            yield Place(key, "models", folder / Path(model.from_).expanduser())


def _sets_here(run: RunFile, folder: Path) -> Iterator[Place]:
    for key, dataset in _datasets(run):
        members: Mapping[str, Source] = dataset.mixture or {}
        named: dict[Key, Source] = {key: dataset}
        named |= {(*key, "mixture", name): member for name, member in members.items()}
        for inner, source in named.items():
            if source.path is not None and "://" not in source.path:
                yield Place(inner, "sets", folder / source.path)


def _tokenizers_here(run: RunFile, folder: Path) -> Iterator[Place]:
    """Where text is still to be prepared. Names that are no path may be the hub's."""
    for key, dataset in _datasets(run):
        name = dataset.tokenizer.from_ if dataset.tokenizer else None
        if name is not None and _looks_local(name):
            yield Place((*key, "tokenizer"), "tokenizers", folder / Path(name).expanduser())


def _datasets(run: RunFile) -> Iterator[tuple[Key, DataSet]]:
    if run.data.train is not None:
        yield TRAIN, run.data.train
    for name, dataset in run.data.validation.items():
        yield ("data", "validation", name), dataset


def _looks_local(name: str) -> bool:
    """As data/tokenizer.py tells a folder from a hub name when neither is there."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1
