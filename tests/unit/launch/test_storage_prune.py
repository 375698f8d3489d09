"""`headway target prune` removes what nobody needs, and nothing else, while others launch runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.clock import stamp
from headway.errors import StillRunning
from headway.kube.api_errors import ClusterUnreachable
from headway.launch.storage_prune import (
    KEPT_SECONDS,
    REMOVAL_SECONDS,
    note_used,
    removed_folders,
    removing_mark,
    unused_folders,
    used_mark,
)
from headway.launch.storage_use import StoredFolder
from headway.state.store import Store
from support.kept_run import TestClock

FIRST, SECOND, CODE = "sets/" + "a" * 32, "sets/" + "b" * 32, "code/2-" + "c" * 64


def nobody() -> dict[str, str]:
    return {}


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@pytest.fixture
def storage(tmp_path: Path, clock: TestClock) -> Store:
    store = Store(tmp_path)
    for name in (FIRST, SECOND, CODE):
        note_used(store, name, clock, "lab", "wiki")
        store.write(f"{name}/file", b"12345")
        store.write(f"{name}.whole", b"{}")
    store.write("runs/wiki/spec.json", f'"/headway/storage/{FIRST}"'.encode())
    store.write("runs/wiki/checkpoints/step-1/weights", b"1")
    return store


def names(folders: list[StoredFolder]) -> list[str]:
    return [folder.name for folder in folders]


def pruned(storage: Store, clock: TestClock) -> list[str]:
    old, _ = unused_folders(storage, nobody, clock)
    return [one.name for one, is_gone in removed_folders(storage, old, nobody, clock) if is_gone]


def test_what_a_run_names_stays_and_so_does_what_is_young(storage: Store, clock: TestClock) -> None:
    clock.sleep(KEPT_SECONDS / 2)
    note_used(storage, CODE, clock, "lab", "wiki")
    clock.sleep(KEPT_SECONDS / 2 + 1)
    old, young = unused_folders(storage, nobody, clock)
    assert (names(old), names(young)) == ([SECOND], [CODE])
    assert names(unused_folders(storage, lambda: {"queued": SECOND}, clock)[0]) == []
    before = set(storage.names(""))
    assert pruned(storage, clock) == [SECOND]
    gone = before - set(storage.names(""))
    assert gone == {f"{SECOND}/file", f"{SECOND}.whole", f"{SECOND}.used"}


def test_the_age_of_what_was_uploaded_by_an_earlier_version_counts_from_now(
    storage: Store, clock: TestClock
) -> None:
    storage.remove(used_mark(SECOND))
    clock.sleep(KEPT_SECONDS + 1)
    assert names(unused_folders(storage, nobody, clock)[1]) == [SECOND]
    clock.sleep(KEPT_SECONDS - 1)
    assert names(unused_folders(storage, nobody, clock)[1]) == [SECOND]
    clock.sleep(2)
    assert SECOND in pruned(storage, clock)


def test_what_is_not_ours_is_left_alone(storage: Store, clock: TestClock) -> None:
    for name in ("sets/by-hand/file", "models/2-short/file", "other/file"):
        storage.write(name, b"1")
    clock.sleep(KEPT_SECONDS + 1)
    assert sorted(pruned(storage, clock)) == sorted([SECOND, CODE])
    assert storage.size("sets/by-hand/file") == 1


def test_a_launch_before_the_removal_keeps_it(storage: Store, clock: TestClock) -> None:
    clock.sleep(KEPT_SECONDS + 1)
    old, _ = unused_folders(storage, nobody, clock)
    note_used(storage, SECOND, clock, "lab", "wiki")  # while the user was asked
    outcome = {one.name: is_gone for one, is_gone in removed_folders(storage, old, nobody, clock)}
    assert outcome == {SECOND: False, CODE: True}
    assert storage.size(f"{SECOND}/file") == 5
    note_used(storage, SECOND, clock, "lab", "wiki")


def test_a_run_that_is_launched_meanwhile_keeps_it(storage: Store, clock: TestClock) -> None:
    clock.sleep(KEPT_SECONDS + 1)
    old, _ = unused_folders(storage, nobody, clock)
    launched = {"new": f'"/headway/storage/{SECOND}"'}
    outcome = [is_gone for _, is_gone in removed_folders(storage, old, lambda: launched, clock)]
    assert outcome == [False, True]


def test_a_launch_during_the_removal_is_refused(storage: Store, clock: TestClock) -> None:
    clock.sleep(KEPT_SECONDS + 1)
    old, _ = unused_folders(storage, nobody, clock)
    removal = removed_folders(storage, old, nobody, clock)
    next(removal)
    with pytest.raises(StillRunning, match="is being removed from the storage") as caught:
        note_used(storage, CODE, clock, "lab", "wiki")
    assert "headway target prune lab" in str(caught.value.hint)
    assert next(removal)[1] is False, "who was refused may come back: it was seen"
    note_used(storage, CODE, clock, "lab", "wiki")


def test_an_interrupted_removal_is_finished_by_the_next(storage: Store, clock: TestClock) -> None:
    storage.write(removing_mark(SECOND), stamp(clock.now()).encode())
    storage.remove(f"{SECOND}.whole")
    clock.sleep(KEPT_SECONDS + 1)
    assert SECOND in pruned(storage, clock)
    note_used(storage, SECOND, clock, "lab", "wiki")


def test_an_interrupted_removal_blocks_no_launch_forever(storage: Store, clock: TestClock) -> None:
    """Also if nothing is left of the folder, or if it is needed by now."""
    storage.remove(SECOND)
    for name in (FIRST, SECOND):
        storage.write(removing_mark(name), stamp(clock.now()).encode())
    unused_folders(storage, nobody, clock)
    for name in (FIRST, SECOND):
        with pytest.raises(StillRunning):
            note_used(storage, name, clock, "lab", "wiki")
    clock.sleep(REMOVAL_SECONDS + 1)
    unused_folders(storage, nobody, clock)
    for name in (FIRST, SECOND):
        note_used(storage, name, clock, "lab", "wiki")


def test_a_removal_that_fails_blocks_no_launch(storage: Store, clock: TestClock) -> None:
    clock.sleep(KEPT_SECONDS + 1)
    old, _ = unused_folders(storage, nobody, clock)

    def away() -> dict[str, str]:
        raise ClusterUnreachable("https://lab cannot be reached")

    with pytest.raises(ClusterUnreachable):
        list(removed_folders(storage, old, away, clock))
    note_used(storage, CODE, clock, "lab", "wiki")


def test_a_set_that_pods_prepare_stays_as_long_as_they_do(storage: Store, clock: TestClock) -> None:
    """And one that a user has named stays in any case."""
    there, named = "sets/p-" + "d" * 32, "sets/c4"
    note_used(storage, there, clock, "lab", "wiki")
    for name in (there, named):
        storage.write(f"{name}/recipe.json", b"{}")
    clock.sleep(2 * KEPT_SECONDS)

    def preparing() -> dict[str, str]:
        return {"data-ab12": there}

    old, young = unused_folders(storage, preparing, clock)
    assert there not in names([*old, *young])
    assert there in pruned(storage, clock)
    assert storage.names(named)
