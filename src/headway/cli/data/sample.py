"""headway data sample: the text that training sees, as it sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.options import JsonOption, SequenceLengthOption
from headway.cli.output import print_json
from headway.state.store import Store

if TYPE_CHECKING:
    from headway.data.reading.sample_set import SampleSet
    from headway.data.reading.token_set import TokenRows

DOCUMENT_TOKENS = 1000
"""Tokens that are shown of a document: about a page."""
OPEN, CLOSE = "[-", "-]"
"""Around text outside the loss, as in word diffs: rare in text itself."""


@dataclass(frozen=True)
class Excerpt:
    title: str
    facts: dict[str, Any]
    """What `--json` prints of it."""
    ids: list[int]
    counts: list[bool] | None
    """Whether each token counts for the loss. None: all do."""
    note: str = ""
    """Line after its text."""


def sample(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A prepared set or a mixture.")],
    num: Annotated[
        int, typer.Option("--n", "-n", help="Number of samples or documents.", min=1)
    ] = 5,
    sequence_length: SequenceLengthOption = None,
    documents: Annotated[
        bool,
        typer.Option(
            "--documents", help="Show documents from all over the set instead of samples."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the run, which decides the order.", min=0)] = 0,
    json_: JsonOption = False,
) -> None:
    """Show samples as text: the first that a run with this seed trains on, or whole documents."""
    from headway.errors import BadInput, needs_train

    try:
        from headway.data.reading.inspect import default_length
        from headway.data.reading.sample_set import open_set
        from headway.data.tokenizer import load_tokenizer
    except ImportError as error:
        raise needs_train("headway data sample", error) from None
    if documents and sequence_length is not None:
        raise BadInput("--documents and --sequence-length cannot be combined")
    directory = directory.rstrip("/") or directory
    opened = open_set(Store(directory))
    try:
        # Absolute: a name without a folder behind it would be looked up on the hub.
        tokenizer = load_tokenizer(str(opened.tokenizer_folder.resolve()), Path.cwd())
        if documents:
            header, excerpts = _documents(opened, num, seed)
        else:
            length = sequence_length or default_length(opened.window_tokens)
            header, excerpts = _samples(opened, num, seed, length)
    finally:
        opened.close()

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False))

    if json_:
        print_json([_as_json(excerpt, decode) for excerpt in excerpts])
    else:
        _print(header, excerpts, decode)


def _samples(
    opened: SampleSet, num: int, seed: int, length: int
) -> tuple[list[str], list[Excerpt]]:
    from headway.errors import BadInput

    if opened.is_growing:
        num = min(num, opened.num_samples(length))
        if num == 0:
            raise BadInput(
                f"{opened.location} is being prepared and has no samples yet",
                f"to see its progress: headway data show {opened.location}",
            )
    epochs, samples = opened.order(seed, length).at(0, num)
    rows = opened.read(samples, length)
    excerpts = []
    for position, (epoch, number) in enumerate(zip(epochs, samples, strict=True)):
        facts: dict[str, Any] = {"position": position, "epoch": int(epoch), "sample": int(number)}
        of = _member(opened, int(number), length)
        if of is not None:
            facts |= {"member": of[0], "member_sample": of[1]}
        title = f"position {position}, epoch {epoch}, sample {number}"
        title += "" if of is None else f": sample {of[1]} of {of[0]}"
        excerpts.append(Excerpt(title, facts, *_row(rows, position)))
    first = "the first sample" if num == 1 else f"the first {num} samples"
    header = f"{opened.location}: {first} of {length} tokens by seed {seed}"
    if opened.layout == "stream":
        return [f"{header},", "with the token that follows, to be predicted"], excerpts
    return [f"{header},", "before tokens are masked"], excerpts


def _member(opened: SampleSet, number: int, length: int) -> tuple[str, int] | None:
    """Which member of a mixture a sample is from, and its number there."""
    from headway.data.reading.mixture import MixtureSet

    if not isinstance(opened, MixtureSet):
        return None
    return opened.member_of(number, length)


def _documents(opened: SampleSet, num: int, seed: int) -> tuple[list[str], list[Excerpt]]:
    from headway.data.reading.inspect import sample_documents
    from headway.data.reading.mixture import MixtureSet
    from headway.data.reading.token_set import TokenSet
    from headway.errors import BadInput

    if isinstance(opened, MixtureSet):
        raise BadInput(
            f"{opened.location} is a mixture: documents are shown of one set",
            f"headway data sample {opened.sets[0].location} --documents",
        )
    if not isinstance(opened, TokenSet):
        raise BadInput(
            f"{opened.location} is being prepared", "without --documents its samples are shown"
        )
    total = opened.manifest.num_documents
    excerpts = []
    for one in sample_documents(opened, num, seed, DOCUMENT_TOKENS):
        ids, counts = _row(one.rows, 0)
        cut = one.num_tokens - len(ids)
        facts = {
            "document": one.number,
            "shard": one.shard,
            "num_tokens": one.num_tokens,
            "is_cut": cut > 0,
        }
        title = f"document {one.number}, {one.num_tokens} tokens, in shard {one.shard}"
        note = f"... and {cut} tokens more" if cut else ""
        excerpts.append(Excerpt(title, facts, ids, counts, note))
    return [f"{opened.location}: {len(excerpts)} of {total} documents, by seed {seed}"], excerpts


def _row(rows: TokenRows, number: int) -> tuple[list[int], list[bool] | None]:
    counts = None if rows.mask is None else rows.mask[number].tolist()
    return rows.tokens[number].tolist(), counts


def _as_json(excerpt: Excerpt, decode: Callable[[list[int]], str]) -> dict[str, Any]:
    mask = None if excerpt.counts is None else [int(counts) for counts in excerpt.counts]
    return {**excerpt.facts, "ids": excerpt.ids, "mask": mask, "text": decode(excerpt.ids)}


def _print(
    header: Sequence[str], excerpts: Sequence[Excerpt], decode: Callable[[list[int]], str]
) -> None:
    from headway.data.reading.inspect import loss_spans, visible

    for line in header:
        print(line)
    if any(excerpt.counts is not None for excerpt in excerpts):
        print(f"{OPEN}text in these brackets{CLOSE} does not count for the loss")
    for excerpt in excerpts:
        print(f"\n--- {excerpt.title}")
        counts = excerpt.counts or [True] * len(excerpt.ids)
        for text, does_count in loss_spans(decode, excerpt.ids, counts):
            shown = visible(text)
            print(shown if does_count or not shown else f"{OPEN}{shown}{CLOSE}", end="")
        print()
        if excerpt.note:
            print(excerpt.note)
