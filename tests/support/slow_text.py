"""Text in a bucket that answers late, and a run that trains on it while it is prepared."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headway.data.tiny_stories import stories
from support.lab import Lab
from support.live import RUN_FILE
from support.prepared import write_lines
from support.proxies import SlowProxy
from support.s3 import credentials, s3_server

FILE_BYTES = 2**16
WINDOW = "16k tokens"
"""Units of 64 kB: a file each."""
SOURCES = "s3://bucket/text/*.jsonl"
REQUESTS_PER_UNIT = 2
"""At least: where a file is, and what is in it."""
OWN_TEXT = "{sources: [text.txt], tokenizer: {train: {vocab: 400}}}"


@dataclass
class SlowText:
    fast: dict[str, str]
    """Variables by which the bucket is reached without delay, for the user's commands."""
    slow: dict[str, str]
    """The same through the proxy, for pods."""
    proxy: SlowProxy
    num_files: int

    @property
    def prepare(self) -> tuple[str, ...]:
        """The command, but for where to."""
        return (
            *("data", "prepare", SOURCES, "--tokenizer", "./tokenizer"),
            *("--stream", "--stream-window", WINDOW),
        )

    @property
    def make_tokenizer(self) -> tuple[str, ...]:
        return ("data", "tokenizer", SOURCES, "--vocab", "400", "--into", "tokenizer")

    def take(self, seconds: float, parts: int) -> None:
        """Lets a preparation in so many parts take about so long."""
        self.proxy.delay_seconds = seconds * parts / (REQUESTS_PER_UNIT * self.num_files)

    def run_file(self) -> str:
        """One that streams, and saves now and then. Its tokenizer is in the folder `tokenizer`: to
        train one, all text would have to be read first."""
        assert OWN_TEXT in RUN_FILE
        stream = f"stream: {{window: {WINDOW}}}"
        train = f'{{sources: ["{SOURCES}"], tokenizer: ./tokenizer, {stream}}}'
        return RUN_FILE.replace(OWN_TEXT, train) + "checkpoint: {every: 20s}\n"

    @staticmethod
    def num_units(made: Path) -> int:
        return len(json.loads((made / "recipe.json").read_text())["files"])


@contextmanager
def slow_text(folder: Path, address: str, num_files: int) -> Iterator[SlowText]:
    """Without delay until `take`."""
    keys = (secrets.token_hex(10), secrets.token_hex(20))
    with s3_server(folder, address, keys) as port:
        text = folder / "bucket" / "text"
        text.mkdir()
        for number in range(num_files):
            lines = [{"text": one} for one in stories(FILE_BYTES, seed=number)]
            write_lines(text / f"{number:03d}.jsonl", lines)
        with SlowProxy(port, 0.0, address) as proxy:
            fast, slow = (credentials(one, address, keys) for one in (port, proxy.port))
            yield SlowText(fast, slow, proxy, num_files)


def prepared_there(lab: Lab) -> Path:
    """The set that pods have prepared, or are preparing, for a run."""
    (made,) = (path for path in (lab.shared / "sets").glob("p-*") if path.is_dir())
    return made
