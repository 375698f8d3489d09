"""The tokenizer of a set, loaded or trained on its sources, and the ids of its special tokens."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import xxhash
from tokenizers import Tokenizer

from headway.clock import Clock
from headway.data.formats.chunks import Problem
from headway.data.prepare.extract import ALL_DROPPED, Extracted, Extractor, Omitted
from headway.data.prepare.progress import (
    PrepareProgress,
    ProgressReporter,
    by_count,
    nothing_readable,
)
from headway.data.prepare.recipe import Recipe, RecipeSettings, TokenizerFacts, source_units
from headway.data.prepare.sources import find_sources
from headway.data.prepare.unit_chunks import SourcePosition, unit_chunks
from headway.data.set_format import TOKENIZER, Layout, SpecialIds, file_digest
from headway.data.tokenizer import (
    COMPANIONS,
    TOKENIZER_JSON,
    copy_tokenizer,
    find_tokenizer,
    role_id,
    save_tokenizer,
    special_token_ids,
    train_tokenizer,
    trained_roles,
    vocab_size,
    write_chat_template,
)
from headway.errors import BadInput
from headway.state.store import Store

TRAINED = "the trained tokenizer"
TRAINING_BYTES = 2**30
"""Bytes of the sources, spread over them, to train a tokenizer on: more makes almost no
difference."""
NO_TOKENIZER = TokenizerFacts(
    digest="", vocab_size=0, special_ids=SpecialIds(), start=None, separator=None, unknown=None
)
"""Placeholder before the tokenizer is known."""


def load_set_tokenizer(
    source: str,
    beside: Path,
    layout: Layout,
    folder: Path,
    chat_template: str | None = None,
    revision: str | None = None,
) -> TokenizerFacts:
    """Facts about a tokenizer from a folder or the hub; copies its files to `folder`, with the
    built-in chat template if one is named."""
    found = find_tokenizer(source, beside, revision)
    tokens = _tokens(found.load(), found.roles(), layout, source)
    copied = copy_tokenizer(found, folder)
    if chat_template is not None:
        write_chat_template(chat_template, copied.roles(), folder, f"tokenizer `{source}`")
    return tokens.model_copy(update={"digest": file_digest(folder / TOKENIZER_JSON)})


def _train(texts: Iterator[str], vocab: int, layout: Layout, folder: Path) -> TokenizerFacts:
    """Facts about a tokenizer trained on the text itself; saves it to `folder`."""
    tokenizer = train_tokenizer(texts, vocab, layout)
    names = trained_roles(layout)
    tokens = _tokens(tokenizer, names, layout, TRAINED)
    save_tokenizer(tokenizer, names, folder)
    return tokens.model_copy(update={"digest": file_digest(folder / TOKENIZER_JSON)})


def train_tokenizer_into(
    sources: Sequence[str],
    beside: Path,
    settings: RecipeSettings,
    vocab: int,
    into: Store,
    progress: Callable[[PrepareProgress], None],
    clock: Clock,
    *,
    code: Path | None = None,
    anonymous: bool = False,
) -> TokenizerFacts:
    """Writes the tokenizer that `prepare` would train on the same sources to a separate folder."""
    if into.size(TOKENIZER_JSON) is not None:
        raise BadInput(
            f"{into.root} already holds a tokenizer", "delete it, or give another folder"
        )
    found = find_sources(sources, beside, anonymous)
    recipe = Recipe(
        settings=settings,
        tokens=NO_TOKENIZER,
        files=tuple(found.files),
        beside=str(beside),
        code=None if code is None else str(code),
        anonymous=anonymous,
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tokens = train_set_tokenizer(
            recipe, sources, vocab, folder, ProgressReporter(progress, clock)
        )
        # Last, the file that shows the tokenizer is complete.
        for path in sorted(folder.iterdir(), key=lambda path: path.name == TOKENIZER_JSON):
            into.write(path.name, path.read_bytes())
    return tokens


def train_set_tokenizer(
    recipe: Recipe, sources: Sequence[str], vocab: int, folder: Path, reporter: ProgressReporter
) -> TokenizerFacts:
    """Facts about a tokenizer trained on the recipe's files, which `sources` named; saves it to the
    given `folder`."""
    reporter.begin("tokenizer", sum(file.size for file in recipe.files), 0)
    problems: list[Problem] = []
    reasons: Counter[str] = Counter()
    texts = _training_texts(recipe, folder, reporter, problems, reasons)
    tokens = _train(texts, vocab, recipe.settings.layout, folder)
    reporter.show()
    if reporter.documents == 0:
        names = ", ".join(sources)
        if problems:
            raise nothing_readable(names, reasons, problems[0])
        if reasons[Omitted.DROPPED.value]:
            raise BadInput(f"no text in {names}: {by_count(reasons)}", ALL_DROPPED)
        raise BadInput(f"no text in {names}", "the files are empty or contain only whitespace")
    return tokens


def _training_texts(
    recipe: Recipe,
    folder: Path,
    reporter: ProgressReporter,
    problems: list[Problem],
    reasons: Counter[str],
) -> Iterator[str]:
    """The text of units spread over the sources. Unreadable records are reported when the set is
    made; in case nothing can be read, `problems` gets the first, and `reasons` are counted."""
    units = source_units(recipe)
    total = sum(unit.num_bytes for unit in units)
    stride = max(1, -(-total // TRAINING_BYTES))
    code = None if recipe.code is None else Path(recipe.code)
    extractor = Extractor(recipe.settings, NO_TOKENIZER, folder, code)
    position = SourcePosition()
    for unit in units[::stride]:
        for chunk in unit_chunks(unit, recipe, position):
            for item in chunk.records():
                content: Extracted = (
                    item if isinstance(item, Problem) else extractor.extract(item, chunk.file)
                )
                if isinstance(content, Problem):
                    reporter.count(problems=1)
                    reasons[content.kind] += 1
                    if not problems:
                        problems.append(content)
                elif isinstance(content, Omitted):
                    reasons[content.value] += 1
                elif isinstance(content, str):
                    reporter.count(documents=1, num_bytes=len(content.encode()))
                    yield content
            reporter.source_bytes = position.bytes * stride
            reporter.show()


def companions_digest(folder: Path) -> str:
    """Digest of the chat template and of the tokens it names, in whichever file they are."""
    hasher = xxhash.xxh3_128()
    for name in COMPANIONS:
        if (folder / name).is_file():
            hasher.update(f"{name}\0{file_digest(folder / name)}\0".encode())
    return hasher.hexdigest()


def write_tokenizer(folder: Path, store: Store) -> None:
    """Copies the tokenizer into the set; last, the file that shows it is complete."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == TOKENIZER_JSON):
        store.write(f"{TOKENIZER}/{path.name}", path.read_bytes())


