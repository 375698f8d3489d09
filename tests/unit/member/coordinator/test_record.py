"""The record of generations in a folder, and in a store that is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.record_cases import *  # noqa: F403 - the tests that any place has to pass
from support.record_cases import entry, filled, record
from support.s3 import credentials


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "record")


def test_a_folder_that_is_away_is_not_begun_anew(tmp_path: Path) -> None:
    place = tmp_path / "record"
    made = filled(str(place), 2)
    place.rename(tmp_path / "away")
    with pytest.raises(OSError, match="has disappeared"):
        made.swap(entry(2), entry(3))
    assert not place.exists()
    (tmp_path / "away").rename(place)
    assert made.swap(entry(2), entry(3))


def test_a_store_that_does_not_answer_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in credentials(1).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OSError, match="nowhere"):
        record("s3://bucket/nowhere").read()
