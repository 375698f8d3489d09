"""Weights of a checkpoint in the HF format, without the model in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from headway.state.checkpoints import CheckpointManifest, FoundCheckpoint
from headway.state.store import Store
from headway.train.export_files import differs_when_saved, write_weights
from headway.train.safetensors_file import TensorRows, merged_tensors, write_tensors
from headway.train.state_tensors import tied_names

TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
LLAMA = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 96}


def gpt2() -> Any:
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=1, n_embd=16, vocab_size=96, **TOKENS))


def llama() -> Any:
    return LlamaForCausalLM(LlamaConfig(**LLAMA, num_attention_heads=2, num_key_value_heads=1))


def bert() -> Any:
    shape = {"hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 24}
    return BertForMaskedLM(BertConfig(num_hidden_layers=2, vocab_size=96, **shape))


def checkpoint(model: Any, store: Store) -> tuple[FoundCheckpoint, CheckpointManifest]:
    """Of two ranks, which held half of the rows each."""
    found = FoundCheckpoint(3, 1)
    tied = tied_names(model)
    rows: list[list[TensorRows]] = [[], []]
    for name, tensor in model.state_dict().items():
        if name not in tied:
            for rank, part in enumerate(tensor.chunk(2)):
                start = rank * tensor.chunk(2)[0].shape[0]
                rows[rank].append(TensorRows(f"model/{name}", tuple(tensor.shape), start, part))
    parts = [
        write_tensors(store, found.folder, f"rank-{rank}.safetensors", held)
        for rank, held in enumerate(rows)
    ]
    facts: dict[str, Any] = dict.fromkeys(("run", "created", "headway", "identity"), "")
    manifest = CheckpointManifest(
        **facts,
        step=3,
        generation=1,
        data_digest="",
        position=0,
        validation_loss=None,
        scalars={},
        tensors=merged_tensors(parts),
        files={part.file: part.stored for part in parts},
    )
    return found, manifest


def exported(make: Any, model: Any, folder: Path, **settings: int) -> Path:
    store = Store(folder / "run")
    found, manifest = checkpoint(model, store)
    with torch.device("meta"):
        empty = make()
    assert not differs_when_saved(empty)
    into = folder / "out"
    empty.save_pretrained(into, state_dict={})
    write_weights(empty, store, found, manifest, into, **settings)
    return into


@pytest.mark.parametrize("make", [gpt2, llama, bert])
def test_the_folder_is_what_save_pretrained_writes_byte_for_byte(make: Any, tmp_path: Path) -> None:
    model = make()
    out = exported(make, model, tmp_path)
    model.save_pretrained(tmp_path / "theirs")
    names = sorted(path.name for path in (tmp_path / "theirs").iterdir())
    assert sorted(path.name for path in out.iterdir()) == names
    for name in names:
        assert (out / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name


def test_a_large_model_is_several_files(tmp_path: Path) -> None:
    model = llama()
    out = exported(llama, model, tmp_path, max_file_bytes=5000)
    files = sorted(path.name for path in out.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    theirs = AutoModelForCausalLM.from_pretrained(out)
    for name, tensor in model.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], tensor), name


def test_a_type_whose_files_differ_from_its_model_is_left_to_transformers() -> None:
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    with torch.device("meta"):
        model = MixtralForCausalLM(MixtralConfig(**LLAMA, **heads, num_local_experts=2))
    assert differs_when_saved(model)
