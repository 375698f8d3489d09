"""A damaged shard is made again from its sources, byte for byte; where that cannot be, nothing is
touched and the cause is named."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headway.data.formats.text_and_jsonl import PIECE_BYTES
from headway.data.prepare.job import PrepareJob
from headway.data.prepare.recipe import read_recipe
from headway.data.prepare.repair import repair_shards
from headway.data.reading.verify import verify_set
from headway.data.set_format import read_manifest
from headway.data.tiny_stories import stories
from headway.errors import BadInput, NotFound
from headway.state.store import Store
from headway.state.transform_code import transform_digest
from headway.state.user_code import python_digest, python_digest_1
from support.fake_s3 import fake_s3
from support.prepared import files_of, folder_in_memory, job_for, run, run_part, write_lines
from support.token_sets import copy_to, write_set

STORIES = list(stories(16_000, 1))
TALKS = [
    {"m": [{"role": "user", "content": f"What is {n}?"}, {"role": "assistant", "content": one}]}
    for n, one in enumerate(STORIES)
]
TRANSFORM = "def told(record): return record['text'].upper()"
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "windows": {"window_tokens": 32},
    "conversations": {"messages": "m"},
    "deduplicated": {"deduplicate": True},
    "held out": {"hold_out": 0.9, "side": "held_out"},
    "transformed": {"transform": "mine_for_repair:told"},
    "joined": {},
}


def _records(texts: list[str]) -> list[Any]:
    return [{"text": one, **TALKS[n % len(TALKS)]} for n, one in enumerate(texts)]


@pytest.fixture(scope="module")
def sources() -> Iterator[Path]:
    """Lines that repeat and some bad ones, in pieces; a file that makes several shards."""
    with folder_in_memory() as folder:
        (folder / "code").mkdir()
        (folder / "code" / "mine_for_repair.py").write_text(TRANSFORM)
        texts = [*STORIES, *STORIES[::3]]
        lines: list[object] = _records(texts)
        lines[7] = "{not JSON"
        write_lines(folder / "a.jsonl", lines)
        batches = [
            pa.RecordBatch.from_pylist(_records([*stories(9_000, seed), *STORIES[:9]]))
            for seed in (2, 3)
        ]
        with pa.ipc.new_file(folder / "b.arrow", batches[0].schema) as file:
            for batch in batches:
                file.write_batch(batch)
        yield folder


def job_of(
    kind: str, sources: Path, tokenizer: Path, masked_tokenizer: Path, into: Path
) -> PrepareJob:
    return job_for(
        ["a.jsonl", "b.arrow"],
        into,
        masked_tokenizer if kind == "windows" else tokenizer,
        beside=sources,
        code=sources / "code" if kind == "transformed" else None,
        unit_bytes=4_000,
        **KINDS[kind],
    )


def prepared(job: PrepareJob, kind: str) -> None:
    if kind != "joined":
        run(job)
        return
    for number in range(3):
        run_part(job, number, 3)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def mend(location: str | Path) -> list[str]:
    """As the command does it: what is damaged, by name."""
    done: list[str] = []
    damaged = dict.fromkeys(one.shard for one in verify_set(Store(location)) if one.shard)
    repair_shards(Store(location), list(damaged), done.append)
    return done


# --- what can be made again


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_of_every_shard_comes_back(
    kind: str, sources: Path, tokenizer: Path, masked_tokenizer: Path, folder: Path
) -> None:
    into = folder / "set"
    prepared(job_of(kind, sources, tokenizer, masked_tokenizer, into), kind)
    whole = files_of(into)
    names = [shard.name for shard in read_manifest(Store(into)).shards]
    assert any("-1" in name for name in names), "one that is not the first of its unit"
    for harm in (flip, cut, Path.unlink):
        files = [path for path in (into / "shards").iterdir() if path.suffix != ".json"]
        for path in files:
            if path.stat().st_size:
                harm(path)
        assert mend(into) == names
        assert files_of(into) == whole, "and nothing is left beside them"


def test_a_document_that_continues_in_the_next_shard(folder: Path, word_tokenizer: Path) -> None:
    line = "zero one two three four five six seven eight nine " * (PIECE_BYTES // 45)
    packed = gzip.compress(f"zero\n\n{line.strip()}\n\none".encode(), 1)
    (folder / "text.txt.gz").write_bytes(packed)
    made = run(job_for(["text.txt.gz"], folder / "set", word_tokenizer, unit_bytes=2**20))
    assert [shard.num_documents for shard in made.shards] == [2, 1]
    whole = files_of(folder / "set")
    for shard in made.shards:
        (folder / "set" / "shards" / f"{shard.name}.tokens").unlink()
    mend(folder / "set")
    assert files_of(folder / "set") == whole


@pytest.fixture
def plain(sources: Path, tokenizer: Path, folder: Path) -> Path:
    """A set with sources of its own, to be changed."""
    shutil.copytree(sources, folder, dirs_exist_ok=True)
    run(job_of("plain", folder, tokenizer, tokenizer, folder / "set"))
    return folder / "set"


def test_nothing_damaged_nothing_done(plain: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in plain.rglob("*")}
    assert mend(plain) == []
    assert {path: path.stat().st_mtime_ns for path in plain.rglob("*")} == before


def test_only_the_damaged_ones_are_touched(plain: Path) -> None:
    whole = files_of(plain)
    flip(plain / "shards" / "00001.tokens")
    others = [path for path in (plain / "shards").iterdir() if "00001" not in path.name]
    before = {path: path.stat().st_mtime_ns for path in others}
    assert mend(plain) == ["00001"]
    assert files_of(plain) == whole
    assert {path: path.stat().st_mtime_ns for path in others} == before


def test_readers_of_the_damaged_file_are_not_disturbed(plain: Path) -> None:
    path = plain / "shards" / "00001.tokens"
    flip(path)
    damaged = path.read_bytes()
    with path.open("rb") as reading:
        assert reading.read(10) == damaged[:10]
        mend(plain)
        assert reading.read() == damaged[10:]


def test_a_joined_set_needs_its_sources_and_not_its_parts(
    sources: Path, tokenizer: Path, folder: Path
) -> None:
    job = job_of("joined", sources, tokenizer, tokenizer, folder / "set")
    prepared(job, "joined")
    for part in range(3):
        shutil.rmtree(folder / f"set-{part}")
    flip(folder / "set" / "shards" / "00002.tokens")
    assert mend(folder / "set") == ["00002"]


def test_a_set_in_a_store(plain: Path) -> None:
    whole = files_of(plain)
    with fake_s3() as s3:
        far = copy_to("s3://bucket/set", plain)
        s3().pipe_file(f"{far}/shards/00001.tokens", b"anything")
        s3().rm_file(f"{far}/shards/00002.documents")
        assert mend(far) == ["00001", "00002"]
        found = {name.removeprefix("/bucket/set/"): s3().cat_file(name) for name in s3.store}
    assert found == whole


def test_restored_sources_are_accepted(plain: Path) -> None:
    """Another time, another owner, the same content."""
    content = (plain.parent / "a.jsonl").read_bytes()
    (plain.parent / "a.jsonl").unlink()
    flip(plain / "shards" / "00001.tokens")
    with pytest.raises(NotFound, match=r"a\.jsonl does not exist"):
        mend(plain)
    (plain.parent / "a.jsonl").write_bytes(content)
    assert mend(plain) == ["00001"]


# --- what cannot


def refused(into: Path) -> str:
    before = files_of(into)
    with pytest.raises(BadInput) as caught:
        mend(into)
    assert caught.value.hint
    assert files_of(into) == before
    return caught.value.message


@pytest.mark.parametrize("name", ["a.jsonl", "b.arrow"])
def test_a_source_that_has_changed_is_named(plain: Path, name: str) -> None:
    """Whether or not the damaged shard was made from it: both are of one recipe."""
    flip(plain / "shards" / "00001.tokens")
    flip(plain.parent / name)
    said = refused(plain)
    assert said == f"the sources have changed:\n  {name}: has changed"


def test_code_that_has_changed_is_named(sources: Path, tokenizer: Path, folder: Path) -> None:
    shutil.copytree(sources, folder, dirs_exist_ok=True)
    into = folder / "set"
    run(job_of("transformed", folder, tokenizer, tokenizer, into))
    flip(into / "shards" / "00001.tokens")
    code = folder / "code" / "mine_for_repair.py"
    code.write_text(TRANSFORM.replace("upper", "lower"))
    assert refused(into).endswith(f"{folder / 'code'}: the transform's code has changed")
    shutil.rmtree(folder / "code")
    assert refused(into).endswith(f"{folder / 'code'}: the transform's code has changed")


def test_a_set_whose_recipe_has_an_old_digest_is_recognised(
    sources: Path, tokenizer: Path, folder: Path
) -> None:
    job = job_of("transformed", sources, tokenizer, tokenizer, folder / "set")
    made = run(job)
    recipe = read_recipe(Store(folder / "set"))
    assert recipe is not None
    code, settings = sources / "code", recipe.settings
    assert settings.code_digest == transform_digest(code, settings.transform or "")
    for digest in (python_digest(code), python_digest_1(code)):
        before = settings.model_copy(update={"code_digest": digest})
        recipe.model_copy(update={"settings": before}).save(Store(folder / "set"))
        assert run(job) == made, "and not refused as a different preparation"


def another_tokenizer(into: Path) -> None:
    """With its own digest, as a careless hand would leave it."""
    path = into / "tokenizer" / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["merges"] = content["model"]["merges"][:-40]
    path.write_text(json.dumps(content))


def no_record(into: Path) -> None:
    (into / "shards" / "00001.json").unlink()


def half_a_record(into: Path) -> None:
    cut(into / "shards" / "00001.json")


def no_recipe(into: Path) -> None:
    (into / "recipe.json").unlink()


def another_recipe(into: Path) -> None:
    recipe = json.loads((into / "recipe.json").read_text())
    recipe["settings"]["column"] = "body"
    (into / "recipe.json").write_text(json.dumps(recipe))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (another_tokenizer, "the rebuilt shard 00001 differs from the recorded one"),
        (no_record, "shard 00001 has no record"),
        (half_a_record, "shard 00001 has no record"),
        (no_recipe, "has no recipe to rebuild shards from"),
        (another_recipe, "has no recipe to rebuild shards from"),
    ],
)
def test_what_else_cannot_be_made_again(
    plain: Path, change: Callable[[Path], None], said: str
) -> None:
    flip(plain / "shards" / "00001.tokens")
    change(plain)
    assert said in refused(plain)


def test_a_set_of_version_1_kept_no_recipe(folder: Path) -> None:
    write_set(folder / "old", [([1, 2, 3], None)], version=1)
    flip(folder / "old" / "shards" / "00000.tokens")
    assert "has no recipe to rebuild shards from" in refused(folder / "old")
