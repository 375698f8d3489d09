"""headway run --on TARGET: whether the run fits there, and what would be made, shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import yaml

from headway.cli.check import (
    parameters_of,
    warn_of_later_keys,
    warn_of_long_warmup,
)
from headway.cli.output import hint, print_json, say, warn
from headway.errors import BadInput, NotFound, SpecError, needs_train
from headway.kube.delivery import (
    Key,
    Layout,
    Place,
    local_places,
    model_digest,
    sets_of,
    stand_in,
)
from headway.kube.manifests import NOT_SHOWN, manifests, without_key
from headway.kube.names import Object
from headway.kube.overrides import Unfit
from headway.kube.placing import placed
from headway.member.keys import new_key
from headway.spec.load import load_target
from headway.state.code import code_digest

if TYPE_CHECKING:
    from headway.spec.load import Loaded, LoadedTarget
    from headway.spec.resolve import Resolved


def show_on(loaded: Loaded, name: str | None, nodes: int | None, output: str | None) -> None:
    """`headway run --dry-run`."""
    if name is None:
        raise BadInput(
            "--dry-run shows what would be made on a target",
            "--on NAME; headway check says what a run comes to",
        )
    warn_of_keys(loaded)
    shown = without_key(rendered(loaded, name, nodes, new_key()))
    if output == "json":
        print_json({"apiVersion": "v1", "kind": "List", "items": shown})
    else:
        print(as_yaml(shown), end="")


def warn_of_keys(loaded: Loaded) -> None:
    warn_of_later_keys(loaded)
    warn_of_long_warmup(loaded)


def rendered(loaded: Loaded, name: str, nodes: int | None, key: str) -> list[Object]:
    """All objects of the run on this target. Says what would be brought there, and what of it is
    not known yet."""
    found = load_target(name, loaded.folder)
    with placing_on(found):
        layout = Layout.of(loaded.run, found.target)
    places = local_places(loaded, lambda path: path.is_dir())
    digests = digests_here(loaded, places)
    resolved = fitted(loaded, found, nodes, layout, places, digests)
    warn_of_placing(loaded, found, resolved)
    for place in places:
        if place.kind != "tokenizers":
            kept = layout.kept(place.kind, digests[place.key])
            say(f"{'.'.join(place.key)}: {place.path} goes to {kept}")
    for name_of_set, address in sets_of(loaded.run).items():
        if address is None and name_of_set not in digests:
            say(
                f"{'.'.join(name_of_set)}: its digest is not known before it is prepared; "
                f"{stand_in(name_of_set)} stands for it"
            )
    return manifests(resolved, found.target, key)


@contextmanager
def placing_on(found: LoadedTarget) -> Iterator[None]:
    """What does not fit is said with its place in the file."""
    try:
        yield
    except Unfit as unfit:
        keys = ".".join(map(str, (found.name, *unfit.path)))
        where = str(found.mark(unfit.path))
        raise SpecError(f"{keys}: {unfit.message}", where, unfit.hint) from None


def fitted(
    loaded: Loaded,
    found: LoadedTarget,
    nodes: int | None,
    layout: Layout,
    places: Sequence[Place],
    digests: Mapping[Key, str],
) -> Resolved:
    """The run as it is on the target, once it is sure that its objects can be made."""
    _refuse_stream(loaded)
    with placing_on(found):
        resolved = placed(
            loaded,
            found.target,
            nodes=nodes,
            parameters=parameters_of(loaded.run),
            layout=layout,
            places=places,
            digests=digests,
        )
        manifests(resolved, found.target, NOT_SHOWN)
    return resolved


def warn_of_placing(loaded: Loaded, found: LoadedTarget, resolved: Resolved) -> None:
    """What can be, and may not be what is wanted."""
    resources = resolved.run.resources
    is_written = "spot" in resources.model_fields_set
    if is_written and resources.spot == "none" and not found.target.spot_label:
        key = ("resources", "spot")
        is_of_run = "spot" in loaded.run.resources.model_fields_set
        where = loaded.located.mark(key) if is_of_run else found.mark(key)
        warn(
            f"{where}: `spot: none` keeps no pod off spot machines: {found.name} has no spot_label "
            "to tell them by"
        )
        hint("spot_label: {karpenter.sh/capacity-type: spot}, or what such machines carry here")


def digests_here(loaded: Loaded, places: Sequence[Place]) -> dict[Key, str]:
    """Of what is to be brought there, and is there already without preparing it."""
    digests: dict[Key, str] = {}
    for place in places:
        where = str(loaded.located.mark(place.key))
        if not place.path.is_dir():
            raise SpecError(
                f"{'.'.join(place.key)}: there is no folder {place.path}",
                where,
                "paths start at the run file's folder",
            )
        match place.kind:
            case "code":
                digests[place.key] = code_digest(place.path)
            case "models":
                digests[place.key] = model_digest(place.path)
            case "sets":
                digests[place.key] = _set_digest(place, where)
    return digests


def as_yaml(objects: Sequence[Object]) -> str:
    """One document each."""
    return str(
        yaml.dump_all(
            objects,
            Dumper=_Dumper,
            sort_keys=False,
            explicit_start=True,
            allow_unicode=True,
            width=1000,
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


def _set_digest(place: Place, where: str) -> str:
    try:
        from headway.data.reading.mixture import MIXTURE, read_mixture
        from headway.data.shards import read_manifest
    except ImportError as error:
        raise needs_train("reading a prepared set", error) from None
    read = read_mixture if (place.path / MIXTURE).is_file() else read_manifest
    try:
        return read(place.path).digest
    except NotFound as error:
        raise SpecError(f"{'.'.join(place.key)}: {error.message}", where, error.hint) from None


def _refuse_stream(loaded: Loaded) -> None:
    assert loaded.run.data.train is not None
    if loaded.run.data.train.stream:
        raise SpecError(
            "data.train.stream: a set that is still being prepared here is of no use to pods",
            str(loaded.located.mark(("data", "train", "stream"))),
            "leave it out, and the set is prepared first",
        )
