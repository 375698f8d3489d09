"""The document by which a launcher tells its coordinator what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import BadInput, NotFound
from headway.member.coordinator.rules import Rules
from headway.member.coordinator.settings import (
    CoordinatorSettings,
    read_settings,
    write_settings,
)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    settings = CoordinatorSettings(
        run="it",
        record="kube:headway-it-record",
        key="/headway/key/key",
        rules=Rules(max_domains=4, domain_workers=2, node_workers=2, alone_seconds=15.0),
        listen=":7460",
        http="127.0.0.1:7462",
        after=6,
    )
    write_settings(settings, tmp_path / "settings.json")
    assert read_settings(tmp_path / "settings.json") == settings


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "truncated"),
        (b'{"run": "it", "record": "here"}', "missing required field `key`"),
        (
            b'{"run": "it", "record": "here", "key": "k", "rules": {}, "after": "six"}',
            "Expected `int | null`",
        ),
    ],
)
def test_a_document_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "settings.json"
    file.write_bytes(content)
    with pytest.raises(BadInput, match=r"settings\.json: cannot be read: ") as caught:
        read_settings(file)
    assert why in str(caught.value)


def test_a_document_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"settings\.json: no such file"):
        read_settings(tmp_path / "settings.json")
