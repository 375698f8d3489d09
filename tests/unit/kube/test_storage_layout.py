"""Which folders of this machine a run needs, and where each is on a target's storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.errors import SpecError
from headway.kube.pod_overrides import TargetMismatch
from headway.kube.storage_layout import (
    LocalFolder,
    StorageLayout,
    folders_to_fetch,
    local_folders,
    model_digest,
    set_addresses,
)
from headway.spec.load import load_run
from headway.spec.resolve import Resolved
from headway.spec.target_file import Target
from headway.state.file_listing import listing_of
from support.token_sets import write_set

Render = Callable[..., list[dict[str, Any]]]
CLAIM = Target.model_validate({"storage": {"claim": "fs"}})
BUCKET = Target.model_validate({"storage": {"url": "s3://team/headway/"}})


def places(*overrides: str, folders: tuple[str, ...] = ()) -> list[LocalFolder]:
    there = {Path.cwd() / name for name in folders}
    return local_folders(load_run(None, list(overrides)), lambda path: path in there)


def spec_of(objects: list[dict[str, Any]]) -> Resolved:
    return Resolved.model_validate_json(objects[1]["data"]["spec.json"])


def test_one_layout_in_a_claim_and_in_a_bucket(folder: Path) -> None:
    run = load_run().run
    claim, bucket = StorageLayout.of(run, CLAIM), StorageLayout.of(run, BUCKET)
    assert (claim.root, claim.runs) == ("/headway/storage", "/headway/storage/runs")
    assert (bucket.root, bucket.runs) == ("s3://team/headway", "s3://team/headway/runs")
    assert (
        claim.stored_path("sets", "d")
        == claim.worker_path("sets", "d")
        == "/headway/storage/sets/d"
    )
    assert (
        bucket.stored_path("sets", "d")
        == bucket.worker_path("sets", "d")
        == "s3://team/headway/sets/d"
    )
    assert claim.stored_path("code", "d") == "/headway/storage/code/d"
    assert bucket.stored_path("code", "d") == "s3://team/headway/code/d"
    # What is run is fetched and compared with its digest, wherever it is.
    assert (
        claim.worker_path("code", "d")
        == bucket.worker_path("code", "d")
        == "/headway/fetched/code/d"
    )
    # transformers reads models from folders only.
    assert bucket.worker_path("models", "d") == "/headway/fetched/models/d"
    assert claim.worker_path("models", "d") == "/headway/storage/models/d"


def test_a_bucket_that_the_run_file_names_is_where_its_run_directory_is(folder: Path) -> None:
    run = load_run(None, ["storage=s3://mine/runs/"]).run
    assert StorageLayout.of(run, CLAIM).runs == "s3://mine/runs"
    assert StorageLayout.of(run, CLAIM).root == "/headway/storage"
    assert StorageLayout.of(run, Target()).root == "s3://mine/runs"


@pytest.mark.trap(30)
def test_without_storage(folder: Path) -> None:
    with pytest.raises(TargetMismatch, match="checkpoints would be on a pod's disk") as caught:
        StorageLayout.of(load_run().run, Target())
    assert caught.value.path == ("storage",)


def test_places_of_this_machine(folder: Path) -> None:
    found = places(
        "model={from: weights}",
        "objective={type: distill, teacher: ./big}",
        "data.train={mixture: {a: {path: a, weight: 1}, b: {path: 's3://x/b', weight: 1}}}",
        "data.validation={v.1: held/out, far: 's3://x/v'}",
        "code={path: src}",
        folders=("weights",),
    )
    assert found == [
        LocalFolder(("model", "from"), "models", folder / "weights"),
        LocalFolder(("objective", "teacher", "from"), "models", folder / "big"),
        LocalFolder(("data", "train", "mixture", "a"), "sets", folder / "a"),
        LocalFolder(("data", "validation", "v.1"), "sets", folder / "held/out"),
        LocalFolder(("code", "path"), "code", folder / "src"),
    ]


@pytest.mark.parametrize("name", ["gpt2", "meta-llama/Llama-2-7b-hf"])
def test_names_on_the_hub_are_no_places(folder: Path, name: str) -> None:
    tokenizer = f"{{sources: [a.txt], tokenizer: {name}}}"
    assert places(f"model={{from: {name}}}", f"data.train={tokenizer}") == []


def test_a_tokenizers_folder_is_needed_here_but_goes_nowhere(folder: Path) -> None:
    found = places("data.train={sources: [a.txt], tokenizer: ./words}")
    assert found == [LocalFolder(("data", "train", "tokenizer"), "tokenizers", folder / "words")]


def test_sets_that_stay_and_sets_that_go(folder: Path) -> None:
    run = load_run(
        None,
        [
            "data.train={sources: [a.txt], tokenizer: gpt2, hold_out: 1%}",
            "data.validation={far: 's3://x/v', near: v}",
        ],
    ).run
    assert set_addresses(run) == {
        ("data", "train"): None,
        ("data", "validation", "far"): "s3://x/v",
        ("data", "validation", "near"): None,
        ("data", "validation", "held_out"): None,
    }


@pytest.mark.trap(26)
def test_all_is_by_content_where_pods_see_it(folder: Path, render: Render) -> None:
    train = write_set(folder / "train", [(range(1, 90), None)])
    held = write_set(folder / "held", [(range(1, 50), None)])
    for name, content in (("src/mine.py", b"x = 1\n"), ("weights/config.json", b"{}")):
        (folder / name).parent.mkdir()
        (folder / name).write_bytes(content)
    spec = spec_of(
        render(
            "data={train: train, validation: {held: held}, sequence_length: 16}",
            "model={from: weights}",
            "code={path: src}",
        )
    )
    assert spec.train_set == f"/headway/storage/sets/{train.digest}"
    assert spec.validation_sets == {"held": f"/headway/storage/sets/{held.digest}"}
    assert spec.run.model is not None
    digest = model_digest(folder / "weights")
    assert spec.run.model.from_ == f"/headway/storage/models/{digest}"
    assert spec.run.code is not None
    files = {path.name: path for path in (folder / "src").iterdir()}
    assert spec.code_digest == listing_of(files).digest
    assert spec.run.code.path == f"/headway/fetched/code/{spec.code_digest}"
    assert str(folder) not in spec.model_dump_json()


def test_packages_are_fetched_by_the_digest_of_their_archive(folder: Path, render: Render) -> None:
    (folder / "src").mkdir()
    (folder / "requirements.txt").write_text("timm\n")
    spec = spec_of(render("code={path: src, requirements: requirements.txt}"))
    digest = "<digest of code.requirements>"  # known when they are installed
    assert spec.packages == f"/headway/fetched/packages/{digest}/site"
    fetched = folders_to_fetch(spec)
    assert fetched[f"/headway/fetched/packages/{digest}"] == f"packages/{digest}"


def test_another_run_is_one_of_the_target(folder: Path, render: Render) -> None:
    spec = spec_of(render("model={from: other@300}"))
    assert spec.run.model is not None
    assert spec.run.model.from_ == "/headway/storage/runs/other@300"


def test_a_run_of_this_machine_is_refused(folder: Path, render: Render) -> None:
    (folder / "run.yaml").write_text(
        "version: 1\nmodel:\n  from: ../x/runs/it@300\n"
        "data: {train: 's3://a'}\nbatch: {global: 8}\n"
    )
    with pytest.raises(SpecError) as caught:
        render()
    assert str(caught.value).startswith(
        "run.yaml:3:3: model.from: ../x/runs/it@300 is a run on this machine, which pods cannot see"
    )


def test_a_models_digest_is_of_what_is_brought_there(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"a" * 100)
    (tmp_path / "config.json").write_text("{}")
    before = model_digest(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"a pickle")
    (tmp_path / ".cache").mkdir()
    assert model_digest(tmp_path) == before
    (tmp_path / "config.json").write_text("{ }")
    assert model_digest(tmp_path) != before


def test_a_models_digest_tells_where_one_file_ends(tmp_path: Path) -> None:
    digests = set()
    for number, (one, two) in enumerate([("ab", "c"), ("a", "bc")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "1.json").write_text(one)
        (folder / "2.json").write_text(two)
        digests.add(model_digest(folder))
    assert len(digests) == 2
