"""Large ranges of objects in S3, read in the calling thread.

s3fs reads in one event loop, whose thread is then the limit: eight threads that read 8 MiB each
take 3 s of processor time for 2 GB with it, and 1 s here. Whatever fails here is read again with
s3fs, which retries, and raises the errors that callers know.
"""

from __future__ import annotations

import time
from math import inf
from typing import Any

SIGNED_FOR_SECONDS, SIGNED_AGAIN_SECONDS = 900, 300
"""Signing takes half a millisecond. Credentials that expire are renewed 10 minutes before that."""
CONNECT_SECONDS, READ_SECONDS = 5.0, 30.0


class RangeReader:
    """Reads with the credentials and settings of an s3fs file system, from any thread."""

    def __init__(self, remote: Any, num_connections: int) -> None:
        import botocore.session
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.httpsession import URLLib3Session
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
        self._session = URLLib3Session(
            verify=session.get_config_variable("ca_bundle") or True,
            proxies=get_environ_proxies(self._client.meta.endpoint_url),
            timeout=(CONNECT_SECONDS, READ_SECONDS),
            max_pool_connections=num_connections,
        )
        self._signed: dict[str, tuple[str, float]] = {}
        """Addresses of objects, each with the time when it was signed."""
        self._is_refused = False

    def read(self, key: str, start: int, length: int) -> bytes | None:
        """The range of `bucket/path`, which may end early as the object does; None if it has to be
        read in another way."""
        from botocore.awsrequest import AWSRequest

        if self._is_refused:
            return None
        headers = {"Range": f"bytes={start}-{start + length - 1}"}
        try:
            request = AWSRequest("GET", self._address(key), headers, stream_output=True)
            answer = self._session.send(request.prepare())
            content = bytes(answer.raw.read())
        except Exception:  # noqa: BLE001 - of several libraries; s3fs tries next, and tells
            return None
        # Signed otherwise than the store wants it, or for another region: that does not change.
        self._is_refused = answer.status_code in (301, 307, 400, 401, 403)
        is_whole = answer.headers.get("Content-Length") == str(len(content))
        return content if answer.status_code == 206 and is_whole else None

    def _address(self, key: str) -> str:
        address, signed_at = self._signed.get(key, ("", -inf))
        if time.monotonic() - signed_at > SIGNED_AGAIN_SECONDS:
            bucket, _, path = key.partition("/")
            address = str(
                self._client.generate_presigned_url(
                    "get_object", {"Bucket": bucket, "Key": path}, SIGNED_FOR_SECONDS
                )
            )
            self._signed[key] = address, time.monotonic()
        return address
