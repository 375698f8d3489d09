"""What a real bucket makes of `headway target prune`."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.launch.storage_prune import (
    KEPT_SECONDS,
    note_used,
    removed_folders,
    unused_folders,
    used_mark,
)
from headway.launch.upload import whole_mark
from headway.state.store import Store
from support.kept_run import TestClock
from support.s3 import credentials, s3_server

pytestmark = [
    pytest.mark.local,
    pytest.mark.timeout(240),
    pytest.mark.long("needs an S3 server, for what unit tests show over a folder"),
]

OLD, NAMED, YOUNG = (f"sets/{digit * 32}" for digit in "012")


def test_only_what_is_old_and_unnamed_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(tmp_path / "s3") as port:
        for name, value in credentials(port).items():
            monkeypatch.setenv(name, value)
        storage, clock = Store("s3://bucket/team"), TestClock()
        for name in (OLD, NAMED):
            put(storage, name, clock)
        clock.sleep(KEPT_SECONDS + 1)
        put(storage, YOUNG, clock)
        launched = {"it": f'{{"train_set": "s3://bucket/team/{NAMED}"}}'}
        old, young = unused_folders(storage, lambda: launched, clock)
        assert [[one.name for one in found] for found in (old, young)] == [[OLD], [YOUNG]]
        removed = removed_folders(storage, old, lambda: launched, clock)
        assert [(one.name, is_gone) for one, is_gone in removed] == [(OLD, True)]
        again = Store("s3://bucket/team")
        left = {NAMED, YOUNG}
        assert {name.rsplit("/", 1)[0] for name in again.names("sets") if "/a" in name} == left
        assert again.size(used_mark(OLD)) is None
        assert again.size(whole_mark(OLD)) is None


def put(storage: Store, name: str, clock: TestClock) -> None:
    """As an upload does."""
    note_used(storage, name, clock, "lab", "wiki")
    for part in ("a.bin", "a.json"):
        storage.write(f"{name}/{part}", b"some bytes")
    storage.write(whole_mark(name), b"{}")
