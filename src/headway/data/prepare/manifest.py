"""Completes a set from its finished shards: manifest, and list of unreadable records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from headway.data.formats.chunks import Problem
from headway.data.prepare.damage import damage_to
from headway.data.prepare.extract import ALL_DROPPED, Omitted
from headway.data.prepare.partial_manifest import PartialManifest, parsed_problems, problem_line
from headway.data.prepare.progress import HINTS, by_count, nothing_readable
from headway.data.prepare.recipe import Recipe
from headway.data.set_format import MANIFEST, SHARD_TABLE, SHARDS, SetManifest
from headway.data.statistics import Statistics
from headway.errors import BadInput
from headway.state.set_files import PROGRESS
from headway.state.store import Store

PROBLEMS = "problems.jsonl"
ACCEPT = (
    "to accept it: allow_unreadable: true beside sources in the run file, or headway data "
    "prepare --allow-unreadable"
)


def write_set_manifest(
    store: Store, recipe: Recipe, prepared: PartialManifest, *, allow_unreadable: bool
) -> SetManifest:
    """Writes problems.jsonl, the table of shards and, last, the manifest, of all units. Refuses a
    set most of whose records were left out, or of damaged files, unless allowed; nothing has to be
    read again then."""
    assert prepared.is_complete
    sums, unread = prepared.sums, prepared.problems
    located = [*recipe.left_out, *unread]
    statistics = Statistics(problems=_counts(recipe.left_out)) + sums.statistics
    if located:
        left_out = map(problem_line, recipe.left_out)
        store.write(PROBLEMS, b"".join([*left_out, *prepared.problem_lines]))
    if not sums.num_shards:
        raise _empty(recipe, statistics, sums.num_tokens_left_out, located)
    if not allow_unreadable and not recipe.settings.in_sequence:
        _refuse_damaged(recipe, unread, store)
        _refuse_few(recipe, sums.num_documents, statistics, unread, store)
    table = prepared.table
    manifest = prepared.set_manifest(table).model_copy(update={"statistics": statistics})
    store.remove_partial(SHARDS)
    store.write(SHARD_TABLE, table.to_bytes())
    store.write(MANIFEST, manifest.model_dump_json(indent=2).encode() + b"\n")
    remove_progress(store)
    return manifest


def remove_progress(store: Store) -> None:
    """Removes what only an unfinished preparation needs."""
    with suppress(OSError):  # another part may write to it; its content is ignored from now on
        store.remove(PROGRESS)


def read_problems(store: Store) -> list[Problem]:
    try:
        return parsed_problems(store.read(PROBLEMS).splitlines())
    except FileNotFoundError:
        return []


def _counts(problems: Sequence[Problem]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for problem in problems:
        counts[problem.kind] = counts.get(problem.kind, 0) + 1
    return counts


def _refuse_damaged(recipe: Recipe, problems: Sequence[Problem], store: Store) -> None:
    damage = damage_to(recipe, problems)
    if damage is None:
        return
    first = next(problem for problem in problems if problem.is_damage)
    raise BadInput(
        f"{_names(recipe)}: {damage}. The first: {first.where}: {first.kind}: {first.message}. "
        f"All are listed in {store.root}/{PROBLEMS}.",
        f"fetch the files again; {ACCEPT}",
    )


def _refuse_few(
    recipe: Recipe,
    num_documents: int,
    statistics: Statistics,
    problems: Sequence[Problem],
    store: Store,
) -> None:
    """Raises if more records could not be used than could. Duplicates, held-out documents and
    whatever the transform dropped were usable; files that are no text at all are not records."""
    unusable = Counter(statistics.problems) - Counter(_counts(recipe.left_out))
    for problem in problems:
        unusable[problem.kind] += (problem.num_rows or 1) - 1
    unusable[Omitted.BLANK.value] += statistics.num_blank
    num_unusable = sum(unusable.values())
    num_usable = (
        num_documents + statistics.num_duplicates + statistics.num_held_out + statistics.num_dropped
    )
    if num_unusable <= num_usable:
        return
    first = f" The first: {problems[0].where}: {problems[0].message}." if problems else ""
    listed = f" All are listed in {store.root}/{PROBLEMS}." if problems else ""
    raise BadInput(
        f"{_names(recipe)}: only {num_usable} of {num_usable + num_unusable} records have text: "
        f"{by_count(unusable)}.{first}{listed}",
        (f"{HINTS[kind]}; " if problems and (kind := problems[0].kind) in HINTS else "") + ACCEPT,
    )


def _names(recipe: Recipe) -> str:
    names = ", ".join(file.name for file in recipe.files[:3])
    return names if len(recipe.files) <= 3 else f"{names} and {len(recipe.files) - 3} more"


def _empty(
    recipe: Recipe, statistics: Statistics, num_left_out: int, problems: Sequence[Problem]
) -> BadInput:
    names = _names(recipe)
    if num_left_out:
        return BadInput(
            f"{names}: {num_left_out} tokens of text are too few for one window of "
            f"{recipe.settings.window_tokens}",
            "use more text or a shorter sequence_length",
        )
    reasons = {
        **statistics.problems,
        Omitted.BLANK.value: statistics.num_blank,
        "on the other side of the hold_out split": statistics.num_held_out,
        "duplicates": statistics.num_duplicates,
        Omitted.DROPPED.value: statistics.num_dropped,
    }
    if problems:
        return nothing_readable(names, reasons, problems[0])
    if any(reasons.values()):
        is_dropped = statistics.num_dropped > 0
        return BadInput(
            f"no text in {names}: {by_count(reasons)}", ALL_DROPPED if is_dropped else None
        )
    return BadInput(f"no text in {names}", "the files are empty or contain only whitespace")
