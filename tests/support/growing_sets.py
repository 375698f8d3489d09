"""Sets that are being prepared: a finished one, whose records come one after the other."""

from __future__ import annotations

import shutil
from pathlib import Path


def records(folder: Path) -> list[Path]:
    return sorted((folder / "shards").glob("*.json"))


def begin(whole: Path, folder: Path) -> None:
    """All but the records and the manifest: shards that nobody has finished yet."""
    (folder / "shards").mkdir(parents=True)
    for path in whole.rglob("*"):
        if path.is_file() and path.name != "manifest.json" and path not in records(whole):
            (folder / path.relative_to(whole)).parent.mkdir(exist_ok=True)
            shutil.copy(path, folder / path.relative_to(whole))


def finish_shards(whole: Path, folder: Path, count: int) -> None:
    for path in records(whole)[:count]:
        shutil.copy(path, folder / "shards" / path.name)


def finish_set(whole: Path, folder: Path) -> None:
    finish_shards(whole, folder, 10**9)
    shutil.copy(whole / "manifest.json", folder)
