"""`make bench-data`: how fast text becomes a set, and in how much memory.

Three ways over the same files, in turn, on the same cores:

    bare      tokenizers' encode_batch on texts that are in memory already: only the calls are timed
    headway   prepare(), from the file to a verified set
    datasets  datasets.map in the usual two passes: tokenise, then pack into rows of 1024

Then the peak memory of preparing 1 GB and 4 GB, all processes together. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from headway.clock import SystemClock
from headway.data.prepare.job import PrepareJob, prepare
from headway.data.tokenizer import TokenizerSource, save_tokenizer, train_tokenizer, trained_roles

PLACES = ("/usr/share", "/usr/lib", "/usr/local", "/usr/include", sys.prefix, sys.base_prefix)
SUFFIXES = {".py", ".pyi", ".md", ".rst", ".txt", ".h", ".hpp", ".c", ".go", ".html", ".json"}
LARGEST_FILE = 2**20
VOCAB = 32_000
TRAINING_BYTES = 2**26
BATCH = 1024
ROW_TOKENS = 1024
GIGABYTE = 10**9
TARGETS = {"over_bare": 0.9, "over_datasets": 2.0, "peak_bytes": GIGABYTE}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def texts_of_this_machine() -> list[str]:
    """Program texts and documentation, each file once."""
    found: dict[int, str] = {}
    for place in PLACES:
        for path in sorted(Path(place).rglob("*")):
            if path.suffix not in SUFFIXES or path.is_symlink() or not path.is_file():
                continue
            if not 500 < path.stat().st_size < LARGEST_FILE:
                continue
            try:
                text = path.read_text("utf-8")
            except (UnicodeDecodeError, OSError):
                continue
            found[hash(text)] = text
    return sorted(found.values())


def write_corpus(folder: Path, num_files: int, file_bytes: int) -> list[Path]:
    """Files of JSON lines; where the machine has too little, its paragraphs in another order."""
    texts = texts_of_this_machine()
    say(f"{sum(map(len, texts)) / 1e6:.0f} MB of text on this machine, {len(texts)} documents")
    shuffled = random.Random(1)
    shuffled.shuffle(texts)
    documents = _without_end(texts, shuffled)
    files = []
    for number in range(num_files):
        path = folder / f"text-{number}.jsonl"
        written = 0
        with path.open("w", encoding="utf-8") as file:
            while written < file_bytes:
                line = json.dumps({"text": next(documents)}, ensure_ascii=False) + "\n"
                file.write(line)
                written += len(line.encode())
        files.append(path)
    return files


def _without_end(texts: list[str], shuffled: random.Random) -> Iterator[str]:
    yield from texts
    while True:
        for text in texts:
            paragraphs = text.split("\n\n")
            shuffled.shuffle(paragraphs)
            yield "\n\n".join(paragraphs)


def make_tokenizer(file: Path, folder: Path) -> None:
    tokenizer = train_tokenizer(_texts(file, TRAINING_BYTES), VOCAB, "stream")
    save_tokenizer(tokenizer, trained_roles("stream"), folder)


def _texts(file: Path, most_bytes: int) -> Iterator[str]:
    read = 0
    with file.open("rb") as lines:
        for line in lines:
            read += len(line)
            if read > most_bytes:
                return
            yield json.loads(line)["text"]


def bare(file: Path, folder: Path) -> float:
    """Seconds in encode_batch alone."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    seconds = 0.0
    batch: list[str] = []
    texts = _texts(file, 2**62)
    while True:
        batch = [text for _, text in zip(range(BATCH), texts, strict=False)]
        if not batch:
            return seconds
        began = time.perf_counter()
        tokenizer.encode_batch(batch, add_special_tokens=False)
        seconds += time.perf_counter() - began


def ours(files: list[Path], folder: Path) -> float:
    """Seconds from the call to the finished set."""
    into = folder / "set"
    shutil.rmtree(into, ignore_errors=True)
    job = PrepareJob(
        [str(file) for file in files],
        TokenizerSource(load=str(folder / "tokenizer")),
        str(into),
        folder,
    )
    began = time.perf_counter()
    prepare(job, lambda progress: None, SystemClock())
    seconds = time.perf_counter() - began
    shutil.rmtree(into)
    return seconds


