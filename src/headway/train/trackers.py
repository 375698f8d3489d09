"""Trackers, which get metrics besides the run directory: TensorBoard and Weights & Biases.

An error of a tracker is logged once in the worker's log, and training continues without the
tracker.
"""

from __future__ import annotations

import netrc
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import xxhash

from headway.errors import BadInput, HeadwayError
from headway.spec.resolve import Resolved
from headway.state.rewinds import apply_rewinds
from headway.state.run_directory import RunDirectory
from headway.state.tracked_numbers import Numbers, tracked_logs
from headway.train.worker_log import log_line

WANDB_PROJECT = "headway"
WANDB_BLOCK = 32 * 1024
START_TIMEOUT_SECONDS = 30.0
FINISH_TIMEOUT_SECONDS = 5.0
"""A stopping run has seconds, not minutes, and its checkpoint is safe by then. What W&B could not
send in time stays on this machine for `wandb sync`."""

HOLD_SECONDS = 1.0
MOST_PAST_STEPS = 10_000
"""Past steps that are logged to W&B at most, when a start finds that it lacks them."""


class Tracker(Protocol):
    def numbers(self, step: int, numbers: Numbers) -> None:
        """Logs some metrics of a step. After a worker was lost the newest step may come again."""
        ...

    def close(self) -> None: ...


def open_trackers(directory: RunDirectory, resolved: Resolved, first_step: int) -> list[Tracker]:
    """The trackers that the run file asks for. Called before this start has written anything to the
    logs; they never raise afterwards."""
    openers: dict[str, Callable[[], Tracker]] = {
        "tensorboard": lambda: TensorBoard(directory, first_step),
        "wandb": lambda: WandB(directory, resolved, first_step),
    }
    return [Unfailing(name, openers[name]) for name in dict.fromkeys(resolved.run.track)]


def past_numbers(directory: RunDirectory, after: int, upto: int) -> list[tuple[int, Numbers]]:
    """Metrics of the steps (after, upto] from the run directory, by step, as trackers get them."""
    found: dict[int, Numbers] = {step: {} for step in range(after + 1, upto + 1)}
    for log, numbers_of in tracked_logs(directory):
        for line in apply_rewinds(log.read()[0]):
            if line["step"] in found:
                found[line["step"]].update(numbers_of(line))
    return [(step, numbers) for step, numbers in found.items() if numbers]


class Unfailing:
    """A tracker that is switched off by its first error, which is logged, instead of stopping
    training."""

    def __init__(self, name: str, open_tracker: Callable[[], Tracker]) -> None:
        self.name = name
        self.tracker: Tracker | None = None
        try:
            self.tracker = open_tracker()
        except HeadwayError:  # a package that is not installed: reported before training
            raise
        except Exception as error:  # noqa: BLE001 - logged, and nothing depends on it
            self._give_up(error)

    def numbers(self, step: int, numbers: Numbers) -> None:
        if self.tracker is None:
            return
        try:
            self.tracker.numbers(step, numbers)
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)

    def close(self) -> None:
        if self.tracker is None:
            return
        try:
            self.tracker.close()
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.tracker = None
        log_line(f"{self.name} failed and is off until the next start: {error!r}")


