"""The run's key, by which worker and coordinator prove to each other that they belong to it."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from headway.errors import BadInput, NotFound

MIN_KEY_BYTES = 32
MAX_KEY_BYTES = 1024


def new_key() -> str:
    """As it is written into a key file or a Secret."""
    return secrets.token_hex(MIN_KEY_BYTES)


def parse_key(text: str | bytes, where: str) -> bytes:
    """The key out of hexadecimal text; `where` it is from, for messages. Never shows the key."""
    hint = "make one with `openssl rand -hex 32`"
    try:
        key = bytes.fromhex(text if isinstance(text, str) else text.decode("ascii"))
    except ValueError:
        raise BadInput(f"{where}: the run's key must be hexadecimal digits", hint) from None
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        lengths = f"it has {len(key)} bytes, and needs {MIN_KEY_BYTES} to {MAX_KEY_BYTES}"
        raise BadInput(f"{where}: the run's key has the wrong length: {lengths}", hint)
    if len(set(key)) < 8:
        raise BadInput(f"{where}: the run's key is not random", hint)
    return key


def read_key(path: Path) -> bytes:
    """The run's key from a file. Others may be able to read it (Kubernetes mounts a Secret so, and
    whoever is in the pod is trusted with it), but whoever could write it could put in one they
    know: that is refused."""
    try:
        # Not blocking: a pipe in its place must not hold us.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise BadInput(f"{path}: the run's key must be in a file")
            if mode & stat.S_IWOTH:
                raise BadInput(f"{path}: anyone can write the run's key", f"chmod 600 {path}")
            text = os.read(descriptor, 4 * MAX_KEY_BYTES)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file, and the run's key should be in it") from None
    except OSError as error:
        raise BadInput(f"{path}: the run's key cannot be read: {error.strerror}") from None
    return parse_key(text, str(path))
