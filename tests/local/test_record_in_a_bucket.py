"""The record of generations on a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.record_cases import *  # noqa: F403 - the tests that any place has to pass
from support.s3 import credentials, s3_server

pytestmark = pytest.mark.local


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3")) as port:
        yield credentials(port)


@pytest.fixture
def place(bucket: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    return f"s3://bucket/{tmp_path.name}"
