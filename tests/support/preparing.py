"""Preparing small sets in tests and benches; as a program, one preparation to be killed."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import psutil

from headway.clock import SystemClock
from headway.data.prepare.job import PrepareJob, prepare
from headway.data.prepare.recipe import RecipeSettings
from headway.data.set_format import SHARDS, SetManifest
from headway.data.tiny_stories import stories
from headway.data.tokenizer import TokenizerSource
from support.prepared import run_part
from support.waiting import wait_for

START_SECONDS = 60
MOST_FILES = 90  # of the 100 that two megabytes make; a kill's share of the corpus


def prepare_set(
    sources: list[str],
    into: Path,
    beside: Path,
    *,
    vocab: int | None = None,
    tokenizer: Path | str | None = None,
    processes: int = 1,
    **settings: Any,
) -> SetManifest:
    """`window_tokens` among the settings makes it a set of windows."""
    if "window_tokens" in settings:
        settings["layout"] = "windows"
    load = None if tokenizer is None else str(tokenizer)
    job = PrepareJob(
        sources,
        TokenizerSource(load=load, train_vocab=vocab),
        str(into),
        beside,
        RecipeSettings(**settings),
        processes=processes,
    )
    return prepare(job, lambda progress: None, SystemClock())


def mixed_corpus(folder: Path, num_bytes: int) -> PrepareJob:
    """Text of several kinds: some that can be read in pieces, some that cannot, some bad; and the
    job of preparing it in small units, alone in one process."""
    third = num_bytes // 3
    (folder / "a.txt").write_text("\n\n".join(stories(third, seed=1)))
    lines = [json.dumps({"text": story}) for story in stories(third, seed=2)]
    lines[100] = "{not JSON"
    (folder / "b.jsonl").write_text("\n".join(lines))
    packed = "\n".join(json.dumps({"text": story}) for story in stories(third, seed=3))
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(packed.encode()))
    (folder / "first.txt").write_text("\n\n".join(stories(50_000, seed=1)))
    prepare_set(["first.txt"], folder / "first", folder, vocab=500)
    return PrepareJob(
        ["a.txt", "b.jsonl", "c.jsonl.gz"],
        TokenizerSource(load=str(folder / "first" / "tokenizer")),
        str(folder / "alone"),
        folder,
        RecipeSettings(unit_bytes=2**16),
        processes=1,
    )


def run_parts(job: PrepareJob, num_parts: int) -> None:
    """As the pods of a target: the first plans, then the last part comes first."""
    for number in [0, *reversed(range(1, num_parts))]:
        run_part(replace(job, processes=1 + number % 2), number, num_parts)


def kill_and_prepare(job: PrepareJob, kills: int, seed: int) -> int:
    """Starts the preparation, which kills itself at a random moment of its work, and again; then
    lets it come to its end. How many did not come to their end before."""
    moments = random.Random(seed)
    done = 0
    for _ in range(kills):
        moment = {"files": moments.randint(1, MOST_FILES), "seconds": moments.uniform(0.0, 0.01)}
        process = _start(job, moment)
        code = process.wait(timeout=START_SECONDS)
        assert code in (0, -signal.SIGKILL), f"exit code {code}"
        done += code != 0
        # Those that tokenise notice by themselves that nobody wants their work any more.
        wait_for("its processes to end", partial(_is_alone, process.pid), 20)
    assert _start(job).wait(timeout=600) == 0
    return done


def shard_bytes(folder: Path) -> dict[str, bytes]:
    """All of a set's files that hold content."""
    return {
        path.name: path.read_bytes()
        for path in sorted((folder / SHARDS).iterdir())
        if path.suffix != ".json"
    }


def _is_alone(pid: int) -> bool:
    """Whether no other runs in its process group; itself, it has ended."""
    for other in psutil.pids():
        with suppress(ProcessLookupError):
            if os.getpgid(other) == pid:
                return False
    return True


def _start(job: PrepareJob, moment: dict[str, Any] | None = None) -> subprocess.Popen[bytes]:
    words = {
        "sources": list(job.sources),
        "tokenizer": job.tokenizer.load,
        "into": job.into,
        "beside": str(job.beside),
        "settings": job.settings.model_dump(),
        "processes": job.processes,
        "moment": moment,
    }
    tests = str(Path(__file__).parents[1])
    paths = [tests, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-m", "support.preparing", json.dumps(words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
    )


def _kill_at(into: str, files: int, seconds: float) -> None:
    """This process dies `seconds` after it has made, moved or removed its n-th file under `into`:
    by its work and not by the clock, so that it is in the middle of it on any machine."""
    moments = count(1)

    def die() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    def look(event: str, words: tuple[Any, ...]) -> None:
        makes = event in ("os.rename", "os.remove") or (event == "open" and words[1] == "w")
        if makes and str(words[0]).startswith(into) and next(moments) == files:
            Thread(target=die, daemon=True).start()

    sys.addaudithook(look)


def main() -> None:
    words = json.loads(sys.argv[1])
    job = PrepareJob(
        words["sources"],
        TokenizerSource(load=words["tokenizer"]),
        words["into"],
        Path(words["beside"]),
        RecipeSettings(**words["settings"]),
        processes=words["processes"],
    )
    if words["moment"] is not None:
        _kill_at(job.into, **words["moment"])
    prepare(job, lambda progress: None, SystemClock())


if __name__ == "__main__":
    main()
