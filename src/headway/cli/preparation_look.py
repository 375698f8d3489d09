"""How far a preparation on a target is, by what is complete in the storage."""

from __future__ import annotations

from headway.cli.output import short_count, short_time
from headway.clock import Clock
from headway.data.prepare.partial_manifest import PartialManifest
from headway.data.prepare.recipe import read_recipe
from headway.data.reading.inspect import preparation_status
from headway.data.set_format import MANIFEST
from headway.launch.data_run import PreparationState
from headway.state.set_files import FAILED
from headway.state.store import Store


class PreparationLook:
    def __init__(self, store: Store, name: str, clock: Clock) -> None:
        self._store = store
        self._name = name
        self._clock = clock
        self._partial: PartialManifest | None = None
        self._began: tuple[float, float] | None = None
        """When the first shards were seen, and the share of the source that was done then."""

    def state(self) -> PreparationState:
        if self._store.size(MANIFEST) is not None:
            return PreparationState("", is_done=True)
        if self._store.size(FAILED) is not None:
            return PreparationState("", failure=self._store.read(FAILED).decode())
        if self._partial is None:
            recipe = read_recipe(self._store)
            if recipe is None:
                what = "listing the sources, making the tokenizer"
                return PreparationState(f"preparing {self._name}: {what}")
            self._partial = PartialManifest(recipe, "sums")
        status = preparation_status(self._store, self._partial)
        assert status is not None
        documents, tokens = short_count(status.num_documents), short_count(status.num_tokens)
        bad = f"  {status.num_problems} unreadable" if status.num_problems else ""
        return PreparationState(
            f"preparing {self._name}: {status.share:4.0%}  {documents} documents  {tokens} tokens"
            f"{self._left(status.share)}{bad}"
        )

    def _left(self, share: float) -> str:
        now = self._clock.monotonic()
        if self._began is None:
            self._began = now, share
        since, before = self._began
        if share <= before:
            return ""
        return f"  {short_time((now - since) * (1 - share) / (share - before))} left"
