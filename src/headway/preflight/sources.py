"""Whether the sets and sources of a run exist, and their first records have the right columns."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from headway.data.formats.readers import SUPPORTED
from headway.data.formats.web_files import is_web
from headway.data.prepare.columns import needed_columns
from headway.data.prepare.first_records import FirstRecords, NeedsExtra, Way, first_records
from headway.data.prepare.sources import readable_files, require_web_source
from headway.errors import BadInput, HeadwayError, NotFound, SpecError
from headway.preflight.unchecked import Unchecked
from headway.spec.data_config import CLAIM, HELD_OUT, SourceConfig, TokenizerConfig, is_elsewhere
from headway.spec.hub_names import SOURCE, at_words, source_reference
from headway.spec.load import Loaded
from headway.spec.run_sources import Key, run_sources
from headway.state.set_files import MIXTURE

OF_SETS = ("manifest.json", MIXTURE, "recipe.json")
"""Any of these in a folder makes it a set, finished or not."""
MOST_FILES = 16
"""Of a set, spread over all of its files."""
OTHER_WAYS: tuple[Way, ...] = ("template", "messages", "ids")
SUPPORTED_HINT = f"supported: {SUPPORTED}"
TEXT = (".jsonl", ".txt", ".json", ".csv", ".parquet")
"""Suffixes of files that are most likely the text of a run."""


def source_problems(loaded: Loaded, is_here: bool, unchecked: Unchecked) -> Iterator[SpecError]:
    yield from _name_problems(loaded)
    for key, source in run_sources(loaded.run):
        named = [one for one in (source.path, *(source.sources or ())) if one is not None]
        on_claim = next((one for one in named if one.startswith(CLAIM)), None)
        if is_here and on_claim is not None:
            yield SpecError(
                f"{_dotted(key)}: {on_claim} is a path on the claim of a target",
                str(loaded.located.mark(key)),
                "add --on TARGET",
            )
        elif source.path is not None:
            yield from _set_problems(loaded, key, source.path, unchecked)
        elif source.sources is not None:
            yield from _tokenizer_problems(loaded, key, source, unchecked)
            yield from _objective_problems(loaded, key, source)
            files: dict[str, str] = {}
            problems = list(_file_problems(loaded, key, source.sources, files, unchecked))
            yield from problems or _record_problems(loaded, key, source, files, unchecked)


def _name_problems(loaded: Loaded) -> Iterator[SpecError]:
    train = loaded.run.data.train
    if train is not None and train.hold_out is not None and HELD_OUT in loaded.run.data.validation:
        yield SpecError(
            f"data.validation has a set {HELD_OUT}, the name of the one that hold_out makes",
            str(loaded.located.mark(("data", "validation", HELD_OUT))),
            "rename that set, or remove hold_out",
        )


def _set_problems(loaded: Loaded, key: Key, path: str, unchecked: Unchecked) -> Iterator[SpecError]:
    if is_elsewhere(path):
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
        hint = _prepare_hint(loaded.folder, path)
        yield SpecError(f"{_dotted(key)}: no prepared set {folder}", where, hint)


def _prepare_hint(folder: Path, path: str) -> str:
    """A command that makes the set from the text beside the run file, if there is any."""
    found = sorted(file.name for file in folder.iterdir() if file.suffix in TEXT)
    if not found:
        return "name your text instead: {sources: [FILE], tokenizer: {train: {vocab: 8192}}}"
    source = shlex.quote(str(Path(os.path.relpath(folder)) / found[0]))
    into = shlex.quote(str(Path(os.path.relpath(folder)) / path))
    return f"to make it: headway data prepare {source} --into {into} --train-vocab 8192"


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
        elif source.messages is not None and not _has_chat_template(source.tokenizer, folder):
            yield SpecError(
                f"{folder} has no chat template, which messages need",
                where,
                f"use a built-in one: tokenizer: {{from: {name}, chat_template: zephyr}}",
            )
    elif name.startswith((".", "/", "~")) or name.count("/") > 1:
        yield SpecError(
            f"no tokenizer folder {folder}", where, "check the path, or give a name on the hub"
        )
    else:
        at = at_words(source.tokenizer.revision)
        unchecked.add(
            f"{_dotted(key)}: tokenizer {name} on the hub is opened when the run starts{at}"
        )


def _objective_problems(loaded: Loaded, key: Key, source: SourceConfig) -> Iterator[SpecError]:
    is_masked = loaded.run.objective.type == "masked"
    if source.unmask is not None and not is_masked:
        where = str(loaded.located.mark((*key, "unmask")))
        yield SpecError(
            f"{_dotted(key)}.unmask is for a masked model: the objective is "
            f"{loaded.run.objective.type}",
            where,
            "objective: masked, or remove unmask",
        )
    if source.mask is not None and is_masked:
        where = str(loaded.located.mark((*key, "mask")))
        yield SpecError(
            f"{_dotted(key)}.mask: which tokens of a masked model count is drawn anew in each "
            "epoch",
            where,
            "remove mask; what the files have masked already, unmask puts back",
        )


def _has_chat_template(tokenizer: TokenizerConfig, folder: Path) -> bool:
    """Whether there is one; whether it is right is seen when it is used."""
    if tokenizer.chat_template is not None or (folder / "chat_template.jinja").is_file():
        return True
    config = folder / "tokenizer_config.json"
    return config.is_file() and "chat_template" in config.read_text("utf-8")


def _file_problems(
    loaded: Loaded, key: Key, sources: list[str], files: dict[str, str], unchecked: Unchecked
) -> Iterator[SpecError]:
    """Sources that name nothing. `files` gets what the others name, each with the position of its
    source."""
    for index, name in enumerate(sources):
        where = str(loaded.located.mark((*key, "sources", index)))
        if is_elsewhere(name):
            if is_web(name):
                try:
                    require_web_source(name)
                except BadInput as error:
                    yield SpecError(error.message, where, error.hint)
                    continue
            at = at_words(source_reference(name).revision) if name.startswith(SOURCE) else ""
            unchecked.add(f"{_dotted(key)}: {name} is opened when the run starts{at}")
            continue
        try:
            files |= dict.fromkeys(readable_files(name, loaded.folder), where)
        except NotFound as error:
            yield SpecError(error.message, where, _near_file(name, loaded.folder) or error.hint)
        except BadInput as error:
            yield SpecError(error.message, where, error.hint)


def _near_file(name: str, folder: Path) -> str | None:
    path = folder / Path(name).expanduser()
    if not path.parent.is_dir():
        return None
    near = difflib.get_close_matches(path.name, [one.name for one in path.parent.iterdir()], n=1)
    return f"did you mean {Path(name).with_name(near[0])}?" if near else None


def _record_problems(
    loaded: Loaded, key: Key, source: SourceConfig, files: dict[str, str], unchecked: Unchecked
) -> Iterator[SpecError]:
    """A problem of the first records of all files. The preparation leaves out and counts single
    records and files, so nothing is refused where one file is right or cannot be judged."""
    sources = source.sources or []
    if any(is_elsewhere(name) for name in sources):
        return
    if not files:
        where = str(loaded.located.mark((*key, "sources")))
        yield SpecError(f"no supported file in {', '.join(sources)}", where, SUPPORTED_HINT)
        return
    sample = list(files)[:: -(-len(files) // MOST_FILES)]
    found = []
    for file in sample:
        try:
            problem = _problem_of(loaded, key, source, file, files[file])
        except (NeedsExtra, HeadwayError) as error:
            unchecked.add(f"{_dotted(key)}: {error}")
            return
        if problem is None:
            return
        found.append(problem)
    # Many files of which each sampled one lacks the column: it is misspelt.
    is_judged = len(sample) == len(files) or not any(one.is_unreadable for one in found)
    if is_judged:
        yield found[0]
    else:
        unchecked.add(f"{found[0].problem}; other files of {_dotted(key)} may be right")


class _FileProblem(SpecError):
    is_unreadable = False


class _Unreadable(_FileProblem):
    is_unreadable = True


def _problem_of(
    loaded: Loaded, key: Key, source: SourceConfig, file: str, where: str
) -> _FileProblem | None:
    """The problem that all first records of a file have."""
    columns = needed_columns(source)
    first = first_records(file, loaded.folder, None if source.transform else columns)
    if first.unreadable is not None:
        text = f"{first.unreadable.where}: {first.unreadable.kind}: {first.unreadable.message}"
        return _Unreadable(text, where, _what_is_read(file))
    if source.transform is not None:
        return None
    given: list[Way] = [way for way in OTHER_WAYS if getattr(source, way) is not None]
    way = given[0] if given else "ids" if file.endswith((".bin", ".idx")) else "column"
    problem = first.column_problem(columns, way)
    if problem is None:
        return None
    if (*key, way) in loaded.located.keys:
        where = str(loaded.located.mark((*key, way)))
    many = "the first record" if first.count == 1 else f"the first {first.count} records"
    return _FileProblem(f"{file}: {problem} (in {many})", where, _columns_hint(source, first))


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
