"""Files on web servers are read whole and exactly, whatever happens on the way; against a real
server on loopback."""

from __future__ import annotations

import gzip
import io
import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.data.formats.chunks import SourceRecord
from headway.data.formats.readers import file_chunks
from headway.data.formats.web_files import WebFile, web_facts
from headway.data.prepare.sources import SourcesRefused, find_sources
from headway.errors import BadInput, HeadwayError, NotFound
from support.clock import Patient
from support.web_server import WebServer, web_server

LINES = [{"text": f"story {number} " + "words " * (number % 90)} for number in range(9000)]
CONTENT = "".join(json.dumps(line) + "\n" for line in LINES).encode()


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        server.files["/text/a.jsonl"] = CONTENT
        yield server


def texts(address: str) -> list[str]:
    return [
        record.value["text"]
        for chunk in file_chunks(address, Path())
        for record in chunk.records()
        if isinstance(record, SourceRecord)
    ]


def test_a_file_is_a_source(web: WebServer) -> None:
    address = web.address("/text/a.jsonl")
    (file,) = find_sources([address], Path()).files
    assert (file.name, file.size, bool(file.fingerprint)) == (address, len(CONTENT), True)
    assert texts(address) == [line["text"] for line in LINES]
    web.files["/text/a.jsonl"] += b" "
    (changed,) = find_sources([address], Path()).files
    assert changed.fingerprint != file.fingerprint


def test_compressed_and_parquet_with_a_query(web: WebServer, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    web.files["/b.jsonl.gz"] = gzip.compress(CONTENT)
    pq.write_table(pa.Table.from_pylist(LINES), tmp_path / "c.parquet", row_group_size=2000)
    web.files["/c.parquet"] = (tmp_path / "c.parquet").read_bytes()
    for path in ("/b.jsonl.gz", "/c.parquet?download=true"):
        assert texts(web.address(path)) == [line["text"] for line in LINES]


def test_any_seeks_read_what_is_there(web: WebServer) -> None:
    chance = random.Random(3)
    with WebFile(web.address("/text/a.jsonl")) as file:
        for _ in range(60):
            at, length = chance.randrange(len(CONTENT) + 10), chance.randrange(1, 50_000)
            assert file.seek(at) == file.tell() == at
            found = file.read(length)
            assert found == CONTENT[at : at + len(found or b"")]
            assert found or at >= len(CONTENT)
        assert file.seek(-7, io.SEEK_END) == len(CONTENT) - 7
        assert file.read(100) == CONTENT[-7:]


def test_reading_resumes_at_the_byte_that_was_reached(web: WebServer) -> None:
    clock = Patient()
    web.troubles = [None, "breaks off", "busy", "away", "breaks off"]
    with WebFile(web.address("/text/a.jsonl"), clock) as file:
        assert io.BufferedReader(file, 2**16).read() == CONTENT
    begins = [int((asked or "").partition("=")[2].partition("-")[0]) for _, asked in web.asked[1:]]
    half = begins[1]
    assert begins[:5] == [0, half, half, half, begins[4]]
    assert 0 < half < begins[4] < len(CONTENT), "nothing is read twice"
    assert clock.slept, "and a server in trouble is given time"


def test_a_server_that_stays_away_ends_it_with_its_address(web: WebServer) -> None:
    address = web.address("/text/a.jsonl")
    web.troubles = [None, *["busy"] * 1000]
    with WebFile(address, Patient()) as file, pytest.raises(OSError, match=r"HTTP 503 .* 120 s"):
        file.read(10)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(OSError, match="refused, also when asked again for 30 s"):
        web_facts(f"http://127.0.0.1:{port}/a.jsonl", Patient())


def test_a_file_that_changes_meanwhile_is_not_mixed(web: WebServer) -> None:
    address = web.address("/text/a.jsonl")
    with WebFile(address) as file:
        assert file.read(5) == CONTENT[:5]
        web.files["/text/a.jsonl"] = CONTENT[::-1]
        file.seek(len(CONTENT) - 5)
        with pytest.raises(HeadwayError, match=f"{address} has changed while it was read"):
            file.read(5)


def test_redirects_are_followed_from_the_address_that_was_given(web: WebServer) -> None:
    """Those they lead to are often signed for some minutes only."""
    web.redirects["/latest.jsonl"] = web.address("/text/a.jsonl?signed=1")
    assert len(texts(web.address("/latest.jsonl"))) == len(LINES)
    assert [path for path, _ in web.asked[:4]] == ["/latest.jsonl", "/text/a.jsonl?signed=1"] * 2
    web.redirects["/round.jsonl"] = web.address("/round.jsonl")
    with pytest.raises(SourcesRefused, match=r"/round.jsonl cannot be read: .*infinite loop"):
        find_sources([web.address("/round.jsonl")], Path())


def test_a_server_without_tags_is_known_by_the_content(web: WebServer) -> None:
    web.tags = False
    address = web.address("/text/a.jsonl")
    (file,) = find_sources([address], Path()).files
    web.files["/text/a.jsonl"] = CONTENT[::-1]
    (changed,) = find_sources([address], Path()).files
    assert file.fingerprint
    assert file.fingerprint != changed.fingerprint


def test_what_cannot_be_read_is_refused_with_its_reason(web: WebServer) -> None:
    def refusal(path: str, kind: type[HeadwayError]) -> str:
        with pytest.raises(kind) as raised:
            find_sources([path if "://" in path else web.address(path)], Path())
        return str(raised.value)

    assert "nothing found at http" in refusal("/gone.jsonl", NotFound)
    web.statuses["/text/a.jsonl"] = 403
    assert "a.jsonl cannot be read: HTTP 403" in refusal("/text/a.jsonl", SourcesRefused)
    web.statuses.clear()
    web.gives_ranges = False
    assert "gives no part of a file" in refusal("/text/a.jsonl", BadInput)
    web.gives_ranges = True
    web.files["/empty.jsonl"] = b""
    assert "is empty" in refusal("/empty.jsonl", BadInput)
    assert "web servers do not list their files" in refusal("/text/*.jsonl", BadInput)
    assert "unsupported suffix" in refusal("/text/", BadInput)
    secret = refusal("https://me:secret@host/a.jsonl", BadInput)
    assert "password or a signature" in secret
    assert "me:secret" not in secret
    assert "password or a signature" in refusal("https://b/a.jsonl?X-Amz-Signature=1", BadInput)
    assert "write it as https://b/a%20b.jsonl" in refusal("https://b/a b.jsonl", BadInput)


def test_https_does_not_become_http() -> None:
    from http.client import HTTPMessage
    from urllib.request import Request

    from headway.data.formats.web_files import _Redirects

    with pytest.raises(BadInput, match=r"http://host/b\.jsonl, which is not encrypted"):
        _Redirects().redirect_request(
            Request("https://host/a.jsonl"),
            io.BytesIO(),
            302,
            "",
            HTTPMessage(),
            "http://host/b.jsonl?k=1",
        )
