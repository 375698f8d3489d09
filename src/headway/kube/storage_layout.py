"""What a run needs from this machine, and where it is on a target's storage.

    ROOT/runs/NAME            run directories
    ROOT/sets/DIGEST          prepared sets
    ROOT/sets/p-KEY           sets that pods prepare, by what they are made of
    ROOT/code/DIGEST          files of a code folder
    ROOT/models/DIGEST        a model's folder in the HF format
    ROOT/packages/DIGEST      packages of `code.requirements`, as one archive

ROOT is the claim's mount or the bucket's URL. All of it is below the prefix that the target
names: what is beside it may belong to others. Folders are named by the digest of their content, so
each is uploaded once, by anyone, and nothing is ever overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.errors import SpecError
from headway.kube.names import FETCHED, HEADWAY, STORAGE
from headway.kube.pod_overrides import TargetMismatch
from headway.spec.data_config import (
    CLAIM,
    HELD_OUT,
    DataSetConfig,
    SourceConfig,
    claim_path,
    is_elsewhere,
)
from headway.spec.load import Loaded
from headway.spec.resolve import Resolved
from headway.spec.run_file import ModelConfig, RunFile
from headway.spec.target_file import Target
from headway.state.file_listing import listing_of

Kind = Literal["sets", "code", "models", "packages"]
Key = tuple[str, ...]
"""A key of the run file."""
MODEL, TEACHER, CODE = ("model", "from"), ("objective", "teacher", "from"), ("code", "path")
TRAIN = ("data", "train")
REQUIREMENTS = ("code", "requirements")
SITE = "site"
"""Folder with the installed packages, in that of the archive."""
PREPARED_THERE = "p-"
"""Beginning of the folder of a set that pods prepare: what is in it is not known before."""
PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})
"""Never read, so never uploaded."""


@dataclass(frozen=True)
class LocalFolder:
    """A folder on this machine that the run needs."""

    key: Key
    """The key that names it."""
    kind: Kind | Literal["tokenizers"]
    """A tokenizer's folder is not uploaded: a prepared set has its own copy."""
    path: Path


@dataclass(frozen=True)
class StorageLayout:
    """Paths of a target's storage, as the run's pods see it."""

    root: str
    runs: str
    """Parent of run directories. Not below the root where the run file names a bucket itself."""

    @classmethod
    def of(cls, run: RunFile, target: Target) -> StorageLayout:
        own = run.storage.rstrip("/") if "://" in run.storage else None
        if target.storage is not None:
            root = (target.storage.url or STORAGE).rstrip("/")
        elif own is not None:
            root = own
        else:
            raise TargetMismatch(
                "it is missing: checkpoints would be on a pod's disk, and lost with it",
                ("storage",),
                "storage: {claim: NAME}, or s3://BUCKET/PREFIX",
            )
        return cls(root, own or f"{root}/runs")

    def stored_path(self, kind: Kind, digest: str) -> str:
        """Where it is uploaded to."""
        return f"{self.root}/{kind}/{digest}"

    def worker_path(self, kind: Kind, digest: str) -> str:
        """Where workers read it: sets where they are, and models of a claim; code and packages, and
        models of a bucket, from a folder of the pod, into which it fetches what has this digest.
        For others may write to the storage, and code is run."""
        if kind in ("code", "packages") or (kind == "models" and "://" in self.root):
            return f"{FETCHED}/{kind}/{digest}"
        return self.stored_path(kind, digest)


def local_folders(loaded: Loaded, is_folder: Callable[[Path], bool]) -> list[LocalFolder]:
    """Folders on this machine that the run names; hub names and URLs are not among them.
    `is_folder` tells a hub name from a folder: both may be plain words."""
    run, folder = loaded.run, loaded.folder
    return [
        *_models_here(loaded, is_folder),
        *_sets_here(run, folder),
        *_tokenizers_here(run, folder),
        *([LocalFolder(CODE, "code", folder / run.code.path)] if run.code else []),
    ]


def set_locations(
    run: RunFile, layout: StorageLayout, digests: Mapping[Key, str]
) -> tuple[str, dict[str, str]]:
    """Locations of the training set and of the validation sets by name, for workers. A digest that
    is not known yet is a placeholder."""
    train, *others = (
        (key, address or layout.worker_path("sets", digests.get(key) or digest_placeholder(key)))
        for key, address in set_addresses(run).items()
    )
    return train[1], {key[-1]: location for key, location in others}


