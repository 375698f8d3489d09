"""What a run needs from this machine is brought to its storage: sets, models, code, each once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.output import say
from headway.clock import SystemClock
from headway.errors import BadInput
from headway.kube.delivery import TRAIN, Key, Place, model_files
from headway.launch.delivering import deliver, is_there
from headway.state.code import code_files
from headway.state.listing import listing_of
from headway.state.store import Store

if TYPE_CHECKING:
    from headway.cli.sets import Sets
    from headway.launch.delivering import Files


def set_places(sets: Sets, scratch: Path) -> list[Place]:
    """Sets on this machine. A mixture goes there with its members, and finds them beside it."""
    named: dict[Key, str] = {TRAIN: sets.train}
    named |= {("data", "validation", name): place for name, place in sets.validation.items()}
    here = {key: Path(place) for key, place in named.items() if "://" not in place}
    return [place for key, path in here.items() for place in _with_members(key, path, scratch)]


def _with_members(key: Key, path: Path, scratch: Path) -> list[Place]:
    from headway.data.reading.mixture import MIXTURE, read_mixture

    if not (path / MIXTURE).is_file():
        return [Place(key, "sets", path)]
    mixture = read_mixture(path)
    places, members = [], []
    for member in mixture.members:
        if "://" not in member.location:
            places.append(Place((*key, "mixture", member.name), "sets", path / member.location))
            member = member.model_copy(update={"location": f"../{member.digest}"})
        members.append(member)
    there = scratch / "-".join(key)
    there.mkdir()
    moved = mixture.model_copy(update={"members": tuple(members)})
    (there / MIXTURE).write_text(moved.model_dump_json(indent=2, exclude_none=True) + "\n")
    return [*places, Place(key, "sets", there)]


def bring(storage: Store, places: list[Place], digests: dict[Key, str]) -> None:
    for place in places:
        if place.kind == "tokenizers":
            continue
        name = f"{place.kind}/{digests[place.key]}"
        if is_there(storage, name):
            continue
        what = f"{'.'.join(place.key)} to {storage.location(name)}"
        shown, files = _Progress(what), _files(place)
        listing = _listing(place, files, digests[place.key])
        deliver(storage, name, files, listing, shown, say, SystemClock())
        say(f"brought {what}")


class _Progress:
    """A line each tenth."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._tenths = 0

    def __call__(self, sent: int, total: int) -> None:
        tenths = 10 * sent // total if total else 10
        if tenths > self._tenths and tenths < 10:
            self._tenths = tenths
            say(f"{self._what}: {tenths}0 %")


def _listing(place: Place, files: Files, digest: str) -> bytes:
    if place.kind == "sets":
        sizes = {name: path.stat().st_size for name, path in sorted(files.items())}
        return json.dumps(sizes, indent=2).encode() + b"\n"
    listing = listing_of(files)
    if listing.digest != digest:
        raise BadInput(
            f"{'.'.join(place.key)}: {place.path} changed while it was being read",
            "run the same command again",
        )
    return listing.content


def _files(place: Place) -> Files:
    match place.kind:
        case "code":
            paths = code_files(place.path)
        case "models":
            paths = model_files(place.path)
        case _:
            paths = [path for path in place.path.rglob("*") if path.is_file()]
    return {path.relative_to(place.path).as_posix(): path for path in paths}
