"""How far a preparation on a target is, by what is complete in the storage."""

from __future__ import annotations

from headway.cli.output import short_count, short_time
from headway.clock import Clock
from headway.data.prepare.manifest import ShardRecords, is_finished
from headway.data.prepare.recipe import Recipe, SourceUnit, read_recipe, source_units
from headway.data.prepare.shard_writer import RECORD, ShardRecord
from headway.data.set_format import MANIFEST, SHARDS
from headway.launch.data_run import PreparationState
from headway.state.set_files import FAILED
from headway.state.store import NUM_REQUESTS, Store, in_parallel


class PreparationLook:
    """Reads each record once."""

    def __init__(self, store: Store, name: str, clock: Clock) -> None:
        self._store = store
        self._name = name
        self._clock = clock
        self._recipe: Recipe | None = None
        self._units: list[SourceUnit] = []
        self._seen: set[str] = set()
        self._records: ShardRecords = {}
        self._began: tuple[float, float] | None = None
        """When the first records were seen, and the share of the source that was done then."""

    def state(self) -> PreparationState:
        if self._store.size(MANIFEST) is not None:
            return PreparationState("", is_done=True)
        if self._store.size(FAILED) is not None:
            return PreparationState("", failure=self._store.read(FAILED).decode())
        if self._recipe is None:
            self._recipe = read_recipe(self._store)
            if self._recipe is None:
                what = "listing the sources, making the tokenizer"
                return PreparationState(f"preparing {self._name}: {what}")
            self._units = source_units(self._recipe)
        self._read_new(self._recipe)
        return PreparationState(self._words())

    def _read_new(self, recipe: Recipe) -> None:
        names = [name for name in self._store.names(SHARDS) if name.endswith(RECORD)]
        new = [name for name in names if name not in self._seen]
        for content in in_parallel(self._store.read, new, NUM_REQUESTS):
            record = ShardRecord.model_validate_json(content)
            if record.recipe_digest == recipe.digest:
                self._records[record.unit, record.index] = record
        self._seen |= set(new)

    def _words(self) -> str:
        finished = [unit for unit in self._units if is_finished(self._records, unit.number)]
        total = sum(unit.num_bytes for unit in self._units)
        # Of a dataset on the hub, sizes are not known.
        share = (
            sum(unit.num_bytes for unit in finished) / total
            if total
            else len(finished) / len(self._units)
        )
        shards = [record.shard for record in self._records.values() if record.shard is not None]
        documents = short_count(sum(shard.num_documents for shard in shards))
        tokens = short_count(sum(shard.num_tokens for shard in shards))
        problems = sum(len(record.problems) for record in self._records.values())
        bad = f"  {problems} unreadable" if problems else ""
        return (
            f"preparing {self._name}: {share:4.0%}  {documents} documents  {tokens} tokens"
            f"{self._left(share)}{bad}"
        )

    def _left(self, share: float) -> str:
        now = self._clock.monotonic()
        if self._began is None:
            self._began = now, share
        since, before = self._began
        if share <= before:
            return ""
        return f"  {short_time((now - since) * (1 - share) / (share - before))} left"
