"""Whether the sets and sources of a run exist, and their first records have the right columns."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from headway.data.prepare.columns import needed_columns
from headway.data.prepare.first_records import FirstRecords, NeedsExtra, first_records
from headway.data.prepare.sources import HUB, local_files, require_readable
from headway.errors import BadInput, HeadwayError, NotFound, SpecError
from headway.preflight.unchecked import Unchecked
from headway.spec.data_config import WAYS, DataSetConfig, SourceConfig
from headway.spec.load import Loaded

Key = tuple[str | int, ...]
OF_SETS = ("manifest.json", "mixture.json", "recipe.json")
"""Any of these in a folder makes it a set, finished or not."""
NO_SET = "make one: headway data prepare SOURCE --into"


def source_problems(loaded: Loaded, unchecked: Unchecked) -> Iterator[SpecError]:
    for key, source in _sources(loaded):
        if source.path is not None:
            yield from _set_problems(loaded, key, source.path, unchecked)
        elif source.sources is not None:
            yield from _tokenizer_problems(loaded, key, source, unchecked)
            for index, name in enumerate(source.sources):
                yield from _file_problems(loaded, key, source, index, name, unchecked)


def _sources(loaded: Loaded) -> Iterator[tuple[Key, SourceConfig]]:
    """Every set of the run and member of a mixture, with where it is in the run file."""
    data = loaded.run.data
    sets: dict[Key, DataSetConfig] = {
        ("data", "validation", name): one for name, one in data.validation.items()
    }
    if data.train is not None:
        sets = {("data", "train"): data.train, **sets}
    for key, one in sets.items():
        yield key, one
        for name, member in (one.mixture or {}).items():
            yield (*key, "mixture", name), member


def _set_problems(loaded: Loaded, key: Key, path: str, unchecked: Unchecked) -> Iterator[SpecError]:
    if "://" in path:
        unchecked.add(f"{_dotted(key)}: {path} is opened when the run starts")
        return
    folder = loaded.folder / path
    if any((folder / name).is_file() for name in OF_SETS):
        return
    where = str(loaded.located.mark((*key, "path")))
    if folder.is_file():
        hint = f"to prepare the file: {{sources: [{path}], tokenizer: {{train: {{vocab: 8192}}}}}}"
        yield SpecError(f"{_dotted(key)}: {path} is a file, not a prepared set", where, hint)
    else:
        yield SpecError(f"{_dotted(key)}: no prepared set {folder}", where, f"{NO_SET} {path}")


def _tokenizer_problems(
    loaded: Loaded, key: Key, source: SourceConfig, unchecked: Unchecked
) -> Iterator[SpecError]:
    if source.tokenizer is None or source.tokenizer.from_ is None:
        return
    name = source.tokenizer.from_
    folder = loaded.folder / Path(name).expanduser()
    where = str(loaded.located.mark((*key, "tokenizer")))
    if folder.is_dir():
        if not (folder / "tokenizer.json").is_file():
            yield SpecError(
                f"{folder} has no tokenizer.json",
                where,
                "save a fast tokenizer there with transformers' save_pretrained, or train one: "
                "tokenizer: {train: {vocab: 8192}}",
            )
    elif name.startswith((".", "/", "~")) or name.count("/") > 1:
        yield SpecError(
            f"no tokenizer folder {folder}", where, "check the path, or give a name on the hub"
        )
    else:
        unchecked.add(f"{_dotted(key)}: tokenizer {name} on the hub is opened when the run starts")


def _file_problems(
    loaded: Loaded, key: Key, source: SourceConfig, index: int, name: str, unchecked: Unchecked
) -> Iterator[SpecError]:
    where = str(loaded.located.mark((*key, "sources", index)))
    if name.startswith(HUB) or "://" in name:
        unchecked.add(f"{_dotted(key)}: {name} is opened when the run starts")
        return
    try:
        file = require_readable(local_files(name, loaded.folder), name, loaded.folder)
        first = first_records(file, loaded.folder)
    except NeedsExtra as lacking:
        unchecked.add(f"{_dotted(key)}: {lacking}")
    except NotFound as error:
        yield SpecError(error.message, where, _near_file(name, loaded.folder) or error.hint)
    except BadInput as error:
        yield SpecError(error.message, where, error.hint)
    except HeadwayError as error:
        yield SpecError(error.message, where)
    else:
        yield from _record_problems(loaded, key, source, first, where)


def _near_file(name: str, folder: Path) -> str | None:
    path = folder / Path(name).expanduser()
    if not path.parent.is_dir():
        return None
    near = difflib.get_close_matches(path.name, [one.name for one in path.parent.iterdir()], n=1)
    return f"did you mean {Path(name).with_name(near[0])}?" if near else None


def _record_problems(
    loaded: Loaded, key: Key, source: SourceConfig, first: FirstRecords, where: str
) -> Iterator[SpecError]:
    """A problem that all of the first records have. Single ones are left out and counted by the
    preparation."""
    if first.unreadable is not None:
        text = f"{first.unreadable.where}: {first.unreadable.kind}: {first.unreadable.message}"
        yield SpecError(text, where, _what_is_read(first.file))
        return
    if source.transform is not None:
        return
    columns = needed_columns(
        source.column, source.template, source.messages, source.ids, source.mask
    )
    is_text = source.messages is None and source.ids is None
    problem = first.column_problem(columns, only_text=is_text)
    if problem is None:
        return
    written = [way for way in ("column", *WAYS) if (*key, way) in loaded.located.keys]
    if written:
        where = str(loaded.located.mark((*key, written[0])))
    many = "the first record" if first.count == 1 else f"the first {first.count} records"
    yield SpecError(f"{first.file}: {problem} (in {many})", where, _columns_hint(source, first))


def _what_is_read(file: str) -> str:
    if file.endswith((".jsonl", ".ndjson")):
        return 'each line has to be a JSON object: {"text": "..."}'
    return "replace the file, or remove it from sources; a folder or pattern may name text files"


def _columns_hint(source: SourceConfig, first: FirstRecords) -> str | None:
    if source.ids is not None or source.messages is not None:
        return f"columns there: {', '.join(first.columns)}" if first.columns else None
    if source.template is not None:
        return f"columns for the template: {', '.join(first.text_columns)}"
    best = first.text_columns
    return f"column: {best[0]}" if best else "a column with text is needed"


def _dotted(key: Key) -> str:
    return ".".join(str(part) for part in key)