@contextmanager
def fetched_tokenizer(store: Store) -> Iterator[Path]:
    """The set's tokenizer as a folder on this machine."""
    if store.is_local:
        yield store.path(TOKENIZER)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in store.names(TOKENIZER):
            Path(folder, Path(name).name).write_bytes(store.read(name))
        yield Path(folder)


def _tokens(
    tokenizer: Tokenizer, names: dict[str, str], layout: Layout, source: str
) -> TokenizerFacts:
    roles = ("eos_token", "mask_token", "cls_token", "sep_token", "unk_token")
    found = {role: role_id(tokenizer, names, role) for role in roles}
    needed = ("eos_token",) if layout == "stream" else ("cls_token", "sep_token", "mask_token")
    for role in needed:
        if found[role] is None:
            raise BadInput(
                f"{source} has no {role}, which the layout `{layout}` needs",
                f"use another tokenizer, or name its {role} in tokenizer_config.json",
            )
    unknown = found.pop("unk_token")
    special = {number for number in found.values() if number is not None}
    return TokenizerFacts(
        digest="",
        vocab_size=vocab_size(tokenizer),
        special_ids=SpecialIds(
            end_of_text=found["eos_token"],
            mask=found["mask_token"],
            special=tuple(sorted(special | set(special_token_ids(tokenizer)))),
        ),
        start=found["cls_token"],
        separator=found["sep_token"],
        # Tokenizers that cover every byte often name their end-of-text token here, but never use
        # it for unknown text.
        unknown=None if unknown == found["eos_token"] else unknown,
    )
