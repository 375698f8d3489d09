"""Large ranges of objects in S3, received in the calling thread, in the memory where they stay.

s3fs reads in one event loop, whose thread is then the limit: eight threads that read 8 MiB each
take 3 s of processor time for 2 GB with it, and 1 s here. Whatever fails here is read again with
s3fs, which retries, and raises the errors that callers know.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from math import inf
from typing import Any
from urllib.parse import SplitResult, urlsplit

SIGNED_FOR_SECONDS, SIGNED_AGAIN_SECONDS = 900, 300
"""Signing takes half a millisecond. Credentials that expire are renewed 10 minutes before that."""
MAX_SIGNED = 4096
"""Addresses that are kept, of about a kilobyte each."""
CONNECT_SECONDS, READ_SECONDS = 5.0, 30.0


class RangeReader:
    """Reads with the credentials and settings of an s3fs file system, from any thread."""

    def __init__(self, remote: Any) -> None:
        import botocore.session
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.httpsession import where
        from botocore.utils import get_environ_proxies

        session = botocore.session.get_session()
        self._client = session.create_client(
            "s3",
            aws_access_key_id=remote.key,
            aws_secret_access_key=remote.secret,
            aws_session_token=remote.token,
            endpoint_url=remote.endpoint_url,
            config=Config(signature_version=UNSIGNED if remote.anon else "s3v4"),
        )
        certificates = session.get_config_variable("ca_bundle") or where()
        self._tls = ssl.create_default_context(cafile=certificates)
        self._signed: dict[str, tuple[str, float]] = {}
        """Addresses of objects, each with the time when it was signed."""
        self._idle: list[HTTPConnection] = []
        self._refused_buckets: set[str] = set()
        # Proxies are left to s3fs.
        self._is_refused = bool(get_environ_proxies(self._client.meta.endpoint_url))

    def read_into(self, key: str, start: int, places: list[memoryview]) -> int | None:
        """Fills the places, one after the other, with what `bucket/path` has from `start` on.
        Returns the number of bytes, fewer if the object ends before; None if it has to be read in
        another way."""
        bucket = key.partition("/")[0]
        if self._is_refused or bucket in self._refused_buckets:
            return None
        last = start + sum(map(len, places)) - 1
        try:
            url = urlsplit(self._address(key))
            connection, answer = self._send(url, {"Range": f"bytes={start}-{last}"})
            # Signed otherwise than the store wants it, or for another region: that does not change.
            if answer.status in (301, 307, 400, 401, 403):
                self._refused_buckets.add(bucket)
            count = self._receive(answer, places)
        except Exception as error:  # noqa: BLE001 - of several libraries; s3fs tries next, and tells
            self._is_refused |= isinstance(error, ssl.SSLCertVerificationError)
            self._idle.clear()
            return None
        if count is None:
            connection.close()
        elif not answer.will_close:
            self._idle.append(connection)
        return count

    def _receive(self, answer: HTTPResponse, places: list[memoryview]) -> int | None:
        if answer.status != 206:
            return None
        size = answer.length
        count = fill(answer.readinto, places)
        return count if count == size else None

    def _send(
        self, url: SplitResult, headers: dict[str, str]
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Over an open connection, or a new one: the store closes those that are idle for long."""
        while connection := self._take_idle():
            with suppress(ConnectionError):
                connection.request("GET", f"{url.path}?{url.query}", headers=headers)
                return connection, connection.getresponse()
            connection.close()
        connection = self._connected(url)
        connection.request("GET", f"{url.path}?{url.query}", headers=headers)
        return connection, connection.getresponse()

    def _take_idle(self) -> HTTPConnection | None:
        with suppress(IndexError):
            return self._idle.pop()
        return None

    def _connected(self, url: SplitResult) -> HTTPConnection:
        connection: HTTPConnection
        if url.scheme == "https":
            connection = HTTPSConnection(url.netloc, timeout=CONNECT_SECONDS, context=self._tls)
        else:
            connection = HTTPConnection(url.netloc, timeout=CONNECT_SECONDS)
        connection.connect()
        connection.sock.settimeout(READ_SECONDS)
        return connection

    def _address(self, key: str) -> str:
        address, signed_at = self._signed.get(key, ("", -inf))
        if time.monotonic() - signed_at > SIGNED_AGAIN_SECONDS:
            if len(self._signed) >= MAX_SIGNED:
                self._signed.clear()
            bucket, _, path = key.partition("/")
            address = str(
                self._client.generate_presigned_url(
                    "get_object", {"Bucket": bucket, "Key": path}, SIGNED_FOR_SECONDS
                )
            )
            self._signed[key] = address, time.monotonic()
        return address


def fill(read_into: Callable[[memoryview], int], places: Iterable[memoryview]) -> int:
    """Fills the places, one after the other, until nothing comes any more; number of bytes."""
    count = 0
    for place in places:
        rest = place
        while len(rest):
            received = read_into(rest)
            if not received:
                return count
            count, rest = count + received, rest[received:]
    return count
