"""headway run --on TARGET: what would be made there, shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import yaml

from headway.cli.check import parameters_of, warn_of_later_keys, warn_of_long_warmup
from headway.cli.output import print_json, say
from headway.errors import BadInput, NotFound, SpecError, needs_train
from headway.kube.delivery import Layout, Place, local_places, model_digest, stand_in
from headway.kube.manifests import manifests, without_key
from headway.kube.names import Object
from headway.kube.overrides import Unfit
from headway.kube.placing import placed
from headway.member.keys import new_key
from headway.spec.load import load_target
from headway.spec.located import Located
from headway.state.code import code_digest

if TYPE_CHECKING:
    from headway.spec.load import Loaded

ACTED_ON = (("resources", "nodes"), ("resources", "spot"))
"""Keys that do something only on a target."""
MIXTURE = "mixture.json"


def run_on(
    loaded: Loaded, name: str | None, nodes: int | None, dry_run: bool, output: str | None
) -> None:
    """`headway run` with --on, --dry-run or --output."""
    if name is None:
        raise BadInput(
            f"{'--dry-run' if dry_run else '--output'} shows what would be made on a target",
            "--on NAME; headway check says what a run comes to",
        )
    if output is not None and not dry_run:
        raise BadInput("--output goes with --dry-run")
    objects = rendered(loaded, name, nodes, new_key())
    if not dry_run:
        raise BadInput(
            f"running on a target is not there yet: {name} is read and fits",
            "--dry-run shows what would be made",
        )
    warn_of_later_keys(_without(loaded, ACTED_ON))
    warn_of_long_warmup(loaded)
    shown = without_key(objects)
    if output == "json":
        print_json({"apiVersion": "v1", "kind": "List", "items": shown})
    else:
        print(as_yaml(shown), end="")


def rendered(loaded: Loaded, name: str, nodes: int | None, key: str) -> list[Object]:
    """All objects of the run on this target. Says what would be brought there."""
    found = load_target(name, loaded.folder)
    target = found.target
    try:
        layout = Layout.of(loaded.run, target)
        places = local_places(loaded, lambda path: path.is_dir())
        _refuse_stream(loaded)
        digests = _digests(loaded, places)
        resolved = placed(
            loaded,
            target,
            nodes=nodes,
            parameters=parameters_of(loaded.run),
            layout=layout,
            places=places,
            digests=digests,
        )
        objects = manifests(resolved, target, key)
    except Unfit as unfit:
        keys = ".".join(map(str, (name, *unfit.path)))
        where = str(found.mark(unfit.path))
        raise SpecError(f"{keys}: {unfit.message}", where, unfit.hint) from None
    for place in places:
        if place.kind != "tokenizers":
            kept = layout.kept(place.kind, digests.get(place.key) or stand_in(place.key))
            say(f"{place.key}: {place.path} goes to {kept}")
    return objects


def as_yaml(objects: Sequence[Object]) -> str:
    """One document each."""
    return str(
        yaml.dump_all(
            objects, Dumper=_Dumper, sort_keys=False, explicit_start=True, allow_unicode=True
        )
    )


class _Dumper(yaml.SafeDumper):
    """Written to be read: no anchors, files as blocks, and in quotes whatever any version of YAML
    could take for something else than text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = None
        if "\n" in text:
            style = "|"
        elif len(text) < 2 or not (text[0].isalpha() or text[0] == "/"):
            style = '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def _digests(loaded: Loaded, places: Sequence[Place]) -> dict[str, str]:
    """By key of the run file, of what is there and known without preparing it."""
    digests: dict[str, str] = {}
    for place in places:
        if not place.path.is_dir():
            raise SpecError(
                f"{place.key}: there is no folder {place.path}",
                str(loaded.located.mark(tuple(place.key.split(".")))),
                "paths start at the run file's folder",
            )
        match place.kind:
            case "code":
                digests[place.key] = code_digest(place.path)
            case "models":
                digests[place.key] = model_digest(place.path)
            case "sets" if not (place.path / MIXTURE).is_file():
                digests[place.key] = _set_digest(loaded, place)
    for key in _set_keys(loaded):
        if key not in digests:
            say(f"{key}: its digest is known when it is prepared; {stand_in(key)} stands for it")
    return digests


def _set_digest(loaded: Loaded, place: Place) -> str:
    try:
        from headway.data.shards import read_manifest
    except ImportError as error:
        raise needs_train("reading a prepared set", error) from None
    try:
        return read_manifest(place.path).digest
    except NotFound as error:
        where = str(loaded.located.mark(tuple(place.key.split("."))))
        raise SpecError(f"{place.key}: {error.message}", where, error.hint) from None


def _set_keys(loaded: Loaded) -> list[str]:
    """Of sets that are brought there."""
    data = loaded.run.data
    assert data.train is not None
    sets = {"data.train": data.train}
    sets |= {f"data.validation.{name}": dataset for name, dataset in data.validation.items()}
    keys = [key for key, one in sets.items() if one.path is None or "://" not in one.path]
    return [*keys, "data.validation.held_out"] if data.train.hold_out is not None else keys


def _refuse_stream(loaded: Loaded) -> None:
    assert loaded.run.data.train is not None
    if loaded.run.data.train.stream:
        raise SpecError(
            "data.train.stream: a set that is still being prepared here is of no use to pods",
            str(loaded.located.mark(("data", "train", "stream"))),
            "leave it out, and the set is prepared first",
        )


def _without(loaded: Loaded, paths: Sequence[tuple[str, ...]]) -> Loaded:
    located = loaded.located
    keys = {path: mark for path, mark in located.keys.items() if path not in paths}
    return replace(loaded, located=Located(located.value, keys, located.values))