def with_datasets(file: Path, folder: Path) -> float:
    """Seconds of the two passes; loading the file into Arrow is not counted."""
    import datasets
    from transformers import PreTrainedTokenizerFast

    datasets.disable_progress_bars()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer" / "tokenizer.json"))
    cache = folder / "datasets"
    shutil.rmtree(cache, ignore_errors=True)
    loaded = datasets.load_dataset(
        "json", data_files=str(file), split="train", cache_dir=str(cache)
    )
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")

    def tokenize(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        ids = tokenizer(batch["text"], add_special_tokens=False, return_attention_mask=False)
        return {"input_ids": [[*row, end] for row in ids["input_ids"]]}

    def pack(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        flat = [token for row in batch["input_ids"] for token in row]
        whole = len(flat) // ROW_TOKENS * ROW_TOKENS
        return {"input_ids": [flat[i : i + ROW_TOKENS] for i in range(0, whole, ROW_TOKENS)]}

    cores = len(os.sched_getaffinity(0))
    began = time.perf_counter()
    tokens = loaded.map(tokenize, batched=True, num_proc=cores, remove_columns=["text"])
    tokens.map(pack, batched=True, num_proc=cores)
    seconds = time.perf_counter() - began
    shutil.rmtree(cache)
    return seconds


WAYS = ("bare", "headway", "datasets")


def in_another_process(way: str, files: list[Path], folder: Path) -> tuple[float, int]:
    """Seconds, and peak bytes of the process and all it started. A process of its own: no way
    inherits another's memory or threads."""
    command = [sys.executable, "-m", "bench.data", "--way", way, "--folder", str(folder)]
    command += map(str, files)
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _tree_bytes(process.pid))
        time.sleep(0.5)
    assert process.returncode == 0, f"{way} failed"
    assert process.stdout is not None
    return json.loads(process.stdout.read()), peak


def _tree_bytes(pid: int) -> int:
    """Memory of a process and all below it, what they share counted once."""
    total = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            total += 1024 * int(rollup.split("Pss:")[1].split()[0])
    except (psutil.Error, OSError, IndexError):
        pass  # it has just ended
    return total


def one_way(way: str, files: list[Path], folder: Path) -> float:
    match way:
        case "bare":
            return sum(bare(file, folder) for file in files)
        case "headway":
            return ours(files, folder)
        case _:
            return sum(with_datasets(file, folder) for file in files)


def rounds(files: list[Path], folder: Path) -> dict[str, list[float]]:
    """MB/s of each way on each file, the ways in turn and each first once."""
    speeds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number, file in enumerate(files):
        turn = number % len(WAYS)
        for way in (*WAYS[turn:], *WAYS[:turn]):
            seconds, peak = in_another_process(way, [file], folder)
            speeds[way].append(file.stat().st_size / 1e6 / seconds)
            say(
                f"{file.name} {way:9} {speeds[way][-1]:6.2f} MB/s  {seconds:6.1f} s  "
                f"peak {peak / 1e6:.0f} MB"
            )
    return speeds


def peaks(files: list[Path], folder: Path, copies: int) -> dict[str, int]:
    """Peak memory with all files once, and `copies` times."""
    many = []
    for copy in range(copies):
        for file in files:
            link = folder / f"copy-{copy}-{file.name}"
            link.unlink(missing_ok=True)
            os.link(file, link)
            many.append(link)
    found = {}
    for sources in (files, many):
        size = f"{sum(file.stat().st_size for file in sources) / 1e9:.1f} GB"
        seconds, found[size] = in_another_process("headway", sources, folder)
        say(f"{size}: {seconds:.0f} s, peak {found[size] / 1e6:.0f} MB")
    for link in many:
        link.unlink()
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/headway-bench-data"))
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--num-files", type=int, default=4)
    parser.add_argument("--only", choices=("speed", "memory"))
    given = parser.parse_args()
    if given.way:
        print(json.dumps(one_way(given.way, given.files, given.folder)))
        return 0
    given.folder.mkdir(parents=True, exist_ok=True)
    files = sorted(given.folder.glob("text-*.jsonl"))
    size = given.megabytes * 10**6 // given.num_files
    if len(files) != given.num_files or files[0].stat().st_size < size:
        files = write_corpus(given.folder, given.num_files, size)
        make_tokenizer(files[0], given.folder / "tokenizer")
    result: dict[str, Any] = {}
    if given.only != "memory":
        speeds = rounds(files, given.folder)
        for other, name in (("bare", "over_bare"), ("datasets", "over_datasets")):
            ratios = [a / b for a, b in zip(speeds["headway"], speeds[other], strict=True)]
            result[name] = [round(value, 3) for value in sorted(ratios)]
        result["mb_per_second"] = {
            way: round(statistics.median(found), 2) for way, found in speeds.items()
        }
    if given.only != "speed":
        result["peak_bytes"] = peaks(files, given.folder, 4)
    print(json.dumps(_verdict(result)))
    return 0


def _verdict(result: dict[str, Any]) -> dict[str, Any]:
    figure: dict[str, float] = {
        name: statistics.median(result[name])
        for name in ("over_bare", "over_datasets")
        if name in result
    }
    passes = all(figure[name] >= TARGETS[name] for name in figure)
    if "peak_bytes" in result:
        figure["peak_bytes"] = max(result["peak_bytes"].values())
        passes = passes and figure["peak_bytes"] < TARGETS["peak_bytes"]
    return {"name": "data", "figure": figure, "target": TARGETS, "pass": passes, "spread": result}


if __name__ == "__main__":
    sys.exit(main())
