"""headway data verify: are the files of a set intact? Repairs those that are not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import JsonOption
from headway.cli.output import print_json, say, short_count, short_time, warn
from headway.errors import BadInput, CheckFailed, HeadwayError, needs_train
from headway.state.store import Store

if TYPE_CHECKING:
    from headway.data.reading.verify import Damage
    from headway.data.set_format import SetManifest

TICK_SECONDS = 1.0


def verify(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="A prepared set, or a mixture of them.")
    ],
    repair: Annotated[
        bool, typer.Option("--repair", help="Rebuild damaged shards from their sources.")
    ] = False,
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
    found = [_Checked(one) for one in stores]
    for checked in found:
        checked.look()
        if repair:
            checked.repair()
    if json_:
        sets = [checked.as_json() for checked in found]
        is_intact = not any(checked.damages for checked in found)
        print_json({"location": directory, "is_intact": is_intact, "sets": sets})
    else:
        for checked in found:
            for damage in checked.damages:
                print(damage.message)
    damaged = [checked for checked in found if checked.damages]
    if damaged:
        raise damaged[0].error()
    if not json_:
        for checked in found:
            print(f"intact: {checked.location}, {checked.size}")


class _Checked:
    """One set, and its damages."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.location = store.root
        self.damages: list[Damage] = []
        self.repaired: list[str] = []
        self.repair_failed = False
        self.size = ""

    def look(self) -> None:
        from headway.data.reading.verify import Damage
        from headway.data.reading.verify import verify_set as find_damage

        try:
            manifest = _manifest(self.store)
        except CheckFailed as error:
            self.damages = [Damage(None, error.message)]
            return
        self.size = _size(manifest)
        with _ticking(f"verifying {self.location}: reading {self.size}"):
            self.damages = find_damage(self.store)

    @property
    def shards(self) -> list[str]:
        """Damaged shards, each once."""
        return list(dict.fromkeys(one.shard for one in self.damages if one.shard is not None))

    @property
    def is_beyond_repair(self) -> bool:
        """Shards are rebuilt with the tokenizer and compared with the manifest: if one of these is
        damaged, a repair would overwrite intact shards."""
        return any(one.shard is None for one in self.damages)

    def repair(self) -> None:
        from headway.data.prepare.repair import repair_shards

        if not self.damages or self.is_beyond_repair:
            return
        for one in self.damages:
            say(one.message)
        try:
            repair_shards(self.store, self.shards, self._tell)
        except HeadwayError as error:
            self.repair_failed = True
            warn(str(error))
        self.look()

    def _tell(self, shard: str) -> None:
        say(f"rebuilt shard {shard} from its sources")
        self.repaired.append(shard)

    def as_json(self) -> dict[str, object]:
        return {
            "location": self.location,
            "damages": [{"shard": one.shard, "message": one.message} for one in self.damages],
            "repaired": self.repaired,
        }

    def error(self) -> CheckFailed:
        where = f"{self.location} is damaged"
        if self.is_beyond_repair:
            return CheckFailed(
                f"{where}, and its manifest or tokenizer cannot be rebuilt from the sources",
                "restore that file from a copy of the set, or prepare the set again elsewhere",
            )
        shards = self.shards
        words = f"{where} in {len(shards)} shard{'s' if len(shards) > 1 else ''}"
        if self.repair_failed:
            return CheckFailed(words, "the warning says why; or fetch an intact copy")
        return CheckFailed(
            words,
            "fetch an intact copy, or rebuild them from the sources: "
            f"headway data verify {self.location} --repair",
        )


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
    return [tokens.store for tokens in mixture.sets]


def _size(manifest: SetManifest) -> str:
    from headway.data.reading.inspect import set_bytes

    num_shards = len(manifest.shards)
    return (
        f"{short_count(num_shards)} shard{'s' if num_shards > 1 else ''}, "
        f"{short_count(manifest.num_tokens)} tokens, {set_bytes(manifest) / 1e6:,.1f} MB"
    )


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
