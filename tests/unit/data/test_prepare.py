"""Text becomes a set that decodes to the same text, in the layout the model needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from headway.data.prepare import Progress, TokenizerSource, prepare
from headway.data.shards import Layout, SetManifest, TokenSet, verify
from headway.data.tiny import stories
from headway.data.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer, trained_roles
from headway.errors import BadInput


class TickingClock:
    """Every look at it is a second later."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def now(self) -> float:
        return self._seconds

    def monotonic(self) -> float:
        self._seconds += 1
        return self._seconds

    def sleep(self, seconds: float) -> None:
        self._seconds += seconds


def prepare_text(
    folder: Path,
    *,
    tokenizer: TokenizerSource | None = None,
    layout: Layout = "stream",
    window_tokens: int | None = None,
    into: str = "set",
    progress: list[Progress] | None = None,
) -> SetManifest:
    seen = progress if progress is not None else []
    return prepare(
        ["text.txt"],
        "text",
        tokenizer or TokenizerSource(train_vocab=400),
        folder / into,
        folder,
        layout,
        window_tokens,
        seen.append,
        TickingClock(),
    )


def write_stories(folder: Path, num_bytes: int = 30_000) -> list[str]:
    told = list(stories(num_bytes, 1))
    (folder / "text.txt").write_text("\n\n".join(told))
    return told


def whole_stream(folder: Path) -> np.ndarray:
    opened = TokenSet.open(folder)
    num_tokens = opened.manifest.num_tokens
    return opened.read(np.array([0]), num_tokens - 1).tokens[0]


def test_a_stream_holds_every_document_and_the_end_of_each(tmp_path: Path) -> None:
    told = write_stories(tmp_path)
    manifest = prepare_text(tmp_path)
    tokenizer = load_tokenizer("set/tokenizer", tmp_path)
    stream = whole_stream(tmp_path / "set")
    assert manifest.special_ids.end_of_text == 0
    ends = np.flatnonzero(stream == 0)
    assert len(ends) == len(told)
    pieces = np.split(stream, ends + 1)[:-1]
    assert [tokenizer.decode(piece[:-1].tolist()) for piece in pieces] == told
    starts = np.fromfile(tmp_path / "set" / "shards" / "00000.documents", dtype="<u8")
    assert starts.tolist() == [0, *(ends[:-1] + 1).tolist()]
    assert manifest.num_documents == len(told)
    assert manifest.num_bytes == sum(map(len, told))
    assert verify(tmp_path / "set") == []


def test_the_same_text_gives_the_same_set(tmp_path: Path) -> None:
    write_stories(tmp_path)
    one, other = prepare_text(tmp_path), prepare_text(tmp_path, into="other")
    assert one.digest == other.digest


def test_windows_begin_and_end_with_their_special_tokens(tmp_path: Path) -> None:
    told = write_stories(tmp_path)
    manifest = prepare_text(tmp_path, layout="windows", window_tokens=32)
    opened = TokenSet.open(tmp_path / "set")
    rows = opened.read(np.arange(opened.num_samples(32)), 32).tokens
    assert (rows[:, 0] == 2).all()
    assert (rows[:, -1] == 3).all()
    assert manifest.special_ids.mask == 4
    assert manifest.special_ids.special == (0, 1, 2, 3, 4)

    # The windows' insides in a row are the documents with [SEP] between them, cut at the end.
    inside = rows[:, 1:-1].reshape(-1)
    assert manifest.num_tokens_left_out < 30
    tokenizer = load_tokenizer("set/tokenizer", tmp_path)
    encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in told]
    everything = [token for ids in encoded for token in [*ids, 3]][:-1]
    assert len(inside) + manifest.num_tokens_left_out == len(everything)
    assert inside.tolist() == everything[: len(inside)]

    # Documents are found where they start, inside the windows.
    stream = rows.reshape(-1)
    starts = np.fromfile(tmp_path / "set" / "shards" / "00000.documents", dtype="<u8")
    assert [stream[start] for start in starts] == [ids[0] for ids in encoded[: len(starts)]]
    assert len(starts) == manifest.num_documents >= len(told) - 1


def test_text_cannot_forge_special_tokens(tmp_path: Path) -> None:
    text = "He wrote <|endoftext|> and went on."
    (tmp_path / "text.txt").write_text(text)
    prepare_text(tmp_path)
    stream = whole_stream(tmp_path / "set")
    assert (stream == 0).sum() == 1
    assert load_tokenizer("set/tokenizer", tmp_path).decode(stream[:-1].tolist()) == text


