"""A tokenizer trained on the sources of a set, on the way to the set or ahead of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headway.clock import Clock
from headway.data.formats.chunks import Problem
from headway.data.making.extract import Extracted, Extractor
from headway.data.making.pieces import Position, unit_chunks
from headway.data.making.recipe import Recipe, Settings, Tokens, units_of
from headway.data.making.report import Progress, Reporter, nothing_readable
from headway.data.making.roles import train_tokens
from headway.data.making.sources import find_sources
from headway.data.shards import SpecialIds
from headway.data.tokenizer import TOKENIZER_JSON
from headway.errors import BadInput
from headway.state.store import Store

TRAINING_BYTES = 2**30
"""Of the sources, spread over them, for training a tokenizer: more changes next to nothing."""
NO_TOKENS = Tokens(
    digest="", vocab_size=0, special_ids=SpecialIds(), start=None, separator=None, unknown=None
)
"""Before the tokenizer is known."""


def train_into(
    sources: Sequence[str],
    beside: Path,
    settings: Settings,
    vocab: int,
    into: Path,
    progress: Callable[[Progress], None],
    clock: Clock,
    *,
    code: Path | None = None,
    anonymous: bool = False,
) -> Tokens:
    """The tokenizer that `prepare` would train on the same sources, in a folder of its own."""
    store = Store(into)
    if store.size(TOKENIZER_JSON) is not None:
        raise BadInput(f"{into} already holds a tokenizer", "delete it, or give another folder")
    found = find_sources(sources, beside, anonymous)
    recipe = Recipe(
        settings=settings,
        tokens=NO_TOKENS,
        files=tuple(found.files),
        beside=str(beside),
        code=None if code is None else str(code),
        anonymous=anonymous,
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tokens = train_tokens_on(recipe, sources, vocab, folder, Reporter(progress, clock))
        # The file that says a tokenizer is there comes last.
        for path in sorted(folder.iterdir(), key=lambda path: path.name == TOKENIZER_JSON):
            store.write(path.name, path.read_bytes())
    return tokens


def train_tokens_on(
    recipe: Recipe, sources: Sequence[str], vocab: int, folder: Path, reporter: Reporter
) -> Tokens:
    """Of a tokenizer made from the text of the recipe's files, which `sources` named; its own files
    go to `folder`."""
    reporter.begin("tokenizer", sum(file.size for file in recipe.files), 0)
    first: list[Problem] = []
    texts = _training_texts(recipe, folder, reporter, first)
    tokens = train_tokens(texts, vocab, recipe.settings.layout, folder)
    reporter.show()
    if reporter.documents == 0:
        names = ", ".join(sources)
        if first:
            raise nothing_readable(names, reporter.problems, first[0])
        raise BadInput(f"no text in {names}", "the files are empty or contain only whitespace")
    return tokens


def _training_texts(
    recipe: Recipe, folder: Path, reporter: Reporter, first: list[Problem]
) -> Iterator[str]:
    """The text of units spread over the sources. What cannot be read is reported when the set is
    made; the first of it is put into `first`, in case it is all there is."""
    units = units_of(recipe)
    total = sum(unit.num_bytes for unit in units)
    stride = max(1, -(-total // TRAINING_BYTES))
    code = None if recipe.code is None else Path(recipe.code)
    extractor = Extractor(recipe.settings, 0, folder, code)
    position = Position()
    for unit in units[::stride]:
        for chunk in unit_chunks(unit, recipe, position):
            for item in chunk.records():
                content: Extracted = (
                    item if isinstance(item, Problem) else extractor.extract(item, chunk.file)
                )
                if isinstance(content, Problem):
                    reporter.count(problems=1)
                    if not first:
                        first.append(content)
                elif isinstance(content, str):
                    reporter.count(documents=1, num_bytes=len(content.encode()))
                    yield content
            reporter.source_bytes = position.bytes * stride
            reporter.show()
