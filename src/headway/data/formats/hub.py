"""Datasets on the Hugging Face hub, streamed: `hub:allenai/c4?config=en&split=train`.

A part is a unit into which the dataset itself can be divided, usually a file. Its rows arrive as
Arrow batches; the processes that tokenise turn them into records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from gzip import BadGzipFile
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from headway.data.formats.chunks import CHUNK_BYTES, Chunk, damage_chunk, problem_chunk
from headway.data.formats.parquet import column_problem, row_chunks
from headway.data.hub_reachable import why_hub_is_away
from headway.errors import BadInput, HeadwayError

PREFIX = "hub:"
KEYS = ("config", "split", "revision")
_BATCH_ROWS = 1000
_NETWORK = ("aiohttp", "httpcore", "httpx", "huggingface_hub", "requests", "urllib3")


@dataclass(frozen=True)
class HubDataset:
    name: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None


def parse_hub_source(source: str) -> HubDataset:
    name, _, options = source.removeprefix(PREFIX).partition("?")
    found = dict(parse_qsl(options, keep_blank_values=True))
    unknown = sorted(found.keys() - set(KEYS))
    if unknown or not name or not all(found.values()):
        what = f"unknown option {unknown[0]}" if unknown else "no name, or an option without value"
        raise BadInput(f"{source}: {what}", "hub:OWNER/NAME?config=en&split=train&revision=COMMIT")
    return HubDataset(name, **found)


def num_parts(source: str) -> int:
    return max(1, int(_load(source).num_shards))


def hub_chunks(
    source: str, part: int, columns: tuple[str, ...] | None, *, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Chunk]:
    dataset = _load(source)
    file = source
    if dataset.num_shards > 1:
        dataset = dataset.shard(num_shards=dataset.num_shards, index=part)
        file = f"{source} (part {part + 1})"
    names = dataset.column_names
    if names is not None and columns is not None and not column_problem(names, columns):
        dataset = dataset.select_columns(list(columns))
    tables = iter(dataset.with_format("arrow").iter(batch_size=_BATCH_ROWS))
    row = 1
    while True:
        try:
            table = next(tables, None)
        except Exception as error:  # the errors that datasets raises are undocumented
            if _is_failure(error):
                raise _unreachable(source, error) from error
            message = f"{_words(error)}; the rest of the part is lost"
            yield damage_chunk("damaged file", file, row, message)
            return
        if table is None:
            return
        if problem := column_problem(table.column_names, columns):
            yield problem_chunk(problem[0], file, None, problem[1])
            return
        table = table if columns is None else table.select(columns)
        for batch in table.combine_chunks().to_batches():
            yield from row_chunks(file, row, batch, chunk_bytes)
            row += batch.num_rows


@lru_cache(maxsize=4)
def _load(source: str) -> Any:
    named = parse_hub_source(source)
    # Before the import: datasets then reads whether the hub's library is offline.
    away = None if Path(named.name).exists() else why_hub_is_away()
    try:
        import datasets
    except ImportError:
        raise BadInput(f"{source} needs the hub extra", "pip install 'headway[hub]'") from None
    try:
        return datasets.load_dataset(
            named.name,
            named.config,
            split=named.split,
            revision=named.revision,
            streaming=True,
        )
    except Exception as error:  # noqa: BLE001 - the message includes the error
        why = _words(error)
        if away is not None:
            why += f"; the hub cannot be reached ({away})"
        raise BadInput(
            f"{source} cannot be opened: {why}",
            "check name, config and split; a private dataset needs HF_TOKEN, and offline mode "
            "(HF_HUB_OFFLINE) reaches only what is on this machine",
        ) from None


def _is_failure(error: BaseException | None) -> bool:
    """Whether the network or a disk failed, rather than the content being damaged. Damaged files
    also raise OSError, but the bare class without an errno."""
    while error is not None:
        if type(error).__module__.partition(".")[0] in _NETWORK:
            return True
        if isinstance(error, HeadwayError | MemoryError):
            return True
        is_bare = type(error) in (OSError, BadGzipFile) and error.errno is None  # type: ignore[attr-defined]
        if isinstance(error, OSError) and not is_bare:
            return True
        error = error.__cause__ or error.__context__
    return False


def _unreachable(source: str, error: Exception) -> HeadwayError:
    return HeadwayError(
        f"{source} cannot be read: {_words(error)}",
        "run the same command to resume",
    )


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
