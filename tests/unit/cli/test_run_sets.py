"""The sets that a run file names: those that are there as they are, the others prepared once for
each state of what they are made from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.cli.run_sets import Sets, job_of, sets_of
from headway.data.prepare.recipe import read_recipe
from headway.data.reading.mixture import MixtureSet, read_mixture
from headway.data.reading.sample_set import open_set
from headway.data.set_format import read_manifest
from headway.data.tiny_stories import stories
from headway.data.tokenizer import load_tokenizer
from headway.errors import BadInput, NotFound
from headway.spec.load import Begun, load_run
from headway.spec.quantities import Length
from headway.state.store import Store
from support.bert_files import UNMASK, write_bert_file
from support.fake_s3 import fake_s3
from support.prepared import documents_of, files_of, folder_in_memory, job_for, run, texts_of
from support.token_sets import copy_to

STORIES = list(stories(10_000, 1))
OTHERS = list(stories(5_000, 2))
TRAINED = {"train": {"vocab": 400}}
RUN_FILE = """\
version: 1
model: {type: gpt2, config: {n_layer: 1, n_head: 2, n_embd: 32, n_positions: 32}}
batch: {global: 8}
train_for: 10 steps
"""


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """Two texts and a set of each, with one tokenizer."""
    with folder_in_memory() as folder:
        (folder / "one.txt").write_text("\n\n".join(STORIES))
        (folder / "two.txt").write_text("\n\n".join(OTHERS))
        run(job_for(["one.txt"], folder / "wiki", 400))
        run(job_for(["two.txt"], folder / "code", "wiki/tokenizer"))
        yield folder


@pytest.fixture
def here(made: Path) -> Iterator[Path]:
    with folder_in_memory() as folder:
        shutil.copytree(made, folder, dirs_exist_ok=True)
        yield folder


def sets(
    here: Path,
    train: Any,
    validation: dict[str, Any] | None = None,
    begun: Begun | None = None,
    **more: Any,
) -> Sets:
    more["data"] = {"train": train, "validation": validation or {}, "sequence_length": 32}
    lines = (f"{key}: {json.dumps(value)}\n" for key, value in more.items())
    text = "".join(line for line in RUN_FILE.splitlines(True) if line.split(":")[0] not in more)
    (here / "run.yaml").write_text(text + "".join(lines))
    with ExitStack() as background:
        return sets_of(replace(load_run(here), begun=begun), background)


def prepared(here: Path) -> list[str]:
    """What `run` has prepared so far."""
    return sorted(path.name for path in here.glob("prepared/*"))


# --- sets that are there


def test_existing_sets_are_used_unchanged(here: Path) -> None:
    found = sets(here, "wiki", {"v": "code", "far": "s3://bucket/set"})
    assert found == Sets(str(here / "wiki"), {"v": str(here / "code"), "far": "s3://bucket/set"})
    assert prepared(here) == []


# --- sources


def test_sources_are_prepared_beside_the_run_file_and_only_once(here: Path) -> None:
    train = {"sources": ["one.txt"], "tokenizer": TRAINED}
    found = sets(here, train, {"v": {"sources": ["two.txt"]}})
    assert Path(found.train).parent == here / "prepared"
    assert texts_of(Path(found.train)) == STORIES
    assert texts_of(Path(found.validation["v"])) == OTHERS
    tokenizers = [
        read_manifest(Store(at)).tokenizer_digest for at in (found.train, found.validation["v"])
    ]
    assert tokenizers[0] == tokenizers[1], "a validation set takes that of the training set"
    before = {path: path.stat().st_mtime_ns for path in here.glob("prepared/**/*")}
    assert sets(here, train, {"v": {"sources": ["two.txt"]}}) == found
    assert {path: path.stat().st_mtime_ns for path in here.glob("prepared/**/*")} == before


def test_what_was_interrupted_is_resumed(here: Path) -> None:
    train = {"sources": ["one.txt"], "tokenizer": "wiki/tokenizer"}
    found = sets(here, train)
    whole = read_manifest(Store(found.train))
    (Path(found.train) / "manifest.json").unlink()
    assert sets(here, train) == found
    assert read_manifest(Store(found.train)) == whole


@pytest.mark.parametrize(
    "change",
    [
        {"deduplicate": True},
        {"template": "{text}!"},
        {"tokenizer": TRAINED},
        {"transform": "mine_for_sets:told"},
        {"sources": ["two.txt"]},
        {"sources": ["one.txt", "two.txt"]},
    ],
    ids=str,
)
def test_other_settings_make_another_set_and_leave_the_first(
    here: Path, change: dict[str, Any]
) -> None:
    (here / "src").mkdir()
    (here / "src" / "mine_for_sets.py").write_text("def told(record): return record['text']")
    train = {"sources": ["one.txt"], "tokenizer": "wiki/tokenizer"}
    code = {"code": {"path": "src"}}
    first = sets(here, train, **code).train
    before = files_of(Path(first))
    second = sets(here, train | change, **code).train
    assert first != second
    assert len(prepared(here)) == 2
    assert files_of(Path(first)) == before
    assert sets(here, train, **code).train == first, "put back, it is known again"


def test_edited_text_tokenizer_and_code_are_prepared_again(here: Path) -> None:
    (here / "src").mkdir()
    code = here / "src" / "edited_for_sets.py"
    code.write_text("def told(record): return record['text']")
    shutil.copytree(here / "wiki" / "tokenizer", here / "mine")
    train = {"sources": ["one.txt"], "tokenizer": "mine", "transform": "edited_for_sets:told"}

    def state() -> str:
        return sets(here, train, code={"path": "src"}).train

    seen = [state()]
    (here / "one.txt").touch()
    assert state() == seen[0], "the time alone makes no other set"
    (here / "one.txt").write_text("\n\n".join([*STORIES, "One more."]))
    seen.append(state())
    code.write_text("def told(record): return record['text'].upper()")
    seen.append(state())
    other = json.loads((here / "mine" / "tokenizer.json").read_text())
    other["added_tokens"][0]["lstrip"] = True
    (here / "mine" / "tokenizer.json").write_text(json.dumps(other))
    seen.append(state())
    assert len(set(seen)) == len(seen)


def test_an_edit_of_the_loss_prepares_nothing(here: Path) -> None:
    (here / "src").mkdir()
    (here / "src" / "told_for_sets.py").write_text("def told(row):\n    return row['text']\n")
    (here / "src" / "mine.py").write_text("def loss(model, batch): pass\n")
    train = {"sources": ["one.txt"], "tokenizer": TRAINED, "transform": "told_for_sets:told"}
    first = sets(here, train, code={"path": "src"}).train
    (here / "src" / "mine.py").write_text("def loss(model, batch): return 1\n")
    assert sets(here, train, code={"path": "src"}).train == first


def test_conversations_are_prepared_again_with_another_template(here: Path) -> None:
    talk = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    (here / "chats.jsonl").write_text(json.dumps({"messages": talk}))
    shutil.copytree(here / "wiki" / "tokenizer", here / "mine")
    chats = {"sources": ["chats.jsonl"], "messages": "messages"}
    with pytest.raises(BadInput, match="no chat template"):
        sets(here, chats | {"tokenizer": "mine"})
    built_in = {"from": "mine", "chat_template": "zephyr"}
    first = sets(here, chats | {"tokenizer": built_in}, {"v": chats})
    tokenizer = load_tokenizer("mine", here)
    for location in (first.train, first.validation["v"]):
        (document,) = documents_of(Path(location))
        text = "<|user|>\nWhy?<|endoftext|>\n<|assistant|>\nSo.<|endoftext|>"
        assert tokenizer.decode(document, skip_special_tokens=False) == text
    template = here / "mine" / "chat_template.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}")
    own = sets(here, chats | {"tokenizer": "mine"}, {"v": chats})
    assert texts_of(Path(own.train)) == texts_of(Path(own.validation["v"]))
    assert texts_of(Path(own.train)) == ["user: Why?assistant: So."]
    template.write_text("{% for m in messages %}{{ m.role }}- {{ m.content }}{% endfor %}")
    edited = sets(here, chats | {"tokenizer": "mine"}).train
    assert texts_of(Path(edited)) == ["user- Why?assistant- So."]


def test_a_masked_model_gets_windows_of_its_length(here: Path) -> None:
    train = {"sources": ["one.txt"], "tokenizer": TRAINED}
    masked = {"objective": "masked"}
    found = sets(here, train, {"v": {"sources": ["two.txt"]}}, **masked)
    for at in (found.train, *found.validation.values()):
        assert read_manifest(Store(at)).window_tokens == 32


# --- held out


def test_a_masked_model_gets_windows_of_what_bert_files_hold(here: Path) -> None:
    text = sets(here, {"sources": ["one.txt"], "tokenizer": TRAINED}, objective="masked").train
    tokenizer = f"{text}/tokenizer"
    loaded = load_tokenizer(tokenizer, here)
    documents = [loaded.encode(one, add_special_tokens=False).ids for one in STORIES[:20]]
    pairs = [(one[:50], one[50:100]) for one in documents]
    write_bert_file(here / "bert.hdf5", pairs, length=128, vocab=400)
    source = {"sources": ["bert.hdf5"], "tokenizer": tokenizer, "ids": "input_ids"}
    with pytest.raises(BadInput, match="tokens are \\[MASK\\]"):
        sets(here, source, objective="masked")
    found = sets(here, {**source, "unmask": UNMASK}, objective="masked")
    manifest = read_manifest(Store(found.train))
    assert (manifest.layout, manifest.window_tokens) == ("windows", 32)
    assert manifest.num_documents == len(pairs)


def test_hold_out_makes_a_validation_set_of_the_other_documents(here: Path) -> None:
    train = {"sources": ["one.txt"], "tokenizer": TRAINED, "hold_out": "30%"}
    found = sets(here, train, {"v": "code"})
    assert list(found.validation) == ["v", "held_out"]
    kept, held_out = texts_of(Path(found.train)), texts_of(Path(found.validation["held_out"]))
    assert sorted(kept + held_out) == sorted(STORIES)
    assert 0 < len(held_out) < len(kept)
    one, other = (read_manifest(Store(at)) for at in (found.train, found.validation["held_out"]))
    assert one.tokenizer_digest == other.tokenizer_digest


def test_the_held_out_side_trains_no_tokenizer_of_its_own(here: Path) -> None:
    """It would read all the text once more to come to the same one."""
    train = {"sources": ["one.txt"], "tokenizer": TRAINED, "hold_out": "30%"}
    recipe = read_recipe(Store(sets(here, train).validation["held_out"]))
    assert recipe is not None
    assert recipe.settings.train_vocab is None


# --- mixtures


def mixture(**members: Any) -> dict[str, Any]:
    return {"mixture": members}


def test_a_mixture_of_sets_and_sources(here: Path) -> None:
    train = mixture(
        wiki={"path": "wiki", "weight": 3},
        fresh={"sources": ["two.txt"], "weight": 1, "deduplicate": True},
    )
    found = sets(here, train)
    wiki, fresh = read_mixture(Store(found.train)).members
    assert (wiki.location, wiki.weight) == (str(here / "wiki"), 3)
    assert texts_of(Path(fresh.location)) == OTHERS
    assert (
        read_manifest(Store(fresh.location)).tokenizer_digest
        == read_manifest(Store(here / "wiki")).tokenizer_digest
    )
    assert sets(here, train) == found
    heavier = mixture(**(train["mixture"] | {"wiki": {"path": "wiki", "weight": 4}}))
    assert sets(here, heavier).train != found.train
    assert len(prepared(here)) == 3, "its member is not prepared again"


def test_the_tokenizer_of_a_mixture_is_made_by_its_first_member(here: Path) -> None:
    train = mixture(
        one={"sources": ["one.txt"], "epochs": 1}, two={"sources": ["two.txt"], "epochs": 2}
    )
    found = sets(here, train | {"tokenizer": TRAINED})
    one, two = (
        read_manifest(Store(member.location)) for member in read_mixture(Store(found.train)).members
    )
    assert (
        one.tokenizer_digest
        == two.tokenizer_digest
        == read_manifest(Store(here / "wiki")).tokenizer_digest
    )


def test_shares_that_sizes_decide_are_stored_and_kept_when_the_run_is_extended(here: Path) -> None:
    train = mixture(
        wiki={"path": "wiki", "max_epochs": 2}, fresh={"sources": ["two.txt"], "max_epochs": 5}
    ) | {"temperature": 1.5}
    found = sets(here, train, train_for="20 steps")
    stored = read_mixture(Store(found.train))
    with closing(MixtureSet.open(Store(found.train))) as opened:
        own, tokens = opened.num_own_samples(32), [one.num_tokens for one in opened.sets]
        counts = opened.table.counts(20 * 8)
    assert [one.weight for one in stored.members] == list(stored.slots)
    # At first by tokens ** (2 / 3), as none is read more often than it may be.
    share = tokens[0] ** (2 / 3) / (tokens[0] ** (2 / 3) + tokens[1] ** (2 / 3))
    assert stored.slots[0] / sum(stored.slots) == pytest.approx(share, abs=1e-4)
    assert counts[0] <= 2 * own[0]
    assert counts[1] <= 5 * own[1]

    begun = Begun(micro=1, loss_in_chunks=False, length=Length(20, "steps"))
    long = f"{2 * own[0] // 8 + 3 * own[1] // 8} steps"
    assert sets(here, train, begun=begun, train_for=long) == found, "--extend: the same order"
    longer = read_mixture(Store(sets(here, train, train_for=long).train))
    assert longer.slots[0] < stored.slots[0], "a new run of that length would pass the limit"
    with pytest.raises(BadInput, match="every set of the mixture reaches its max_epochs"):
        sets(here, train, train_for="9000 steps")


def test_a_mixture_whose_sets_grow_is_written_by_weights(here: Path) -> None:
    train = mixture(
        wiki={"path": "wiki", "weight": 1}, code={"path": "code", "weight": 1, "stream": True}
    )
    assert read_mixture(Store(sets(here, train).train)).version == 2


def test_members_that_do_not_fit_are_refused_with_a_hint(here: Path) -> None:
    train = mixture(
        wiki={"path": "wiki", "weight": 1},
        own={"sources": ["two.txt"], "weight": 1, "tokenizer": TRAINED},
    )
    with pytest.raises(BadInput, match="cannot be mixed: tokenizer_digest") as caught:
        sets(here, train)
    assert caught.value.hint == "prepare both with the same tokenizer"


def test_a_member_that_was_prepared_again_is_mixed_again(here: Path) -> None:
    """Its place is the same, its content is not: the mixture of before does not open any more."""
    train = mixture(wiki={"path": "wiki", "weight": 1}, code={"path": "code", "weight": 1})
    before = sets(here, train).train
    shutil.rmtree(here / "code")
    run(job_for(["one.txt"], here / "code", "wiki/tokenizer"))
    after = sets(here, train).train
    assert after != before
    open_set(Store(after)).close()


# --- whose tokenizer a validation set takes


@pytest.mark.parametrize("is_path", [False, True], ids=["members", "path"])
def test_a_validation_set_takes_the_tokenizer_of_a_mixture(here: Path, is_path: bool) -> None:
    """Also of one that an earlier run has written, named by its folder."""
    train: Any = mixture(wiki={"path": "wiki", "weight": 1}, code={"path": "code", "weight": 1})
    if is_path:
        train = sets(here, train).train
    found = sets(here, train, {"v": {"sources": ["two.txt"]}})
    assert texts_of(Path(found.validation["v"])) == OTHERS
    made = read_manifest(Store(found.validation["v"]))
    assert made.tokenizer_digest == read_manifest(Store(here / "wiki")).tokenizer_digest


def test_a_validation_set_takes_the_tokenizer_of_a_set_in_a_store(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(here / "cache"))
    with fake_s3():
        far = copy_to("s3://bucket/wiki", here / "wiki")
        found = sets(here, far, {"v": {"sources": ["two.txt"]}})
        assert found.train == far
        assert texts_of(Path(found.validation["v"])) == OTHERS
        assert sets(here, far, {"v": {"sources": ["two.txt"]}}) == found


def test_a_missing_training_set_is_named(here: Path) -> None:
    with pytest.raises(NotFound, match="nowhere is not a prepared set"):
        sets(here, "nowhere", {"v": {"sources": ["two.txt"]}})


def test_beside_a_stream_the_held_out_set_is_of_the_first_sources(here: Path) -> None:
    """About a million tokens, whatever is still to come: evaluations are over the same."""
    train = {"sources": ["*.txt"], "tokenizer": TRAINED, "hold_out": "1%"}
    (here / "run.yaml").write_text(RUN_FILE + f"data: {json.dumps({'train': train})}\n")

    def settings(stream: str, side: str) -> Any:
        loaded = load_run(here / "run.yaml", [f"data.train.stream={stream}"])
        assert loaded.run.data.train is not None
        return job_of(loaded.run.data.train, loaded, None, side).settings

    held_out = settings("{window: 64k tokens}", "held_out")
    assert held_out.first_bytes == 100 * 2**22
    assert not held_out.in_sequence
    assert settings("true", "train").first_bytes is None
    assert settings("false", "held_out").first_bytes is None, "of all of them, as before"


def test_a_smaller_window_makes_smaller_units(here: Path) -> None:
    """Or the first samples would come with the first 128 MiB of text."""
    train = {"sources": ["one.txt"], "tokenizer": TRAINED}
    text = RUN_FILE + f"data: {json.dumps({'train': train})}\n"
    (here / "run.yaml").write_text(text)

    def settings(stream: str) -> Any:
        loaded = load_run(here / "run.yaml", [f"data.train.stream={stream}"])
        assert loaded.run.data.train is not None
        return job_of(loaded.run.data.train, loaded, None).settings

    assert settings("true") == settings("false"), "sets keep their names"
    small = settings("{window: 64k tokens}")
    assert small.block_tokens * small.window_blocks == 64_000
    assert small.unit_bytes == 256_000
    large = settings("{window: 1B tokens}")
    assert large.unit_bytes == settings("true").unit_bytes
    for wrong in ("{window: 5 steps}", "{window: 5 tokens}", "maybe"):
        with pytest.raises(BadInput, match="stream"):
            settings(wrong)
