"""The S3 server of tests: it is never taken for another server that has got its port first."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headway.state.store import Store
from support.s3 import LOOPBACK, credentials, free_port, s3_server

pytestmark = pytest.mark.local


def test_a_port_that_another_server_has_taken_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        ports = iter([other.getsockname()[1], free_port()])
        with s3_server(tmp_path, choose_port=lambda address: next(ports)) as port:
            assert port != other.getsockname()[1]
            for name, value in credentials(port).items():
                monkeypatch.setenv(name, value)
            assert Store("s3://bucket/new").create("a", b"x")
