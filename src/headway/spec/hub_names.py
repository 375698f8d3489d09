"""What a run file names on the Hugging Face hub, and which commit of it. A branch moves, and so
does a name without a revision: the first start asks the hub once, and all pods and every later
start read the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from headway.spec.data_config import SourceConfig
from headway.spec.run_file import ModelConfig, RunFile
from headway.spec.run_sources import Key, run_sources

COMMIT = re.compile(r"[0-9a-f]{40}")
SOURCE = "hub:"
REVISION = "revision="
HubKind = Literal["models", "datasets"]


@dataclass(frozen=True)
class HubReference:
    kind: HubKind
    name: str
    revision: str | None
    """As the run file has it: a commit, tag or branch. None: the default branch."""
    key: Key = ()
    """Where the run file names it."""

    @property
    def id(self) -> str:
        """Key of its commit in a resolved run."""
        return f"{self.kind}/{self.name}{f'@{self.revision}' if self.revision else ''}"

    @property
    def is_fixed(self) -> bool:
        return self.revision is not None and COMMIT.fullmatch(self.revision) is not None


def at_words(revision: str | None) -> str:
    """For a note: at which commit something on the hub is read."""
    if revision is not None and COMMIT.fullmatch(revision) is not None:
        return f", at commit {revision[:12]}"
    what = f"of {revision}" if revision is not None else "of its default branch"
    return f", at the newest commit {what}, which the run then keeps"


def model_reference(model: ModelConfig, key: Key = ()) -> HubReference | None:
    """None if it is certainly not on the hub; a folder may have such a name, too."""
    name = model.from_
    if name is None or "@" in name or not may_be_hub_name(name):
        return None
    return HubReference("models", name, model.revision, key)


def may_be_hub_name(name: str) -> bool:
    """By its spelling."""
    return "://" not in name and not name.startswith((".", "/", "~")) and name.count("/") <= 1


def hub_references(run: RunFile) -> Iterator[HubReference]:
    """All that may be on the hub: models, tokenizers and sources."""
    models: dict[Key, ModelConfig | None] = {
        ("model",): run.model,
        ("objective", "teacher"): run.objective.teacher,
    }
    for key, model in models.items():
        if model is not None and (found := model_reference(model, key)) is not None:
            yield found
    for key, source in run_sources(run):
        yield from _of_source(source, key)


def _of_source(source: SourceConfig, key: Key) -> Iterator[HubReference]:
    tokenizer = source.tokenizer
    if tokenizer is not None and tokenizer.from_ is not None and may_be_hub_name(tokenizer.from_):
        yield HubReference("models", tokenizer.from_, tokenizer.revision, (*key, "tokenizer"))
    for named in source.sources or ():
        if named.startswith(SOURCE):
            yield source_reference(named, (*key, "sources"))


def source_reference(source: str, key: Key = ()) -> HubReference:
    """Of `hub:NAME?config=en&revision=...`."""
    name, _, options = source.removeprefix(SOURCE).partition("?")
    given = [one.removeprefix(REVISION) for one in options.split("&") if one.startswith(REVISION)]
    return HubReference("datasets", name, given[0] if given else None, key)


def at_commit(source: str, commits: Mapping[str, str]) -> str:
    """The source with its commit, if that is known: what is prepared from it has it in its name."""
    if not source.startswith(SOURCE):
        return source
    commit = commits.get(source_reference(source).id)
    if commit is None:
        return source
    rest = without_revision(source)
    return f"{rest}{'&' if '?' in rest else '?'}{REVISION}{commit}"


def without_revision(source: str) -> str:
    name, _, options = source.partition("?")
    kept = [one for one in options.split("&") if one and not one.startswith(REVISION)]
    return f"{name}?{'&'.join(kept)}" if kept else name
