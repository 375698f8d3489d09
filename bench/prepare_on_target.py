"""`make bench-prepare-on-target TOKENS=1000000000`: 2,000 Parquet files in a bucket become a set on
the test cluster, while KILLS=30 of the pods that prepare it are evicted, deleted or killed. A
reader joins meanwhile. Batches of 512 rows of 4,096 tokens, read before and after the end, are
compared with what the files hold, by arithmetic that is written here. Ends with one line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from cluster_tool import network
from headway.data.reading.growing_set import GrowingSet
from headway.data.reading.sample_set import open_set
from headway.data.reading.token_set import TokenSet
from headway.data.set_format import MANIFEST
from headway.data.tiny_stories import stories
from headway.state.store import Store
from support.lab import borrowed_lab
from support.pods_lost import PodsLost
from support.s3 import credentials, s3_server
from support.waiting import wait_for

TOKENS = int(os.environ.get("TOKENS", "1000000000"))
KILLS = int(os.environ.get("KILLS", "30"))
FILES = int(os.environ.get("FILES", "2000"))
NODES = 12
"""Pods at a time: Kubernetes waits longer after each loss of one part."""
TOKEN_BYTES = 4.2
"""Text per token of this tokenizer, about."""
ROWS, LENGTH, SEED = 512, 4096, 11
WINDOW = f"{TOKENS // 250} tokens"
"""A unit each: all pods have several."""
END = "<|endoftext|>"
INTO = "s3://bucket/sets/big"
VARIETY_BYTES = 2**22
SECONDS = 4 * 3600.0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def write_file(folder: Path, told: Sequence[str], number: int) -> None:
    """Stories in an order of this file alone, each beginning with a number of its own."""
    shuffled, size = random.Random(number), 0
    texts: list[str] = []
    while size < TOKENS * TOKEN_BYTES / FILES:
        texts.append(f"{number}-{len(texts)}. {shuffled.choice(told)}")
        size += len(texts[-1])
    pq.write_table(pa.table({"text": texts}), folder / f"{number:05d}.parquet", row_group_size=500)


def documents(tokenizer: Path, file: Path) -> list[list[int]]:
    """The tokens of a file's documents, by the tokenizers library alone."""
    loaded = Tokenizer.from_file(str(tokenizer))
    end = loaded.token_to_id(END)
    assert end is not None
    texts = pq.read_table(file).column("text").to_pylist()
    return [[*one.ids, end] for one in loaded.encode_batch(texts, add_special_tokens=False)]


def num_tokens(tokenizer: Path, file: Path) -> int:
    return sum(map(len, documents(tokenizer, file)))


def rows_of_files(
    tokenizer: Path, files: Sequence[Path], ends: Sequence[int], samples: Sequence[int]
) -> np.ndarray:
    """Sample i is the tokens i L to (i + 1) L, both included, of all files in a row."""
    rows = np.empty((len(samples), LENGTH + 1), np.int64)
    known: dict[int, np.ndarray] = {}
    for row, sample in sorted(enumerate(samples), key=lambda pair: pair[1]):
        at, filled = sample * LENGTH, 0
        while filled < LENGTH + 1:
            number = next(number for number, end in enumerate(ends) if at < end)
            if number not in known:
                flat = [token for one in documents(tokenizer, files[number]) for token in one]
                known = {**dict(list(known.items())[-1:]), number: np.array(flat)}
            begin = at - (ends[number - 1] if number else 0)
            found = known[number][begin : begin + LENGTH + 1 - filled]
            rows[row, filled : filled + len(found)] = found
            at, filled = at + len(found), filled + len(found)
    return rows


def main() -> int:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-target-")))
        (scratch / "lab").mkdir()
        keys = (secrets.token_hex(10), secrets.token_hex(20))
        lab = stack.enter_context(borrowed_lab(scratch / "lab"))
        port = stack.enter_context(s3_server(scratch / "s3", network.HOST, keys))
        env = credentials(port, network.HOST, keys)
        os.environ.update(env)
        lab.change_target(
            pod={"env": lab.target()["pod"]["env"] | env},
            prepare={"nodes": NODES, "resources": {"cpu": "100m", "memory": "1Gi"}},
        )
        folder = scratch / "s3" / "bucket" / "text"
        folder.mkdir()
        pool = stack.enter_context(ProcessPoolExecutor(os.cpu_count()))
        told = list(stories(VARIETY_BYTES, seed=1))
        list(pool.map(partial(write_file, folder, told), range(FILES)))
        (lab.folder / "text.txt").write_text("\n\n".join(told))
        lab.headway("data", "tokenizer", "text.txt", "--vocab", "8000", "--into", "tokenizer")
        say(f"{FILES} files of {sum(f.stat().st_size for f in folder.iterdir()) / 1e9:.2f} GB")
        command = ("data", "prepare", "s3://bucket/text/*.parquet", "--tokenizer", "./tokenizer")
        options = ("--stream", "--stream-window", WINDOW, "--on", "lab", "--into", INTO)
        began = time.monotonic()
        store = Store(INTO)
        with lab.typed(*command, *options) as typed:
            typed.wait_for("documents", 600)
            lost = PodsLost(lab)
            wait_for(
                f"{KILLS} losses",
                lambda: lost.lose_one() >= KILLS or typed.process.poll() is not None,
                SECONDS,
            )
            say(f"{lost.num} pods lost after {time.monotonic() - began:.0f} s")
            growing = open_set(store)
            was_growing = isinstance(growing, GrowingSet)
            samples = growing.order(SEED, LENGTH).at(0, ROWS)[1]
            early = growing.read(samples, LENGTH).tokens
            is_whole = store.size(MANIFEST) is not None
            growing.close()
            code = typed.end(SECONDS)
            assert code == 0, typed.output
        seconds = time.monotonic() - began
        finished = TokenSet.open(store)
        order = finished.order(SEED, LENGTH)
        assert order.at(0, ROWS)[1].tolist() == samples.tolist()
        later = order.at(finished.num_samples(LENGTH) // 2, ROWS)[1]
        files = sorted(folder.iterdir())
        tokenizer = lab.folder / "tokenizer" / "tokenizer.json"
        ends = list(accumulate(pool.map(partial(num_tokens, tokenizer), files, chunksize=8)))
        of_files = partial(rows_of_files, tokenizer, files, ends)
        is_equal = [
            ends[-1] == finished.manifest.num_tokens,
            np.array_equal(early, of_files(samples.tolist())),
            np.array_equal(finished.read(later, LENGTH).tokens, of_files(later.tolist())),
        ]
        left = store.names("progress")
        finished.close()
        line = {
            "name": "bench-prepare-on-target",
            "figure": round(seconds, 1),
            "target": "equal to the files",
            "pass": all(is_equal) and not left and lost.num >= KILLS,
            "spread": {
                "tokens": ends[-1],
                "files": FILES,
                "pods_lost": lost.num,
                "most_of_one_part": max(lost.of_part.values(), default=0),
                "read_while_prepared": was_growing and not is_whole,
                "equal": is_equal,
            },
        }
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
