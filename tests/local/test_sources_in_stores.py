"""Sources in a bucket or by a name of the hub make the same set as the same files in a folder; and
a store that fails is never taken for bad input. With a real S3 server."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.clock import SystemClock
from headway.data.prepare.job import PrepareJob, prepare
from headway.data.prepare.manifest import read_problems
from headway.data.prepare.progress import PrepareProgress
from headway.data.prepare.recipe import RecipeSettings
from headway.data.reading.verify import verify_set
from headway.data.set_format import SetManifest
from headway.data.tiny_stories import stories
from headway.data.tokenizer import TokenizerSource
from headway.errors import BadInput, Exit
from headway.state.store import Store
from support.bad_case import write_tokenizer
from support.commands import headway
from support.contents import json_lines, parquet
from support.half_written import write_half
from support.prepared import run_part
from support.s3 import credentials, s3_server
from support.stolen_time import Stopwatch
from support.token_sets import copy_to

pytestmark = [pytest.mark.local, pytest.mark.timeout(120)]

UNIT_BYTES = 6_000
"""Small, so that a small corpus makes several shards."""
TEXTS = list(stories(60_000, seed=1))
SOON_SECONDS = 15
"""Of which starting the command takes most."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Files, and the same in s3://bucket/corpus; this process and its commands know the server."""
    folder = tmp_path_factory.mktemp("stores")
    write_tokenizer(folder / "tokenizer")
    lines = [json_lines({"text": text}) for text in TEXTS]
    third = len(lines) // 3
    corpus = {
        "rows.parquet": parquet({"text": TEXTS[:third]}, rows_in_group=20),
        "packed.jsonl.gz": gzip.compress(b"".join(lines[third : 2 * third])),
        # Sorted by folders, not by characters: a, then a-b.
        "a/x.jsonl": b"".join(lines[2 * third : -20]),
        "a-b/x.jsonl": b"".join([*lines[-20:-10], b"{\n", *lines[-10:]]),
        "notes.pdf": b"%PDF",
    }
    for name, content in corpus.items():
        (folder / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "corpus" / name).write_bytes(content)
    with s3_server(folder / "s3") as port, pytest.MonkeyPatch.context() as patch:
        for name, value in credentials(port).items():
            patch.setenv(name, value)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        copy_to("s3://bucket/corpus", folder / "corpus")
        # Its name begins as the folder's does.
        copy_to("s3://bucket/corpus-other", folder / "corpus")
        yield folder


def prepared(
    beside: Path,
    sources: list[str],
    into: Path | str,
    progress: Callable[[PrepareProgress], None] = lambda _: None,
    **settings: Any,
) -> SetManifest:
    how = {key: settings.pop(key) for key in ("strict", "anonymous") if key in settings}
    job = job_of(beside, sources, into, **settings)
    return prepare(replace(job, **how), progress, SystemClock())


def job_of(beside: Path, sources: list[str], into: Path | str, **settings: Any) -> PrepareJob:
    return PrepareJob(
        sources,
        TokenizerSource(load=str(beside / "tokenizer")),
        str(into),
        beside,
        RecipeSettings(**{"unit_bytes": UNIT_BYTES, **settings}),
        processes=1,
    )


def content_of(manifest: SetManifest) -> str:
    return manifest.shard_table_digest


def problems_in(location: Path | str) -> list[tuple[str, str, int | None]]:
    found = read_problems(Store(location))
    return [(problem.kind, problem.file, problem.line) for problem in found]


# --- sources in a bucket


@pytest.mark.parametrize(
    "sources",
    [
        ["corpus"],
        ["corpus/packed.jsonl.gz", "corpus/a-b/x.jsonl", "corpus/rows.parquet"],
        ["corpus/*.jsonl.gz", "corpus/*/x.jsonl"],
        ["corpus/**/*.jsonl"],
        ["corpus/*", "corpus/a/[a-z].jsonl"],
    ],
    ids=" ".join,
)
def test_the_same_files_make_the_same_set(made: Path, tmp_path: Path, sources: list[str]) -> None:
    here = prepared(made, sources, tmp_path / "here")
    there = prepared(made, [f"s3://bucket/{source}" for source in sources], tmp_path / "there")
    assert content_of(there) == content_of(here)
    assert here.num_shards > 1
    assert there.statistics == here.statistics
    located = problems_in(tmp_path / "here")
    assert problems_in(tmp_path / "there") == [
        (kind, f"s3://bucket/{file}", line) for kind, file, line in located
    ]
    if sources == ["corpus"]:
        assert located == [
            ("unknown suffix", "corpus/notes.pdf", None),
            ("not JSON", "corpus/a-b/x.jsonl", 11),
        ]


def test_sources_that_changed_are_noticed(made: Path, tmp_path: Path) -> None:
    store = Store("s3://bucket/changing")
    store.write("a.jsonl", json_lines({"text": "one"}))
    prepared(made, ["s3://bucket/changing"], tmp_path / "set")
    store.write("a.jsonl", json_lines({"text": "two"}))
    with pytest.raises(BadInput, match=r"s3://bucket/changing/a\.jsonl: has changed"):
        prepared(made, ["s3://bucket/changing"], tmp_path / "set")


# --- sets in a bucket


