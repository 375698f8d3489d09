"""The run's key, with which worker and coordinator prove to each other that they belong to it."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from headway.errors import BadInput, NotFound

MIN_KEY_BYTES = 32
MAX_KEY_BYTES = 1024


def new_key() -> str:
    """A key as text, for a key file or a Secret."""
    return secrets.token_hex(MIN_KEY_BYTES)


def parse_key(text: str | bytes, where: str) -> bytes:
    """The key from hexadecimal text; `where` it comes from is for messages. Never shows the key."""
    hint = "create a key: openssl rand -hex 32"
    try:
        key = bytes.fromhex(text if isinstance(text, str) else text.decode("ascii"))
    except ValueError:
        raise BadInput(f"{where}: the run's key must consist of hexadecimal digits", hint) from None
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        lengths = f"has {len(key)} bytes; it needs {MIN_KEY_BYTES} to {MAX_KEY_BYTES}"
        raise BadInput(f"{where}: the run's key {lengths}", hint)
    if len(set(key)) < 8:
        raise BadInput(f"{where}: the run's key is not random", hint)
    return key


def read_key(path: Path) -> bytes:
    """The run's key from a file. Others may read it (Kubernetes mounts a Secret so, and all in the
    pod are trusted with it), but a file that others can write is refused: they could put in a key
    that they know."""
    try:
        # Not blocking: a pipe at this path must not block us.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise BadInput(f"{path}: the run's key must be in a regular file")
            if mode & stat.S_IWOTH:
                raise BadInput(
                    f"{path}: the run's key is writable by everyone", f"chmod 600 {path}"
                )
            text = os.read(descriptor, 4 * MAX_KEY_BYTES)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file; it should hold the run's key") from None
    except OSError as error:
        raise BadInput(f"{path}: the run's key cannot be read: {error.strerror}") from None
    return parse_key(text, str(path))
