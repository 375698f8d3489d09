"""The training scripts of examples/scripts, which know nothing of Headway, seen from outside: what
they print and save, and which processes run them."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

EXAMPLES = Path(__file__).parents[2] / "examples" / "scripts"


@dataclass(frozen=True)
class Script:
    name: str
    output: str
    """The argument that names its output, up to the folder."""
    step: re.Pattern[str]
    """What it prints for each step."""
    resumed: str
    """What it prints when it continues from a checkpoint of its own."""
    checkpoints: str
    """Those that are complete, as a pattern below the output."""
    model: str
    """What the end of its training leaves there."""
    length: str
    """The argument that says how long it trains, up to the number."""
    short: int
    """For a run of some seconds, with several checkpoints."""
    options: tuple[str, ...] = ()

    def copy_to(self, folder: Path) -> Path:
        """Of its folder."""
        return Path(shutil.copytree(EXAMPLES / self.name, folder / self.name, ignore=IGNORED))

    def make_run(self, folder: Path, length: int, *more: str) -> Path:
        """Of a copy of its folder there, the run file with that length and further arguments. The
        run has the script's name."""
        code = self.copy_to(folder)
        run_file = yaml.safe_load((code / "run.yaml").read_text())
        run_file["command"] += [*f"{self.length}{length}".split(), *more]
        (code / "run.yaml").write_text(yaml.safe_dump(run_file))
        return code

    def arguments(self, output: Path | str, length: int) -> list[str]:
        words = f"{self.output}{output} {self.length}{length}".split()
        return ["train.py", *self.options, *words]


IGNORED = shutil.ignore_patterns("runs", "out", "__pycache__")
SCRIPTS = {
    one.name: one
    for one in (
        Script(
            "images",
            "--out ",
            re.compile(r"epoch \d+ step \d+ loss"),
            "continuing from ",
            "epoch-*.pt",
            "model.pt",
            "--epochs ",
            5,
        ),
        Script(
            "trainer",
            "--output_dir ",
            re.compile(r"\{'loss': "),
            "continuing from ",
            "checkpoint-*/complete",
            "model/model.safetensors",
            "--max_steps ",
            70,
        ),
        Script(
            "accelerate",
            "--project ",
            re.compile(r"step \d+ loss"),
            "continuing from ",
            "step-*[0-9]",
            "model/model.safetensors",
            "--steps ",
            70,
        ),
        Script(
            "nano",
            "--out_dir=",
            re.compile(r"iter \d+: loss"),
            "resuming from ",
            "ckpt.pt",
            "ckpt.pt",
            "--max_iters=",
            70,
            ("config/tiny.py",),
        ),
    )
}


def processes(mark: str) -> dict[int, float]:
    """Those that run a `train.py` with `mark` in their command, and when each was started, in
    seconds since 1970. What only starts others is not among them."""
    return started(mark, (int(name) for name in os.listdir("/proc") if name.isdigit()))


def started(mark: str, pids: Iterable[int]) -> dict[int, float]:
    """The same of these processes."""
    found = {}
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if not any(mark in word for word in words) or "torchrun" in " ".join(words[:2]):
                continue
            if not any(word.rpartition("/")[2] == "train.py" for word in words[:3]):
                continue
            # After the name in parentheses, which may have blanks: state is field 3, start 22.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if fields[0] != "Z":
            age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / TICKS_PER_SECOND
            found[pid] = time.time() - age
    return found


TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Printed:
    """What is appended to files, some of which are yet to come."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._read: dict[Path, int] = {}

    def has_stepped(self, logs: Iterable[Path]) -> bool:
        """Whether a step was printed since the last call."""
        found = False
        for log in logs:
            with log.open("rb") as file:
                file.seek(self._read.get(log, 0))
                whole = file.read().rpartition(b"\n")[0]
            self._read[log] = self._read.get(log, 0) + len(whole)
            found |= bool(self._script.step.search(whole.decode(errors="replace")))
        return found
