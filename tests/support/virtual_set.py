"""Sets of any size in a store that makes their bytes up when they are read, and counts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from headway.data.reading.token_set import ReadOptions, TokenSet
from headway.data.set_format import SetManifest, Shard, SpecialIds, token_dtype
from headway.state.store import Store

SHARD_TOKENS = 2**25
VOCABULARY = 100_000
MODULUS = 99_991
"""Token number p of the stream is p modulo this."""


class VirtualStore(Store):
    """A bucket whose shards hold the numbers of their tokens."""

    def __init__(self, name: str, item_bytes: int = 4) -> None:
        self.root = f"s3://virtual/{name}"
        self.is_local = False
        self.is_served = False
        self.item_bytes = item_bytes
        self.num_requests = 0
        self.num_bytes = 0
        self._lock = threading.Lock()

    def read_range(self, name: str, start: int, length: int, *, often: bool = False) -> bytes:
        with self._lock:
            self.num_requests += 1
            self.num_bytes += length
        shard = int(Path(name).stem)
        first = shard * SHARD_TOKENS + start // self.item_bytes
        tokens = np.arange(first, first + length // self.item_bytes) % MODULUS
        return tokens.astype(f"<u{self.item_bytes}").tobytes()


def virtual_manifest(num_shards: int, **how: Any) -> SetManifest:
    return SetManifest(
        layout="stream",
        vocab_size=VOCABULARY,
        token_dtype=token_dtype(VOCABULARY),
        num_tokens=num_shards * SHARD_TOKENS,
        num_documents=num_shards,
        num_bytes=0,
        special_ids=SpecialIds(end_of_text=0),
        tokenizer_digest="0",
        shards=tuple(
            Shard(
                name=f"{number:05d}",
                num_tokens=SHARD_TOKENS,
                num_documents=1,
                has_mask=False,
                digests={"tokens": "0", "documents": "0"},
            )
            for number in range(num_shards)
        ),
        created_by="a test",
        **how,
    )


def virtual_set(
    name: str, reading: ReadOptions, num_shards: int = 64, **how: Any
) -> tuple[TokenSet, VirtualStore]:
    store = VirtualStore(name)
    return TokenSet(store, virtual_manifest(num_shards, **how), reading), store


def expected_rows(samples: np.ndarray, length: int) -> np.ndarray:
    return (samples[:, None] * length + np.arange(length + 1)) % MODULUS
