"""The tokenizer of a set that is about to be made, and what its special tokens mean."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash
from tokenizers import Tokenizer

from headway.data.making.recipe import Tokens
from headway.data.shards import TOKENIZER, Layout, SpecialIds, file_digest
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
)
from headway.errors import BadInput
from headway.state.store import Store

TRAINED = "the trained tokenizer"


def load_tokens(source: str, beside: Path, layout: Layout, folder: Path) -> Tokens:
    """Of a tokenizer in a folder or on the hub; its files go to `folder`."""
    found = find_tokenizer(source, beside)
    tokens = _tokens(found.load(), found.roles(), layout, source)
    copy_tokenizer(found, folder)
    return tokens.model_copy(update={"digest": file_digest(folder / TOKENIZER_JSON)})


def train_tokens(texts: Iterator[str], vocab: int, layout: Layout, folder: Path) -> Tokens:
    """Of a tokenizer made from the text itself."""
    tokenizer = train_tokenizer(texts, vocab, layout)
    names = trained_roles(layout)
    tokens = _tokens(tokenizer, names, layout, TRAINED)
    save_tokenizer(tokenizer, names, folder)
    return tokens.model_copy(update={"digest": file_digest(folder / TOKENIZER_JSON)})


def companions_digest(folder: Path) -> str:
    """Of the chat template and of the tokens it names, wherever they are written."""
    hasher = xxhash.xxh3_128()
    for name in COMPANIONS:
        if (folder / name).is_file():
            hasher.update(f"{name}\0{file_digest(folder / name)}\0".encode())
    return hasher.hexdigest()


def put_tokenizer(folder: Path, store: Store) -> None:
    """Into the set's own folder, the file that says it is there last."""
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


def _tokens(tokenizer: Tokenizer, names: dict[str, str], layout: Layout, source: str) -> Tokens:
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
    return Tokens(
        digest="",
        vocab_size=vocab_size(tokenizer),
        special_ids=SpecialIds(
            end_of_text=found["eos_token"],
            mask=found["mask_token"],
            special=tuple(sorted(special | set(special_token_ids(tokenizer)))),
        ),
        start=found["cls_token"],
        separator=found["sep_token"],
        # Tokenizers that know every byte often name their end-of-text here, and never use it so.
        unknown=None if unknown == found["eos_token"] else unknown,
    )
