"""A prepared set of random tokens: for measuring how fast a run trains before its data is there."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import numpy as np

from headway.data.set_format import (
    MANIFEST,
    SHARDS,
    TOKENIZER,
    Part,
    SetManifest,
    Shard,
    SpecialIds,
    file_digest,
    shard_file,
    token_bytes,
    token_dtype,
)
from headway.data.tokenizer import TOKENIZER_JSON

END_OF_TEXT, MASK = 0, 1
NAME = "00000"


def write_random_set(
    folder: Path, *, vocab_size: int, num_sequences: int, sequence_length: int, is_windowed: bool
) -> None:
    """One document of so many sequences; `is_windowed`: cut into windows, for masked models. Its
    tokenizer has no content: nothing can be decoded with it."""
    dtype = token_dtype(vocab_size)
    # The last sequence of a stream needs a token after it, which it has to predict.
    num_tokens = num_sequences * sequence_length + (0 if is_windowed else 1)
    least = MASK + 1 if vocab_size > MASK + 1 else 0
    tokens = np.random.default_rng(0).integers(least, vocab_size, num_tokens)
    parts: dict[Part, np.ndarray] = {
        "tokens": tokens.astype(f"<u{token_bytes(dtype)}"),
        "documents": np.zeros(1, "<u8"),
    }
    for name in (TOKENIZER, SHARDS):
        (folder / name).mkdir(parents=True)
    tokenizer = folder / TOKENIZER / TOKENIZER_JSON
    tokenizer.write_text("{}")
    digests: dict[Part, str] = {}
    for part, content in parts.items():
        path = folder / shard_file(NAME, part)
        content.tofile(path)
        digests[part] = file_digest(path)
    manifest = SetManifest(
        layout="windows" if is_windowed else "stream",
        window_tokens=sequence_length if is_windowed else None,
        vocab_size=vocab_size,
        token_dtype=dtype,
        num_tokens=num_tokens,
        num_documents=1,
        num_bytes=0,
        special_ids=SpecialIds(
            end_of_text=None if is_windowed else END_OF_TEXT,
            mask=MASK if is_windowed else None,
            special=(END_OF_TEXT, MASK) if is_windowed else (END_OF_TEXT,),
        ),
        tokenizer_digest=file_digest(tokenizer),
        shards=(
            Shard(
                name=NAME, num_tokens=num_tokens, num_documents=1, has_mask=False, digests=digests
            ),
        ),
        created_by=f"headway {version('headway')}",
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(exclude_none=True))
