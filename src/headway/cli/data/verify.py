"""headway data verify: are the files of a set intact?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import JsonOption
from headway.cli.output import print_json, short_count, short_time
from headway.errors import BadInput, CheckFailed, needs_train
from headway.state.store import Store

if TYPE_CHECKING:
    from headway.data.reading.verify import Damage
    from headway.data.set_format import SetManifest

TICK_SECONDS = 1.0


def verify(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="A prepared set, or a mixture of them.")
    ],
    json_: JsonOption = False,
) -> None:
    """Read every file of a set and compare it with its digest. Exit code 4 if any is damaged."""
    try:
        from headway.data.reading.mixture import is_mixture
    except ImportError as error:
        raise needs_train("headway data verify", error) from None
    directory = directory.rstrip("/") or directory
    store = Store(directory)
    stores = _members(store) if is_mixture(store) else [store]
    found = [_verified(one) for one in stores]
    damaged = [one for one in found if one.damages]
    if json_:
        sets = [one.as_json() for one in found]
        print_json({"location": directory, "is_intact": not damaged, "sets": sets})
    else:
        for damage in (damage for one in damaged for damage in one.damages):
            print(damage.message)
    if damaged:
        raise damaged[0].error()
    if not json_:
        for one in found:
            print(f"intact: {one.location}, {one.size}")


@dataclass(frozen=True)
class _VerifiedSet:
    location: str
    size: str
    damages: list[Damage]

    def as_json(self) -> dict[str, object]:
        damages = [{"shard": one.shard, "message": one.message} for one in self.damages]
        return {"location": self.location, "damages": damages}

    def error(self) -> CheckFailed:
        is_here = "://" not in self.location
        deletion = f"rm -r {shlex.quote(self.location)}" if is_here else "delete it"
        return CheckFailed(
            f"{self.location} is damaged",
            f"fetch an intact copy, or prepare the set again: {deletion}, then the headway data "
            "prepare or headway run that made it",
        )


def _verified(store: Store) -> _VerifiedSet:
    from headway.data.reading.verify import Damage, verify_set

    try:
        manifest = _manifest(store)
    except CheckFailed as error:
        return _VerifiedSet(store.root, "", [Damage(None, error.message)])
    num_shards = manifest.num_shards
    size = (
        f"{short_count(num_shards)} shard{'s' if num_shards > 1 else ''}, "
        f"{short_count(manifest.num_tokens)} tokens"
    )
    with _ticking(f"verifying {store.root}: reading {size}"):
        return _VerifiedSet(store.root, size, verify_set(store))


def _manifest(store: Store) -> SetManifest:
    """Raises CheckFailed if it exists and cannot be read."""
    from headway.clock import SystemClock
    from headway.data.retry import OPEN_SECONDS, with_retries
    from headway.data.set_format import MANIFEST, read_manifest

    def read() -> SetManifest:
        try:
            return read_manifest(store)
        except BadInput as error:
            raise CheckFailed(error.message, error.hint) from None

    return with_retries(store, MANIFEST, read, SystemClock(), OPEN_SECONDS)


def _members(store: Store) -> list[Store]:
    from headway.data.reading.mixture import MixtureSet

    try:
        mixture = MixtureSet.open(store)
    except BadInput as error:
        raise CheckFailed(
            error.message, "verify the mixture's sets one by one: headway data verify SET"
        ) from None
    mixture.close()
    return [Store(tokens.location) for tokens in mixture.sets]


@contextmanager
def _ticking(words: str) -> Iterator[None]:
    """Shows a line with the elapsed time, once a second has passed."""
    from headway.cli.progress import MovingLine

    line, is_over = MovingLine(), Event()

    def tick() -> None:
        seconds = 0.0
        while not is_over.wait(TICK_SECONDS):
            seconds += TICK_SECONDS
            line.show(f"{words}, {short_time(seconds)}")

    thread = Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        line.close()
