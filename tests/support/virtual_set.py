"""Sets of any size in a store that makes their bytes up when they are read, and counts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from headway.data.reading.token_set import ReadOptions, TokenSet
from headway.data.set_format import SetManifest, SpecialIds, token_dtype
from headway.data.shard_table import PAGE_DIGEST_BYTES, PAGE_TOKENS, ShardTable, page_digests
from headway.state.store import Store

SHARD_TOKENS = 2**25
VOCABULARY = 100_000
MODULUS = 2**16
"""Token number p of the stream is p modulo this, so there are 32 different pages."""


class VirtualStore(Store):
    """A bucket whose shards hold the numbers of their tokens."""

    def __init__(self, name: str, item_bytes: int = 4) -> None:
        self.root = f"s3://virtual/{name}"
        self.is_local = False
        self.is_served = False
        self.item_bytes = item_bytes
        self.num_requests = 0
        self.num_digest_requests = 0
        self.num_bytes = 0
        self._lock = threading.Lock()
        tokens = np.arange(MODULUS).astype(f"<u{item_bytes}")
        self._pages = np.array(page_digests(tokens.tobytes(), PAGE_TOKENS * item_bytes), "<u4")

    def read_range(self, name: str, start: int, length: int, *, often: bool = False) -> bytes:
        with self._lock:
            self.num_requests += 1
            self.num_bytes += length
        if name.endswith(".pages"):
            with self._lock:
                self.num_digest_requests += 1
            first = start // PAGE_DIGEST_BYTES
            return self._pages[np.arange(first, first + length // 4) % len(self._pages)].tobytes()
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
        num_shards=num_shards,
        shard_table_digest="0",
        created_by="a test",
        **how,
    )


def virtual_table(num_shards: int) -> ShardTable:
    numbers = np.arange(1, num_shards + 1)
    none = np.zeros(num_shards, "V16")
    return ShardTable(
        token_ends=numbers * SHARD_TOKENS,
        document_ends=numbers,
        **dict.fromkeys(("tokens", "documents", "mask", "pages"), none),
        units=(numbers - 1).astype("<u4"),
        indexes=np.zeros(num_shards, "<u4"),
        has_mask=np.zeros(num_shards, "u1"),
    )


def virtual_set(
    name: str, reading: ReadOptions, num_shards: int = 64, **how: Any
) -> tuple[TokenSet, VirtualStore]:
    store = VirtualStore(name)
    return TokenSet(
        store, virtual_manifest(num_shards, **how), virtual_table(num_shards), reading
    ), store


def expected_rows(samples: np.ndarray, length: int) -> np.ndarray:
    return (samples[:, None] * length + np.arange(length + 1)) % MODULUS
