"""Files on web servers, `https://` and `http://`: one address names one file, whose bytes are read
by ranges.

A connection that breaks, or a server that is away, is asked again from the byte that was reached;
always by the address that was given, since those that servers redirect to are often signed for some
minutes only. The file has to stay the same from the first answer to the last.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage, HTTPResponse
from ssl import SSLCertVerificationError
from typing import IO, Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qsl, quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from headway.clock import Clock, SystemClock
from headway.errors import BadInput, HeadwayError

SCHEMES = ("https://", "http://")
ANSWER_SECONDS = 30.0
"""For a connection, and for each piece of an answer."""
LOOK_SECONDS = 30.0
"""How long a server that is away is asked again for a file's size."""
READ_SECONDS = 120.0
"""The same while a file is read: from the last byte that came."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 10.0
PASSED_OVER_BYTES = 2**18
"""A seek forward by no more than this reads on: another request takes longer."""
PASSING = (408, 425, 429)
"""Refusals that pass; those from 500 on do, too."""
SIGNATURES = {"x-amz-signature", "x-goog-signature", "signature", "sig", "token", "access_token"}
SAFE = "!#$%&'()*+,/:;=?@[]~"
"""Characters of an address that stay as they are."""
NO_RANGES_HINT = "download the file and name it, or put it into a bucket: s3://, gs://"

Found = TypeVar("Found")


@dataclass(frozen=True)
class WebFacts:
    size: int
    tag: str
    """ETag, or when it was last changed; empty if the server says neither."""


def is_web(name: str) -> bool:
    return name.startswith(SCHEMES)


def web_path(address: str) -> str:
    """The part of an address that ends with the name of its file."""
    return urlsplit(address).path


def require_plain(address: str) -> None:
    """Raises BadInput for an address that cannot be one of a source."""
    parts = urlsplit(address)
    if not parts.hostname:
        raise BadInput(f"{address} names no server", "https://SERVER/FOLDER/FILE.jsonl")
    if not address.isascii() or not address.isprintable() or " " in address:
        raise BadInput(f"{address!r} is no address as it is", f"write it as {quote(address, SAFE)}")
    if "*" in address:
        raise BadInput(
            f"{address} is a pattern, and web servers do not list their files",
            "name each file; patterns are for s3:// and gs:// addresses, and for files",
        )
    keys = {key.lower() for key, _ in parse_qsl(parts.query, keep_blank_values=True)}
    if "@" in parts.netloc or not keys.isdisjoint(SIGNATURES):
        shown = f"{parts.scheme}://{parts.hostname}{parts.path}"
        raise BadInput(
            f"the address of {shown} has a password or a signature in it, which would be written "
            "into the set",
            "name the bucket, s3:// or gs://, with credentials as usual; or download the file",
        )


def web_facts(address: str, clock: Clock | None = None) -> WebFacts:
    """Raises OSError if the server does not answer, or has no such file."""
    return _patiently(lambda: _facts(address), clock or SystemClock(), LOOK_SECONDS)


class WebFile(io.RawIOBase):
    """Seekable. Raises OSError if nothing comes for `READ_SECONDS`."""

    def __init__(self, address: str, clock: Clock | None = None) -> None:
        self._address = address
        self._clock = clock or SystemClock()
        self._facts = web_facts(address, self._clock)
        self._position = 0
        self._answer: HTTPResponse | None = None
        self._answer_at = 0
        """Position that the open answer has reached."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._facts.size}
        if begin[whence] + offset < 0:
            raise ValueError(f"negative seek position {begin[whence] + offset}")
        self._position = begin[whence] + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        if self._position >= self._facts.size or not len(buffer):
            return 0
        count = _patiently(lambda: self._received(buffer), self._clock, READ_SECONDS)
        self._position += count
        return count

    def _received(self, buffer: Any) -> int:
        try:
            answer = self._answer_here()
            count = answer.readinto(buffer)
        except (OSError, HTTPException):
            self._end_answer()
            raise
        if not count:
            self._end_answer()
            raise ConnectionError(
                f"the connection ended at byte {self._position} of {self._facts.size}"
            )
        self._answer_at += count
        return count

    def _answer_here(self) -> HTTPResponse:
        """One whose next byte is that of the position."""
        ahead = self._position - self._answer_at
        if self._answer is not None and 0 <= ahead <= PASSED_OVER_BYTES:
            self._answer_at += len(self._answer.read(ahead))
            if self._answer_at == self._position:
                return self._answer
        self._end_answer()
        self._answer = _asked(self._address, f"bytes={self._position}-")
        self._answer_at = self._position
        if (now := _facts_of(self._answer, self._address)) != self._facts:
            raise HeadwayError(
                f"{self._address} has changed while it was read: {self._facts} before, {now} now",
                "prepare it anew, into another place",
            )
        return self._answer

    def _end_answer(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self._answer = None

    def close(self) -> None:
        self._end_answer()
        super().close()


def _facts(address: str) -> WebFacts:
    with _asked(address, "bytes=0-0") as answer:
        return _facts_of(answer, address)


def _facts_of(answer: HTTPResponse, address: str) -> WebFacts:
    headers = answer.headers
    tag = headers.get("ETag") or headers.get("Last-Modified") or ""
    ranged = re.fullmatch(r"bytes \d+-\d+/(\d+)", headers.get("Content-Range") or "")
    if answer.status == 206 and ranged is not None:
        return WebFacts(int(ranged[1]), tag)
    if headers.get("Content-Length") == "0":
        return WebFacts(0, tag)
    raise BadInput(
        f"{address}: its server gives no part of a file, only all of it, so reading could neither "
        "be divided nor resumed",
        NO_RANGES_HINT,
    )


def _asked(address: str, byte_range: str) -> HTTPResponse:
    """The answer's headers have come. Raises FileNotFoundError and PermissionError for what will be
    the same the next time; another OSError, or HTTPException, for what may not."""
    request = Request(address, headers={"Range": byte_range, "User-Agent": "headway"})
    try:
        answer = OPENER.open(request, timeout=ANSWER_SECONDS)
    except HTTPError as error:
        with suppress(OSError):
            error.close()
        said = f"HTTP {error.code} {error.reason}"
        if error.code in (404, 410):
            raise FileNotFoundError(said) from None
        if error.code == 416 and error.headers.get("Content-Range") == "bytes */0":
            raise BadInput(f"{address} is empty", "remove it from the sources") from None
        if error.code < 500 and error.code not in PASSING:
            raise PermissionError(said) from None
        raise OSError(said) from None
    except URLError as error:
        if isinstance(error.reason, SSLCertVerificationError):
            raise PermissionError(f"{error.reason}") from None
        raise OSError(str(error.reason)) from None
    assert isinstance(answer, HTTPResponse)
    return answer


class _Redirects(HTTPRedirectHandler):
    """From https:// to https:// alone."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        if req.type == "https" and not newurl.startswith("https://"):
            raise BadInput(
                f"{req.full_url} redirects to {newurl.partition('?')[0]}, which is not encrypted",
                f"name it by http:// if that is meant; or {NO_RANGES_HINT}",
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


OPENER = build_opener(_Redirects)


def _patiently(ask: Callable[[], Found], clock: Clock, seconds: float) -> Found:
    began, pause = clock.monotonic(), FIRST_PAUSE_SECONDS
    while True:
        try:
            return ask()
        except (FileNotFoundError, PermissionError):
            raise
        except (OSError, HTTPException) as error:
            if clock.monotonic() + pause - began > seconds:
                said = str(error) or type(error).__name__
                raise OSError(f"{said}, also when asked again for {seconds:.0f} s") from error
        clock.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