def test_a_set_in_a_bucket_is_resumed_and_verified(made: Path, tmp_path: Path) -> None:
    here = prepared(made, ["corpus"], tmp_path / "set")
    into = "s3://bucket/sets/one"
    store = Store(into)
    assert content_of(prepared(made, ["corpus"], into)) == content_of(here)
    assert problems_in(into) == problems_in(tmp_path / "set")

    records = sorted(name for name in store.names("shards") if name.endswith(".json"))
    store.remove("manifest.json")
    store.remove(records[-1])
    first = store.facts("shards")[records[0]]
    assert content_of(prepared(made, ["corpus"], into)) == content_of(here)
    assert store.facts("shards")[records[0]] == first
    assert verify_set(Store(into)) == []

    name = records[1].removesuffix(".json") + ".tokens"
    store.write(name, bytes(reversed(store.read(name))))
    (damage,) = verify_set(Store(into))
    assert damage.shard == Path(records[1]).stem


def test_a_set_in_a_bucket_prepared_in_parts(made: Path, tmp_path: Path) -> None:
    here = prepared(made, ["corpus"], tmp_path / "set")
    into = "s3://bucket/sets/in-parts"
    job = job_of(made, ["corpus"], into)
    assert [run_part(job, part, 3) for part in (0, 2)] == [None, None]
    whole = run_part(job, 1, 3)
    assert whole is not None
    assert content_of(whole) == content_of(here)
    assert problems_in(into) == problems_in(tmp_path / "set")
    assert verify_set(Store(into)) == []


# --- an upload that is given up


@pytest.mark.parametrize("size", [4, 51 * 2**20], ids=["one request", "parts"])
@pytest.mark.usefixtures("made")
def test_a_writer_that_stops_halfway_leaves_the_object_of_another(size: int) -> None:
    store = Store("s3://bucket/given-up")
    with store.writing("x") as file:
        file.write(b"whole")
    for name in ("x", "y"):
        write_half(store, name, b"x" * size)
    assert store.read("x") == b"whole"
    assert store.names("") == ["x"]
    remote: Any = store._remote
    assert not remote.call_s3("list_multipart_uploads", Bucket="bucket").get("Uploads"), "no parts"


# --- who may read, and what is not there


def make_public(prefix: str) -> None:
    """As its owner does it: a policy of the bucket, for everybody."""
    allow = {
        "Effect": "Allow",
        "Principal": "*",
        "Action": ["s3:GetObject", "s3:ListBucket"],
        "Resource": ["arn:aws:s3:::bucket", f"arn:aws:s3:::bucket/{prefix}/*"],
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
    remote: Any = Store("s3://bucket")._remote
    remote.call_s3("put_bucket_policy", Bucket="bucket", Policy=policy)


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without any, whose metadata service takes calls and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            monkeypatch.setenv(name, "/dev/null")
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", address)
        yield


def command(made: Path, into: Path, *arguments: str, expect: Exit = Exit.DONE) -> str:
    """What `headway data prepare` says, soon."""
    watch = Stopwatch()
    tokenizer = ("--tokenizer", str(made / "tokenizer"))
    words = ("data", "prepare", *arguments, *tokenizer, "--into", str(into))
    done = headway(*words, folder=made, expect=int(expect), seconds=60)
    assert watch.seconds < SOON_SECONDS
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.usefixtures("no_credentials")
def test_a_public_bucket_needs_no_credentials(made: Path, tmp_path: Path) -> None:
    here = prepared(made, ["corpus"], tmp_path / "here", unit_bytes=2**27)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in credentials(0).items():
            if name != "AWS_ENDPOINT_URL":
                patch.setenv(name, value)
        make_public("corpus")
    said = command(made, tmp_path / "set", "s3://bucket/corpus", "--anonymous")
    assert "s3://bucket/corpus/a-b/x.jsonl:11: not JSON" in said
    there = SetManifest.model_validate_json((tmp_path / "set" / "manifest.json").read_bytes())
    assert content_of(there) == content_of(here)
    said = command(made, tmp_path / "no", "s3://bucket/corpus", expect=Exit.BAD_INPUT)
    assert "s3://bucket/corpus cannot be listed: NoCredentialsError" in said
    assert "hint: check the address, the credentials and the endpoint" in said
    # What is not public stays so.
    closed = "s3://bucket/corpus-other/a/x.jsonl"
    said = command(made, tmp_path / "no", closed, "--anonymous", expect=Exit.BAD_INPUT)
    assert "cannot be listed: " in said or "cannot be read: " in said


@pytest.mark.parametrize(
    ("source", "secret", "expect", "words"),
    [
        ("s3://bucket/corpus", "wrong", Exit.BAD_INPUT, "cannot be listed: The request signature"),
        ("s3://bucket/nothing", None, Exit.NOT_FOUND, "nothing found at s3://bucket/nothing"),
        (
            "s3://bucket/corpus/*.nc",
            None,
            Exit.NOT_FOUND,
            "nothing found at s3://bucket/corpus/*.nc",
        ),
        ("s3://nowhere/corpus", None, Exit.NOT_FOUND, "nothing found at s3://nowhere/corpus"),
    ],
)
def test_a_source_that_cannot_be_read_is_reported_early(
    made: Path,
    tmp_path: Path,
    source: str,
    secret: str | None,
    expect: Exit,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if secret is not None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    said = command(made, tmp_path / "set", source, expect=expect)
    assert words in said
    assert "hint: check the address" in said


def test_a_held_out_set_in_a_store_has_the_tokenizer_of_the_other(made: Path) -> None:
    headway(
        *("data", "prepare", "corpus/rows.parquet", "--train-vocab", "500"),
        *("--hold-out", "20%", "--into", "s3://bucket/divided"),
        folder=made,
    )
    both = [Store(f"s3://bucket/{name}") for name in ("divided", "divided-held-out")]
    train, held_out = (SetManifest.model_validate_json(one.read("manifest.json")) for one in both)
    assert train.tokenizer_digest == held_out.tokenizer_digest
    assert train.num_documents + held_out.num_documents == len(TEXTS) // 3
