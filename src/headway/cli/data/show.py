"""headway data show: a prepared set, a mixture, or how far a preparation is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.options import JsonOption, SequenceLengthOption
from headway.cli.output import print_json, print_table, short_bytes, short_count, warn

if TYPE_CHECKING:
    from headway.data.prepare.recipe import Recipe
    from headway.data.reading.inspect import PreparationStatus
    from headway.data.reading.mixture import MemberShare
    from headway.data.set_format import SetManifest
    from headway.state.store import Store

SHOWN_SOURCES = 3
WIDTH = 79
KEY = 12
MEMBERS = ("MEMBER", "WANTED", "SHARE", "SAMPLES", "IN AN EPOCH", "EPOCHS", "SET")
"""Columns of the table of a mixture. `EPOCHS`: how often one of its epochs reads the member."""
OF_MANIFEST = {
    *("layout", "window_tokens", "num_tokens", "num_documents", "vocab_size", "token_dtype"),
    *("block_tokens", "window_blocks", "in_sequence", "tokenizer_digest", "created_by"),
}
"""Fields of a manifest that are shown as JSON under their own names."""


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
    from headway.data.prepare.damage import damage_to
    from headway.data.prepare.manifest import PROBLEMS, read_problems
    from headway.data.reading.inspect import default_length, set_bytes
    from headway.data.reading.token_set import ReadOptions, TokenSet

    with closing(TokenSet.open(store, ReadOptions(trusted=True))) as tokens:
        manifest, files = tokens.manifest, set_bytes(tokens.manifest, tokens.table)
        length = sequence_length or default_length(manifest.window_tokens)
        samples = _Samples(length, tokens.num_samples(length), tokens.tail_tokens(length))
    recipe = _own_recipe(store, manifest.recipe_digest)
    listed = damage = None
    if manifest.statistics.problems:
        listed = store.location(PROBLEMS)
        damage = None if recipe is None else damage_to(recipe, read_problems(store))
    if json_:
        print_json(
            {
                "kind": "set",
                "location": store.root,
                **_facts_json(manifest, samples, files),
                "problems_file": listed,
                "damage": None if damage is None else asdict(damage),
                **_recipe_json(recipe),
            }
        )
        return
    _print_lines([("set", store.root), *_facts(manifest, samples, files)])
    if recipe is not None:
        _print_lines(_sources(recipe))
    _print_lines(_left_out(manifest, listed))
    _print_lines([("damage", str(damage))] if damage is not None else [])
    _print_histogram(manifest.statistics.lengths)


@dataclass(frozen=True)
class _Samples:
    """Samples of one length in an epoch of a set."""

    length: int
    number: int
    tail_tokens: int
    """Number of tokens in no sample."""

    def __str__(self) -> str:
        if not self.number:
            return f"none: too few tokens for one of {self.length}"
        tail = f", {_counted(self.tail_tokens, 'token')} left over" if self.tail_tokens else ""
        return f"{short_count(self.number)} an epoch, of {self.length} tokens{tail}"


def _facts(manifest: SetManifest, samples: _Samples, num_bytes: int) -> Iterator[tuple[str, str]]:
    num_tokens, documents = manifest.num_tokens, manifest.num_documents
    if manifest.layout == "stream":
        yield "layout", "stream: documents in a row, cut into samples by training"
    else:
        yield "layout", f"windows of {manifest.window_tokens} tokens, for masked models"
    each = f", {num_tokens / documents:.4g} a document" if documents else ""
    yield "tokens", f"{short_count(num_tokens)} in {_counted(documents, 'document')}{each}"
    if manifest.num_bytes:
        ratio = manifest.num_bytes / num_tokens
        yield "text", f"{short_bytes(manifest.num_bytes)}, {ratio:.2f} bytes a token"
    else:
        yield "text", "none: it was made from token ids"
    yield "vocabulary", f"{manifest.vocab_size} tokens, {manifest.token_dtype}"
    yield "unknown", _share(manifest.statistics.num_unknown, num_tokens, "of the tokens")
    words = "of the tokens do not count for it"
    yield "loss", _share(manifest.statistics.num_masked, num_tokens, words, "all tokens count")
    yield "files", f"{_counted(manifest.num_shards, 'shard')}, {short_bytes(num_bytes)}"
    blocks = f"blocks of {short_count(manifest.block_tokens)} tokens"
    sequence = "; in the order of the sources" if manifest.in_sequence else ""
    yield "order", f"{blocks}, {manifest.window_blocks} of them mixed at a time{sequence}"
    yield "samples", str(samples)


def _facts_json(manifest: SetManifest, samples: _Samples, num_bytes: int) -> dict[str, Any]:
    statistics = manifest.statistics
    return {
        **manifest.model_dump(include=OF_MANIFEST),
        "num_text_bytes": manifest.num_bytes,
        "num_unknown_tokens": statistics.num_unknown,
        "num_masked_tokens": statistics.num_masked,
        "num_shards": manifest.num_shards,
        "num_bytes": num_bytes,
        "sequence_length": samples.length,
        "num_samples": samples.number,
        "tail_tokens": samples.tail_tokens,
        "left_out": {
            "blank": statistics.num_blank,
            "duplicates": statistics.num_duplicates,
            "dropped": statistics.num_dropped,
            "held_out": statistics.num_held_out,
            "tokens": manifest.num_tokens_left_out,
            "problems": statistics.problems,
        },
        "lengths": statistics.lengths,
        "digest": manifest.digest,
    }


def _sources(recipe: Recipe) -> Iterator[tuple[str, str]]:
    key = "sources"
    for file in recipe.files[:SHOWN_SOURCES]:
        yield key, f"{file.name}{f', {short_bytes(file.size)}' if file.size else ''}"
        key = ""
    more = len(recipe.files) - SHOWN_SOURCES
    if more > 0:
        total = sum(file.size for file in recipe.files)
        yield "", f"and {more} more" + (f"; {short_bytes(total)} in all" if total else "")


def _left_out(manifest: SetManifest, listed: str | None) -> Iterator[tuple[str, str]]:
    statistics = manifest.statistics
    lines = [
        f"{_counted(count, one)}{rest}"
        for count, one, rest in (
            (statistics.num_blank, "record", " of white space only"),
            (statistics.num_duplicates, "duplicate", ""),
            (statistics.num_dropped, "record", " by the transform"),
            (statistics.num_held_out, "document", " on the other side of the held-out split"),
            (manifest.num_tokens_left_out, "token", " short of a window, at the ends of shards"),
        )
        if count
    ]
    if statistics.num_problems:
        lines.append(f"{_counted(statistics.num_problems, 'record')} that could not be read:")
        lines += [f"  {count} {kind}" for kind, count in statistics.problems.items()]
        lines.append(f"  listed in {listed}")
    for number, line in enumerate(lines or ["nothing"]):
        yield "left out" if number == 0 else "", line


def _print_histogram(lengths: Sequence[int]) -> None:
    from headway.data.reading.inspect import histogram_bars

    total = sum(lengths)
    if not total:
        return
    columns = len(_range(2 ** (len(lengths) - 1)))
    begin = "  {:>{}}  {:6.1%}  {:>5}  "
    width = WIDTH - len(begin.format("", columns, 0, ""))
    print("\nlengths of the documents, in tokens: share, number")
    for bar in histogram_bars(lengths, width):
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
    num_tokens = sum(tokens.num_tokens for tokens in mixture.sets)
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
            f"{_counted(begun.num_documents, 'document')}, {_counted(begun.num_shards, 'shard')}, "
            "up to the first piece that is not finished",
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