def set_addresses(run: RunFile) -> dict[Key, str | None]:
    """All sets of the run, the training set first: the address of one that stays where it is, None
    for one that is uploaded."""
    sets = {key: _address(dataset.path) for key, dataset in _datasets(run)}
    if run.data.train is not None and run.data.train.hold_out is not None:
        sets["data", "validation", HELD_OUT] = None
    return sets


def _address(path: str | None) -> str | None:
    """As pods see it; None for one on this machine."""
    if path is not None and path.startswith(CLAIM):
        return f"{STORAGE}/{claim_path(path)}"
    return path if path is not None and "://" in path else None


def in_pods(
    resolved: Resolved,
    layout: StorageLayout,
    folders: Sequence[LocalFolder],
    digests: Mapping[Key, str],
) -> Resolved:
    """The run with paths as they are in its pods. Those of sets are from `set_locations`."""
    by_key = {folder.key: folder for folder in folders}

    def seen(key: Key) -> str:
        folder = by_key[key]
        assert folder.kind != "tokenizers"
        return layout.worker_path(folder.kind, digests.get(key) or digest_placeholder(key))

    def model_there(key: Key, model: ModelConfig) -> ModelConfig:
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
    packages = None
    if run.code is not None:
        changed["code"] = run.code.model_copy(update={"path": seen(CODE)})
        if run.code.requirements is not None:
            # They are installed when the run is launched.
            digest = digests.get(REQUIREMENTS) or digest_placeholder(REQUIREMENTS)
            packages = f"{layout.worker_path('packages', digest)}/{SITE}"
    return resolved.model_copy(
        update={
            "run": run.model_copy(update=changed),
            # Nothing is in it: all paths are whole by now, and names on the hub stay names.
            "folder": HEADWAY,
            "run_directory": f"{layout.runs}/{resolved.name}",
            "code_digest": digests.get(CODE),
            "packages": packages,
        }
    )


def folders_to_fetch(resolved: Resolved) -> dict[str, str]:
    """Folders that the run's pods fetch, and their names below the root of the storage."""
    run = resolved.run
    models = (run.model, run.objective.teacher)
    named = [model.from_ for model in models if model is not None]
    named += [run.code.path] if run.code is not None else []
    named += [resolved.packages.removesuffix(f"/{SITE}")] if resolved.packages is not None else []
    prefix = f"{FETCHED}/"
    return {path: path.removeprefix(prefix) for path in named if path and path.startswith(prefix)}


def digest_placeholder(key: Key) -> str:
    """For a digest that is not known before the data is prepared."""
    return f"<digest of {'.'.join(key)}>"


def model_files(folder: Path) -> list[Path]:
    """Files of a model's folder that are uploaded."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and not path.name.startswith(".") and path.suffix not in PICKLES
    )


def model_digest(folder: Path) -> str:
    """Digest of these files, by name and content."""
    return listing_of({path.name: path for path in model_files(folder)}).digest


def _models_here(loaded: Loaded, is_folder: Callable[[Path], bool]) -> Iterator[LocalFolder]:
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
                    "name a run of the target, or the folder that this writes: "
                    f"headway export {model.from_}",
                )
        elif _looks_local(model.from_) or is_folder(folder / model.from_):
            yield LocalFolder(key, "models", folder / Path(model.from_).expanduser())


def _sets_here(run: RunFile, folder: Path) -> Iterator[LocalFolder]:
    for key, dataset in _datasets(run):
        members: Mapping[str, SourceConfig] = dataset.mixture or {}
        named: dict[Key, SourceConfig] = {key: dataset}
        named |= {(*key, "mixture", name): member for name, member in members.items()}
        for inner, source in named.items():
            if source.path is not None and not is_elsewhere(source.path):
                yield LocalFolder(inner, "sets", folder / source.path)


def _tokenizers_here(run: RunFile, folder: Path) -> Iterator[LocalFolder]:
    """Where text is still to be prepared. Names that are no path may be the hub's."""
    for key, dataset in _datasets(run):
        name = dataset.tokenizer.from_ if dataset.tokenizer else None
        if name is not None and _looks_local(name):
            yield LocalFolder((*key, "tokenizer"), "tokenizers", folder / Path(name).expanduser())


def _datasets(run: RunFile) -> Iterator[tuple[Key, DataSetConfig]]:
    if run.data.train is not None:
        yield TRAIN, run.data.train
    for name, dataset in run.data.validation.items():
        yield ("data", "validation", name), dataset


def _looks_local(name: str) -> bool:
    """As data/tokenizer.py tells a folder from a hub name when neither exists."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1
