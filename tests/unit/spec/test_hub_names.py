"""What a run file names on the hub, and how a commit gets into a source's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import SpecError
from headway.spec.hub_names import at_commit, hub_references, without_revision
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, resolve

ONE, TWO = "1" * 40, "2" * 40
RUN = """\
version: 1
name: it
model: {from: team/small, revision: v1.0}
objective: {type: distill, teacher: gpt2}
data:
  train:
    tokenizer: {from: team/small, revision: v1.0}
    mixture:
      web: {sources: ["hub:allenai/c4?config=en&split=train"], weight: 2}
      own: {sources: [texts/*.txt, s3://bucket/more], weight: 1, tokenizer: ./tokenizer}
  validation: {news: {sources: ["hub:team/news?revision=main"]}}
  sequence_length: 128
batch: {global: 4}
"""


def test_all_that_is_on_the_hub_is_found(folder: Path) -> None:
    (folder / "run.yaml").write_text(RUN)
    found = {one.id: one.key for one in hub_references(load_run().run)}
    assert found == {
        "models/team/small@v1.0": ("data", "train", "tokenizer"),
        "models/gpt2": ("objective", "teacher"),
        "datasets/allenai/c4": ("data", "train", "mixture", "web", "sources"),
        "datasets/team/news@main": ("data", "validation", "news", "sources"),
    }


@pytest.mark.parametrize("name", ["./folder", "/models/x", "~/x", "s3://b/x", "a/b/c", "other@200"])
def test_what_is_not_on_the_hub_is_known_by_its_spelling(folder: Path, name: str) -> None:
    plain = RUN.replace("{from: team/small, revision: v1.0}\nobj", f"{{from: {name}}}\nobj")
    (folder / "run.yaml").write_text(plain)
    keys = [one.key for one in hub_references(load_run().run)]
    assert ("model",) not in keys


@pytest.mark.parametrize(
    ("source", "fixed"),
    [
        ("hub:a/b", f"hub:a/b?revision={ONE}"),
        ("hub:a/b?config=en&split=train", f"hub:a/b?config=en&split=train&revision={ONE}"),
        ("hub:a/b?revision=main&split=x", f"hub:a/b?split=x&revision={TWO}"),
        ("hub:other", "hub:other"),
        ("text.txt", "text.txt"),
    ],
)
def test_a_commit_is_part_of_a_sources_name(source: str, fixed: str) -> None:
    commits = {"datasets/a/b": ONE, "datasets/a/b@main": TWO}
    assert at_commit(source, commits) == fixed
    assert without_revision(fixed) == without_revision(source)


def test_a_worker_reads_the_commit_if_it_is_known(folder: Path) -> None:
    (folder / "run.yaml").write_text(RUN)
    resolved = resolve(
        load_run(),
        Hardware(cores=4, cuda_devices=0),
        nodes=1,
        parameters=None,
        train_set="train",
        validation_sets={},
    )
    model, teacher = resolved.run.model, resolved.run.objective.teacher
    assert model is not None
    assert teacher is not None
    assert (resolved.revision_of(model), resolved.revision_of(teacher)) == ("v1.0", None)
    commits = {"models/team/small@v1.0": ONE, "models/gpt2": TWO}
    pinned = resolved.model_copy(update={"hub_commits": commits})
    assert (pinned.revision_of(model), pinned.revision_of(teacher)) == (ONE, TWO)


@pytest.mark.parametrize("model", ["{type: gpt2, revision: v1}", "{from: other@200, revision: v1}"])
def test_a_revision_needs_a_name_on_the_hub(folder: Path, model: str) -> None:
    (folder / "run.yaml").write_text(f"version: 1\nname: it\nmodel: {model}\n")
    with pytest.raises(SpecError, match="`revision` needs `from` with a name on the hub"):
        load_run()
