"""What `headway target storage` says about a target's storage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.launch.storage_use import StoredFolder, stored_folders
from headway.state.store import Store


@pytest.fixture
def storage(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    for kind, digest in (("sets", "1-aa"), ("sets", "1-bb"), ("code", "2-cc"), ("models", "2-dd")):
        store.write(f"{kind}/{digest}/first", b"12345")
        store.write(f"{kind}/{digest}/deeper/second", b"123")
        store.write(f"{kind}/{digest}.whole", b"{}")
    return store


def runs_of(found: list[StoredFolder]) -> dict[str, tuple[str, ...]]:
    return {f"{each.kind}/{each.digest}": each.runs for each in found}


def test_each_folder_has_its_size_and_the_runs_that_name_it(storage: Store) -> None:
    spec = {
        "train_set": "/headway/storage/sets/1-aa",
        "run": {"code": "/headway/fetched/code/2-cc"},
    }
    storage.write("runs/wiki/spec.json", json.dumps(spec, indent=2).encode())
    storage.write("runs/wiki/checkpoints/sets/1-bb/spec.json", b"not a run's")
    found = stored_folders(storage, {"queued": '"s3://team/sets/1-aa"'})
    assert found[0] == StoredFolder("sets", "1-aa", 2, 8, True, ("queued", "wiki"))
    assert runs_of(found) == {
        "sets/1-aa": ("queued", "wiki"),
        "sets/1-bb": (),
        "code/2-cc": ("wiki",),
        "models/2-dd": (),
    }


def test_a_run_launched_anew_uses_what_its_stored_spec_names_as_well(storage: Store) -> None:
    storage.write("runs/wiki/spec.json", b'"/headway/storage/sets/1-aa"')
    runs = runs_of(stored_folders(storage, {"wiki": '"/headway/storage/sets/1-bb"'}))
    assert runs["sets/1-aa"] == runs["sets/1-bb"] == ("wiki",)


def test_a_set_is_in_use_if_a_mixture_is_of_which_it_is_part(storage: Store) -> None:
    members = [{"name": "a", "location": "../1-aa"}]
    storage.write("sets/1-ee/mixture.json", json.dumps({"members": members}).encode())
    storage.write("sets/1-ee.whole", b"{}")
    found = stored_folders(storage, {"wiki": '"/headway/storage/sets/1-ee"'})
    runs = runs_of(found)
    assert runs["sets/1-ee"] == runs["sets/1-aa"] == ("wiki",)
    assert runs["sets/1-bb"] == ()


def test_a_folder_whose_upload_was_interrupted_is_listed_as_incomplete(storage: Store) -> None:
    storage.write("models/2-ff/first", b"1")
    found = {each.digest: each.is_whole for each in stored_folders(storage, {})}
    assert found == {"1-aa": True, "1-bb": True, "2-cc": True, "2-dd": True, "2-ff": False}


def test_an_empty_storage_has_nothing(tmp_path: Path) -> None:
    assert stored_folders(Store(tmp_path), {}) == []


def test_a_set_that_pods_prepare_is_whole_with_its_manifest(storage: Store) -> None:
    folder = "p-" + "a" * 32
    storage.write(f"sets/{folder}/recipe.json", b"{}")
    for is_whole in (False, True):
        found = {one.digest: one for one in stored_folders(storage, {})}
        assert found[folder].is_whole == is_whole
        storage.write(f"sets/{folder}/manifest.json", b"{}")
