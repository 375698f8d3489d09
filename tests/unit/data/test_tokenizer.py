"""A tokenizer can be trained or loaded, keeps all text, and transformers can read it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from headway.data.tiny_stories import stories
from headway.data.tokenizer import (
    copy_tokenizer,
    find_tokenizer,
    load_tokenizer,
    role_id,
    save_tokenizer,
    special_token_ids,
    train_tokenizer,
    trained_roles,
    vocab_size,
)
from headway.errors import BadInput, NotFound

STRANGE = "Ünïcode 日本語 🎉 \t tabs,  two spaces\nand <|endoftext|> [MASK] \x00."


@pytest.fixture(scope="module")
def stream_tokenizer() -> Tokenizer:
    return train_tokenizer(stories(100_000, 1), 500, "stream")


@pytest.fixture(scope="module")
def windows_tokenizer() -> Tokenizer:
    return train_tokenizer(stories(100_000, 1), 500, "windows")


def test_training_on_the_same_text_gives_the_same_tokenizer(stream_tokenizer: Tokenizer) -> None:
    again = train_tokenizer(stories(100_000, 1), 500, "stream")
    assert again.to_str() == stream_tokenizer.to_str()
    assert vocab_size(stream_tokenizer) == 500


def test_any_text_survives_encoding(stream_tokenizer: Tokenizer) -> None:
    stream_tokenizer.encode_special_tokens = True
    ids = stream_tokenizer.encode(STRANGE, add_special_tokens=False).ids
    stream_tokenizer.encode_special_tokens = False
    assert stream_tokenizer.decode(ids, skip_special_tokens=False) == STRANGE


def test_special_tokens_come_first(
    stream_tokenizer: Tokenizer, windows_tokenizer: Tokenizer
) -> None:
    assert special_token_ids(stream_tokenizer) == [0]
    assert role_id(stream_tokenizer, {}, "eos_token") == 0
    assert role_id(stream_tokenizer, {}, "mask_token") is None
    assert special_token_ids(windows_tokenizer) == [0, 1, 2, 3, 4]
    roles = trained_roles("windows")
    assert role_id(windows_tokenizer, roles, "mask_token") == 4


def test_a_vocabulary_that_cannot_hold_all_bytes_is_refused() -> None:
    with pytest.raises(BadInput, match="at least 257"):
        train_tokenizer(iter(["text"]), 256, "stream")
    with pytest.raises(BadInput, match="at least 261"):
        train_tokenizer(iter(["text"]), 260, "windows")


def test_transformers_reads_a_trained_tokenizer(
    tmp_path: Path, stream_tokenizer: Tokenizer, windows_tokenizer: Tokenizer
) -> None:
    transformers = pytest.importorskip("transformers")
    save_tokenizer(stream_tokenizer, trained_roles("stream"), tmp_path / "stream")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "stream")
    assert theirs.eos_token == "<|endoftext|>"
    assert theirs.eos_token_id == 0
    text = "Once upon a time , there was  a fox ."
    ids = theirs(text)["input_ids"]
    assert ids == stream_tokenizer.encode(text).ids
    assert theirs.decode(ids) == text

    save_tokenizer(windows_tokenizer, trained_roles("windows"), tmp_path / "windows")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "windows")
    names = (theirs.pad_token, theirs.unk_token, theirs.cls_token, theirs.sep_token)
    assert names == ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    assert theirs.mask_token_id == 4
    ids = theirs("Once [MASK] a time")["input_ids"]
    assert (ids[0], ids[-1]) == (2, 3)
    assert 4 in ids


def test_a_loaded_tokenizer_is_copied_with_its_companions(
    tmp_path: Path, stream_tokenizer: Tokenizer
) -> None:
    save_tokenizer(stream_tokenizer, trained_roles("stream"), tmp_path / "mine")
    (tmp_path / "mine" / "special_tokens_map.json").write_text('{"eos_token": "<|endoftext|>"}')
    (tmp_path / "mine" / "unrelated.bin").write_text("x")
    found = find_tokenizer("mine", tmp_path)
    copy_tokenizer(found, tmp_path / "copy")
    names = sorted(path.name for path in (tmp_path / "copy").iterdir())
    assert names == ["special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"]
    for name in names:
        assert (tmp_path / "copy" / name).read_bytes() == (tmp_path / "mine" / name).read_bytes()


def test_a_bare_tokenizer_json_gets_a_config(tmp_path: Path, windows_tokenizer: Tokenizer) -> None:
    (tmp_path / "bare").mkdir()
    windows_tokenizer.save(str(tmp_path / "bare" / "tokenizer.json"))
    copy_tokenizer(find_tokenizer("bare", tmp_path), tmp_path / "copy")
    config = json.loads((tmp_path / "copy" / "tokenizer_config.json").read_text())
    assert config["mask_token"] == "[MASK]"
    assert "eos_token" not in config


def test_the_config_says_which_token_ends_a_text(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    tokenizer = train_tokenizer(iter(["some text"]), 300, "stream")
    tokenizer.add_special_tokens(["<the end>"])
    eos = {"content": "<the end>", "lstrip": False}
    save_tokenizer(tokenizer, {}, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    files = find_tokenizer(str(folder), Path("/elsewhere"))
    loaded = files.load()
    assert role_id(loaded, files.roles(), "eos_token") == loaded.token_to_id("<the end>")
    assert vocab_size(loaded) == loaded.token_to_id("<the end>") + 1


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"empty has no tokenizer\.json"):
        load_tokenizer("empty", tmp_path)
    with pytest.raises(NotFound, match="missing"):
        load_tokenizer("./missing", tmp_path)


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadInput, match="cannot be read as a tokenizer") as caught:
        load_tokenizer(".", tmp_path)
    assert str(tmp_path) in caught.value.message


@pytest.mark.skipif(os.environ.get("HF_HUB_OFFLINE") != "1", reason="would ask the hub")
def test_an_unreachable_hub_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="hub cannot be reached") as caught:
        load_tokenizer("nobody-at-all/no-such-model", tmp_path)
    assert "tokenizer.json" in str(caught.value.hint)
    with pytest.raises(BadInput, match="neither a folder nor a name on the hub"):
        load_tokenizer("not a name!", tmp_path)
