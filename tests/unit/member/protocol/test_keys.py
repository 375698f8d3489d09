"""A key is read from a file, and a bad one is refused without being shown."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headway.errors import BadInput, NotFound
from headway.member.protocol.keys import new_key, parse_key, read_key


def test_a_key_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "key"
    text = new_key()
    path.write_text(text + "\n")
    assert read_key(path) == bytes.fromhex(text) == parse_key(text, "HEADWAY_RUN_KEY")
    assert new_key() != text
    path.chmod(0o444)  # as Kubernetes mounts a Secret
    assert len(read_key(path)) == 32


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "has 0 bytes; it needs 32"),
        (b"ab" * 31, "has 31 bytes"),
        (b"0123456789abcdef" * 200, "has 1600 bytes"),
        (b"00" * 32, "not random"),
        (b"correct horse battery staple", "hexadecimal"),
        (bytes(range(128, 192)), "hexadecimal"),
    ],
)
def test_bad_keys_are_refused_without_being_shown(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=says) as caught:
        read_key(path)
    assert str(path) in str(caught.value)
    assert "openssl rand -hex 32" in str(caught.value)
    assert not content or content.decode("latin1") not in str(caught.value)


def test_a_key_that_anyone_can_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(new_key())
    path.chmod(stat.S_IRUSR | stat.S_IWUSR | stat.S_IWOTH)
    with pytest.raises(BadInput, match="writable by everyone"):
        read_key(path)


def test_a_key_must_be_in_a_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such file"):
        read_key(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(BadInput, match="must be in a regular file"):
            read_key(path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(BadInput, match="cannot be read"):
        read_key(tmp_path / "loop")