class TensorBoard:
    def __init__(self, directory: RunDirectory, first_step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard import SummaryWriter

        self._summary: Any = Summary
        # Steps beyond the checkpoint are about to be done again: hide the first attempt.
        self.writer = SummaryWriter(
            str(directory.tensorboard), purge_step=first_step + 1, flush_secs=10
        )
        self._held: list[tuple[Any, int, float]] = []
        """Summaries with step and time, not yet handed to the writer. Its thread wakes up for each
        and takes the interpreter's lock: half a millisecond of a step."""
        self._handed_at = time.time()

    def numbers(self, step: int, numbers: Numbers) -> None:
        summary, now = self._summary(), time.time()
        for name, value in numbers.items():
            summary.value.add(tag=name, simple_value=value)
        self._held.append((summary, step, now))
        if not 0 <= now - self._handed_at < HOLD_SECONDS:
            self._hand_over()
            self._handed_at = now

    def close(self) -> None:
        self._hand_over()
        self.writer.close()

    def _hand_over(self) -> None:
        writer: Any = self.writer.file_writer
        for held in self._held:
            writer.add_summary(*held)
        self._held.clear()


class WandB:
    """One W&B run through all starts: its id is made from the run's name and birth.

    W&B refuses a step that it has gone past. So steps that an earlier start logged, and this one
    does again, keep the numbers they were logged with; and steps that a killed start had no time to
    hand over (W&B writes in blocks of 32 KiB) are taken from the run directory first.
    """

    def __init__(self, directory: RunDirectory, resolved: Resolved, first_step: int) -> None:
        self.wandb = _import_wandb()
        directory.local.mkdir(parents=True, exist_ok=True)
        number = wandb_id(directory)
        facts: dict[str, Any] = {
            "id": number,
            "name": directory.name,
            "project": os.environ.get("WANDB_PROJECT") or WANDB_PROJECT,
            "dir": str(directory.local),
            "config": resolved.run.model_dump(mode="json", by_alias=True, exclude_none=True),
            "resume": "allow",
            "allow_val_change": True,  # nodes, budget and the like may differ between starts
        }
        self.run = self._begin(facts)
        self.last = self.run.starting_step - 1  # the server says how far it is
        if self.run.offline:
            self.last = last_offline_step(directory.local / "wandb", number)
        after = max(self.last, first_step - MOST_PAST_STEPS)
        for step, numbers in past_numbers(directory, after, first_step):
            self.numbers(step, numbers)

    def _begin(self, facts: dict[str, Any]) -> Any:
        if os.environ.get("WANDB_MODE"):
            return self._init(facts)
        reason = "no API key found (set WANDB_API_KEY or run `wandb login`)"
        if has_wandb_key():
            try:
                return self._init(facts)
            except Exception as error:  # noqa: BLE001 - logged below
                reason = f"it cannot be reached: {error}"
                self.wandb.teardown()  # otherwise the id counts as in use
        run = self._init({**facts, "mode": "offline", "resume": None})
        folder = Path(run.dir).parent
        log_line(f"wandb is offline: {reason}; to upload later: wandb sync {folder}")
        return run

    def _init(self, facts: dict[str, Any]) -> Any:
        settings = self.wandb.Settings(
            console="off",  # the launcher keeps what workers print
            silent=True,
            init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT") or START_TIMEOUT_SECONDS),
            finish_timeout=FINISH_TIMEOUT_SECONDS,
        )
        return self.wandb.init(settings=settings, **facts)

    def numbers(self, step: int, numbers: Numbers) -> None:
        # Numbers of one step become one line: W&B closes it when a later step comes.
        if step > self.last:
            self.run.log(numbers, step=step)

    def close(self) -> None:
        self.run.finish()
        # Measured: `finish` can return before the file is written, and W&B's own process leaves
        # what it has not written when this one ends.
        self.wandb.teardown()


def wandb_id(directory: RunDirectory) -> str:
    record = directory.record()
    born = f"{record['name']}/{record['created']}"
    return f"{directory.name}-{xxhash.xxh3_64_hexdigest(born.encode())[:8]}"


def last_offline_step(folder: Path, run_id: str) -> int:
    """Of a W&B run, in the files that its starts on this machine have left; 0 without any."""
    from wandb.proto import wandb_internal_pb2

    files = folder.glob(f"*run-*-{run_id}/run-{run_id}.wandb")
    # Folders are named by the time they were made, and steps only grow.
    for path in sorted(files, key=lambda path: path.parent.name.split("run-")[1], reverse=True):
        record: Any = wandb_internal_pb2.Record  # type: ignore[attr-defined]
        records = (record.FromString(part) for part in newest_records(path))
        steps = [r.history.step.num for r in records if r.WhichOneof("record_type") == "history"]
        if steps:
            return max(steps)
    return 0


def newest_records(path: Path, most_blocks: int = 256) -> Iterator[bytes]:
    """Whole records out of the last blocks of a W&B file.

    It is a log in the format of LevelDB after 7 bytes of its own: blocks of 32 KiB, which hold
    frames of a checksum (4 bytes), a length (2), a kind (1: a whole record; 2, 3, 4: its first,
    middle, last part) and the content.
    """
    blocks = -(-path.stat().st_size // WANDB_BLOCK)
    skipped = max(0, blocks - most_blocks)
    with path.open("rb") as file:
        file.seek(skipped * WANDB_BLOCK)
        data = file.read()
    at = 0 if skipped else 7
    parts: list[bytes] | None = None
    while at + 7 <= len(data):
        left_in_block = WANDB_BLOCK - at % WANDB_BLOCK
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if left_in_block < 7 or kind == 0:
            at += left_in_block
            continue
        content = data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 2):
            parts = []
        if parts is not None and len(content) == length:
            parts.append(content)
            if kind in (1, 4):
                yield b"".join(parts)


def has_wandb_key() -> bool:
    """Whether W&B would find credentials without asking a person."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").netloc
    path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    try:
        return netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _import_wandb() -> Any:
    try:
        import wandb
    except ImportError:
        raise BadInput("track: wandb is not installed", "pip install 'headway[wandb]'") from None
    return wandb