def test_a_tokenizer_that_cuts_and_pads_loses_no_text(tmp_path: Path) -> None:
    told = write_stories(tmp_path)
    tokenizer = train_tokenizer(iter(told), 400, "stream")
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=5)
    save_tokenizer(tokenizer, trained_roles("stream"), tmp_path / "mine")
    cutting = prepare_text(tmp_path, tokenizer=TokenizerSource(load="mine"))
    whole = prepare_text(tmp_path, into="whole")
    assert cutting.shards[0].digests["tokens"] == whole.shards[0].digests["tokens"]


def test_a_validation_set_takes_the_tokenizer_of_the_training_set(tmp_path: Path) -> None:
    write_stories(tmp_path)
    train = prepare_text(tmp_path)
    validation = prepare_text(
        tmp_path, tokenizer=TokenizerSource(load="set/tokenizer"), into="validation"
    )
    assert validation.tokenizer_digest == train.tokenizer_digest
    assert validation.special_ids == train.special_ids


@pytest.mark.parametrize(("layout", "lacks"), [("stream", "eos_token"), ("windows", "cls_token")])
def test_a_tokenizer_without_the_tokens_needed_is_refused(
    tmp_path: Path, layout: Layout, lacks: str
) -> None:
    told = write_stories(tmp_path)
    other: Layout = "windows" if layout == "stream" else "stream"
    tokenizer: Tokenizer = train_tokenizer(iter(told), 400, other)
    save_tokenizer(tokenizer, trained_roles(other), tmp_path / "mine")
    with pytest.raises(BadInput, match=f"mine has no {lacks}"):
        prepare_text(
            tmp_path, tokenizer=TokenizerSource(load="mine"), layout=layout, window_tokens=16
        )


@pytest.mark.parametrize("content", ["", " \n\n \n"])
def test_empty_text_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "text.txt").write_text(content)
    with pytest.raises(BadInput, match="no text in"):
        prepare_text(tmp_path)
    assert not (tmp_path / "set" / "manifest.json").exists()


def test_text_shorter_than_one_window_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abc")
    with pytest.raises(BadInput, match="do not fill one window of 64"):
        prepare_text(tmp_path, layout="windows", window_tokens=64)
    with pytest.raises(BadInput, match="windows of 2 tokens hold no text"):
        prepare_text(tmp_path, layout="windows", window_tokens=2)


def test_a_finished_set_stays_as_it_is(tmp_path: Path) -> None:
    write_stories(tmp_path)
    prepare_text(tmp_path)
    with pytest.raises(BadInput, match="already holds"):
        prepare_text(tmp_path, tokenizer=TokenizerSource(train_vocab=300))
    assert verify(tmp_path / "set") == []


def test_a_broken_line_leaves_no_set_and_the_next_attempt_works(tmp_path: Path) -> None:
    good = write_stories(tmp_path)
    tokenizer = train_tokenizer(iter(good), 400, "stream")
    save_tokenizer(tokenizer, trained_roles("stream"), tmp_path / "mine")
    path = tmp_path / "text.txt"
    content = path.read_bytes()
    path.write_bytes(content + b"\n\xff\n")
    with pytest.raises(BadInput, match="not UTF-8"):
        prepare_text(tmp_path, tokenizer=TokenizerSource(load="mine"))
    assert not (tmp_path / "set" / "manifest.json").exists()
    path.write_bytes(content)
    prepare_text(tmp_path, tokenizer=TokenizerSource(load="mine"))
    assert verify(tmp_path / "set") == []


def test_progress_ends_with_what_the_set_holds(tmp_path: Path) -> None:
    write_stories(tmp_path)
    seen: list[Progress] = []
    manifest = prepare_text(tmp_path, progress=seen)
    assert [progress.stage for progress in seen[:1]] == ["tokenizer"]
    last = seen[-1]
    assert last.stage == "tokens"
    assert (last.documents, last.bytes) == (manifest.num_documents, manifest.num_bytes)
    assert last.tokens == manifest.num_tokens
    assert last.seconds > 0


def test_preparing_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, headway.data.prepare, headway.data.masking\n"
        "loaded = {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
