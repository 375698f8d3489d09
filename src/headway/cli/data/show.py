"""headway data show: a prepared set, a mixture, or how far a preparation is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.options import JsonOption, SequenceLengthOption
from headway.cli.output import print_json, print_table, short_bytes, short_count, warn

if TYPE_CHECKING:
    from headway.data.prepare.recipe import Recipe
    from headway.data.reading.inspect import LeftOut, PreparationStatus, SetFacts
    from headway.data.reading.mixture import MemberShare
    from headway.state.store import Store

SHOWN_SOURCES = 3
WIDTH = 79
KEY = 12
MEMBERS = ("MEMBER", "WANTED", "SHARE", "SAMPLES", "IN AN EPOCH", "EPOCHS", "SET")
"""Columns of the table of a mixture. `EPOCHS`: how often one of its epochs reads the member."""


def show(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIR", help="A prepared set, a mixture, or a set that is still being prepared."
        ),
    ],
    sequence_length: SequenceLengthOption = None,
    json_: JsonOption = False,
) -> None:
    """Show what a prepared set contains and what was left out, the shares of a mixture, or the
    progress of a preparation."""
    from headway.clock import SystemClock
    from headway.errors import needs_train

    try:
        from headway.data.reading.inspect import preparation_status
        from headway.data.reading.mixture import is_mixture
        from headway.data.retry import OPEN_SECONDS, with_retries
        from headway.data.set_format import MANIFEST
    except ImportError as error:
        raise needs_train("headway data show", error) from None
    from headway.state.store import Store

    directory = directory.rstrip("/") or directory
    store, clock = Store(directory), SystemClock()
    if is_mixture(store, clock):
        return _show_mixture(store, sequence_length, json_)
    has_manifest = with_retries(
        store, MANIFEST, lambda: store.size(MANIFEST) is not None, clock, OPEN_SECONDS
    )
    if not has_manifest:
        begun = with_retries(store, "", lambda: preparation_status(store), clock, OPEN_SECONDS)
        if begun is not None:
            return _show_preparation(directory, begun, json_)
    return _show_set(store, sequence_length, json_)


def _show_set(store: Store, sequence_length: int | None, json_: bool) -> None:
    from headway.clock import SystemClock
    from headway.data.prepare.damage import damage_to
    from headway.data.prepare.manifest import PROBLEMS, read_problems
    from headway.data.reading.inspect import default_length, set_facts
    from headway.data.reading.token_set import TokenSet
    from headway.data.retry import OPEN_SECONDS, with_retries
    from headway.data.set_format import MANIFEST, read_manifest

    clock = SystemClock()
    manifest = with_retries(store, MANIFEST, lambda: read_manifest(store), clock, OPEN_SECONDS)
    tokens = TokenSet(store, manifest)
    try:
        facts = set_facts(tokens, sequence_length or default_length(manifest.window_tokens))
    finally:
        tokens.close()
    recipe = _own_recipe(store, manifest.recipe_digest)
    listed = damage = None
    if facts.left_out is not None and facts.left_out.problems:
        listed = store.location(PROBLEMS)
        damage = None if recipe is None else damage_to(recipe, read_problems(store))
    if json_:
        print_json(
            {
                "kind": "set",
                "location": store.root,
                **asdict(facts),
                "problems_file": listed,
                "damage": None if damage is None else asdict(damage),
                **_recipe_json(recipe),
            }
        )
        return
    _print_lines([("set", store.root), *_facts(facts)])
    if recipe is not None:
        _print_lines(_sources(recipe))
    if facts.left_out is None:
        _print_lines([("made by", f"{facts.created_by}, which kept no statistics")])
        return
    _print_lines(_left_out(facts.left_out, listed))
    _print_lines([("damage", str(damage))] if damage is not None else [])
    _print_histogram(facts)


def _facts(facts: SetFacts) -> Iterator[tuple[str, str]]:
    if facts.layout == "stream":
        yield "layout", "stream: documents in a row, cut into samples by training"
    else:
        yield "layout", f"windows of {facts.window_tokens} tokens, for masked models"
    documents = facts.num_documents
    each = f", {facts.num_tokens / documents:.4g} a document" if documents else ""
    yield "tokens", f"{short_count(facts.num_tokens)} in {_counted(documents, 'document')}{each}"
    if facts.num_text_bytes:
        ratio = facts.num_text_bytes / facts.num_tokens
        yield "text", f"{short_bytes(facts.num_text_bytes)}, {ratio:.2f} bytes a token"
    else:
        yield "text", "none: it was made from token ids"
    yield "vocabulary", f"{facts.vocab_size} tokens, {facts.token_dtype}"
    if facts.num_unknown_tokens is not None:
        yield "unknown", _share(facts.num_unknown_tokens, facts.num_tokens, "of the tokens")
    if facts.num_masked_tokens is not None:
        words = "of the tokens do not count for it"
        yield "loss", _share(facts.num_masked_tokens, facts.num_tokens, words, "all tokens count")
    yield "files", f"{_counted(facts.num_shards, 'shard')}, {short_bytes(facts.num_bytes)}"
    blocks = f"blocks of {short_count(facts.block_tokens)} tokens"
    sequence = "; in the order of the sources" if facts.in_sequence else ""
    yield "order", f"{blocks}, {facts.window_blocks} of them mixed at a time{sequence}"
    yield "samples", _samples(facts)


def _samples(facts: SetFacts) -> str:
    if not facts.num_samples:
        return f"none: too few tokens for one of {facts.sequence_length}"
    tail = f", {_counted(facts.tail_tokens, 'token')} left over" if facts.tail_tokens else ""
    return f"{short_count(facts.num_samples)} an epoch, of {facts.sequence_length} tokens{tail}"


def _sources(recipe: Recipe) -> Iterator[tuple[str, str]]:
    key = "sources"
    for file in recipe.files[:SHOWN_SOURCES]:
        yield key, f"{file.name}{f', {short_bytes(file.size)}' if file.size else ''}"
        key = ""
    more = len(recipe.files) - SHOWN_SOURCES
    if more > 0:
        total = sum(file.size for file in recipe.files)
        yield "", f"and {more} more" + (f"; {short_bytes(total)} in all" if total else "")


def _left_out(left_out: LeftOut, listed: str | None) -> Iterator[tuple[str, str]]:
    lines = [
        f"{_counted(count, one)}{rest}"
        for count, one, rest in (
            (left_out.blank, "record", " of white space only"),
            (left_out.duplicates, "duplicate", ""),
            (left_out.dropped, "record", " by the transform"),
            (left_out.held_out, "document", " on the other side of the held-out split"),
            (left_out.tokens, "token", " short of a window, at the ends of shards"),
        )
        if count
    ]
    num_problems = sum(left_out.problems.values())
    if num_problems:
        lines.append(f"{_counted(num_problems, 'record')} that could not be read:")
        lines += [f"  {count} {kind}" for kind, count in left_out.problems.items()]
        lines.append(f"  listed in {listed}")
    for number, line in enumerate(lines or ["nothing"]):
        yield "left out" if number == 0 else "", line


def _print_histogram(facts: SetFacts) -> None:
    from headway.data.reading.inspect import histogram_bars

    assert facts.lengths is not None
    total = sum(facts.lengths)
    if not total:
        return
    columns = len(_range(2 ** (len(facts.lengths) - 1)))
    begin = "  {:>{}}  {:6.1%}  {:>5}  "
    width = WIDTH - len(begin.format("", columns, 0, ""))
    print("\nlengths of the documents, in tokens: share, number")
    for bar in histogram_bars(facts.lengths, width):
        count = short_count(bar.count)
        print(
            (begin.format(_range(bar.low), columns, bar.count / total, count) + bar.drawn).rstrip()
        )


def _range(low: int) -> str:
    return f"{low} - {2 * low - 1}" if low > 1 else "1"


def _show_mixture(store: Store, sequence_length: int | None, json_: bool) -> None:
    from headway.data.reading.inspect import default_length
    from headway.data.reading.mixture import MixtureSet, member_shares

    mixture = MixtureSet.open(store)
    try:
        length = sequence_length or default_length(mixture.window_tokens)
        found = member_shares(mixture, length)
        num_samples = mixture.num_samples(length)
    finally:
        mixture.close()
    locations = [tokens.location for tokens in mixture.sets]
    num_tokens = sum(tokens.manifest.num_tokens for tokens in mixture.sets)
    if json_:
        print_json(
            {
                "kind": "mixture",
                "location": store.root,
                "num_tokens": num_tokens,
                "sequence_length": length,
                "num_samples": num_samples,
                "digest": mixture.digest,
                "members": [
                    {**asdict(member), "location": location, "weight": one.weight}
                    | {"epochs": one.epochs}
                    for member, location, one in zip(
                        found, locations, mixture.manifest.members, strict=True
                    )
                ],
            }
        )
        return
    _print_lines(
        [
            ("mixture", store.root),
            ("members", f"{len(found)}, with {short_count(num_tokens)} tokens together"),
            ("samples", f"{short_count(num_samples)} an epoch, of {length} tokens"),
        ]
    )
    print()
    _print_shares(found, locations)


def _print_shares(found: Sequence[MemberShare], locations: Sequence[str]) -> None:
    rows = [
        (
            member.name,
            f"{member.wanted:.2%}",
            f"{member.share:.2%}",
            short_count(member.num_samples),
            short_count(member.num_positions),
            "-" if member.num_epochs is None else f"{member.num_epochs:.3g}",
            _near(location),
        )
        for member, location in zip(found, locations, strict=True)
    ]
    print_table(MEMBERS, rows)
    for member in found:
        if member.num_epochs is None:
            warn(f"{member.name} has too few tokens for one sample")


def _near(location: str) -> str:
    """The location as a user would type it here."""
    here = os.getcwd() + os.sep
    return location.removeprefix(here) if "://" not in location else location


def _show_preparation(directory: str, begun: PreparationStatus, json_: bool) -> None:
    if json_:
        facts = asdict(begun)
        facts.pop("recipe")
        print_json(
            {
                "kind": "preparation",
                "location": directory,
                **facts,
                **_recipe_json(begun.recipe),
            }
        )
        return
    share = ""
    if begun.source_bytes:
        share = f", {begun.finished_bytes / begun.source_bytes:.0%} of their bytes"
    lines = [
        ("set", directory),
        ("state", "not finished: it is being prepared, or was interrupted"),
        ("finished", f"{begun.num_finished} of {begun.num_units} pieces of the sources{share}"),
        (
            "so far",
            f"{short_count(begun.num_tokens)} tokens in "
            f"{_counted(begun.num_documents, 'document')}, {_counted(begun.num_shards, 'shard')}",
        ),
    ]
    if begun.failure is not None:
        lines[1] = ("state", "not finished: its preparation failed")
        lines += [
            ("" if number else "cause", line)
            for number, line in enumerate(begun.failure.splitlines())
        ]
    if begun.num_problems:
        lines.append(("left out", f"{_counted(begun.num_problems, 'record')} could not be read"))
    _print_lines([*lines, *_sources(begun.recipe)])
    _print_lines([("next", "run the same headway data prepare command to resume")])


def _own_recipe(store: Store, digest: str | None) -> Recipe | None:
    """Recipe of the set. None if it is missing: the set can be used, and shown, without it."""
    from headway.data.prepare.recipe import RECIPE, read_recipe
    from headway.errors import BadInput

    if digest is None:
        return None
    try:
        recipe = read_recipe(store)
    except (BadInput, OSError) as error:
        warn(f"the sources cannot be shown: {error}")
        return None
    if recipe is None or recipe.digest != digest:
        warn(f"{store.location(RECIPE)} is {'missing' if recipe is None else 'of another set'}")
        return None
    return recipe


def _recipe_json(recipe: Recipe | None) -> dict[str, Any]:
    if recipe is None:
        return {"sources": None, "settings": None}
    return {
        "sources": [file.model_dump(include={"name", "size"}) for file in recipe.files],
        "settings": recipe.settings.model_dump(exclude_defaults=True),
    }


def _print_lines(lines: Iterable[tuple[str, str]]) -> None:
    for key, value in lines:
        print(f"{key:<{KEY}}{value}")


def _counted(number: int, one: str) -> str:
    return f"{short_count(number)} {one}{'' if number == 1 else 's'}"


def _share(part: int, whole: int, words: str, none: str = "none") -> str:
    if not part:
        return none
    share = part / whole
    return f"{'less than 0.01%' if share < 0.0001 else f'{share:.2%}'} {words}"
