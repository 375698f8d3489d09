"""`make bench-fast-bpe`: processor time of encoding by words beside the tokenizer itself.

The same texts, in turn, for each family of tokenizers: published ones (FILES=, tokenizer.json of
each) or ones built like them, with vocabularies trained on these texts. Each round begins with an
empty cache of words, which the first half fills (`cold`); the second half is as everything after
it (`times`). The ids of both ways are compared. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.data import say, texts_of_this_machine
from headway.data.prepare.fast_bpe import FastBpe, fast_bpe_for
from headway.data.set_format import token_dtype
from support.tokenizer_families import FAMILIES, trained

VOCAB = 32_000
BATCH = 256


@dataclass(frozen=True)
class Measured:
    num_bytes: int
    left: int
    """Bytes of texts that are left to the tokenizer."""
    tokenizer: float
    words: float
    """Seconds of processor, each way."""

    @property
    def times(self) -> float:
        return self.tokenizer / self.words


def chosen_texts(megabytes: float) -> list[str]:
    texts = texts_of_this_machine()
    random.Random(1).shuffle(texts)
    chosen, size = [], 0
    for text in texts:
        if size >= megabytes * 1e6:
            break
        chosen.append(text)
        size += len(text.encode())
    return chosen


def by_tokenizer(tokenizer: Any, texts: list[str], dtype: Any) -> list[bytes]:
    found: list[bytes] = []
    for begin in range(0, len(texts), BATCH):
        batch = tokenizer.encode_batch_fast(texts[begin : begin + BATCH], add_special_tokens=False)
        found += [np.fromiter(encoding.ids, dtype=dtype).tobytes() for encoding in batch]
    return found


def both_ways(tokenizer: Any, words: FastBpe, texts: list[str], dtype: Any) -> Measured:
    began = time.process_time()
    wanted = by_tokenizer(tokenizer, texts, dtype)
    middle = time.process_time()
    found = [words.encode(text) for text in texts]
    others = [text for text, ids in zip(texts, found, strict=True) if ids is None]
    rest = iter(by_tokenizer(tokenizer, others, dtype))
    same = [next(rest) if ids is None else ids for ids in found]
    ended = time.process_time()
    assert same == wanted, "the ids differ"
    num_bytes, left = (sum(len(text.encode()) for text in some) for some in (texts, others))
    return Measured(num_bytes, left, middle - began, ended - middle)


def measured(tokenizer: Any, texts: list[str], rounds: int) -> dict[str, Any]:
    dtype = token_dtype(tokenizer.get_vocab_size())
    cold: list[Measured] = []
    warm: list[Measured] = []
    for _ in range(rounds):
        words = fast_bpe_for(tokenizer, dtype)
        assert words is not None, "it is not encoded by words"
        for half, part in ((cold, texts[::2]), (warm, texts[1::2])):
            half.append(both_ways(tokenizer, words, part, dtype))
    return {
        "times": [round(one.times, 2) for one in sorted(warm, key=lambda one: one.times)],
        "cold": [round(one.times, 2) for one in sorted(cold, key=lambda one: one.times)],
        "left_to_tokenizer": round(warm[0].left / warm[0].num_bytes, 4),
        "mb_per_second": {
            "tokenizer": round(
                statistics.median(one.num_bytes / one.tokenizer for one in warm) / 1e6, 2
            ),
            "words": round(statistics.median(one.num_bytes / one.words for one in warm) / 1e6, 2),
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--megabytes", type=float, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    texts = chosen_texts(given.megabytes)
    result: dict[str, Any] = {"bytes": sum(len(text.encode()) for text in texts)}
    for what in given.files or FAMILIES:
        if isinstance(what, Path):
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(what))
            tokenizer.encode_special_tokens = True
            tokenizer.no_truncation()
            tokenizer.no_padding()
        else:
            tokenizer = trained(what, texts, VOCAB)
        name = what.stem if isinstance(what, Path) else what
        result[name] = measured(tokenizer, texts, given.rounds)
        say(f"{name}: {result[name]}")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
