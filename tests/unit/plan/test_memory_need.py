from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from headway.plan.memory_need import (
    CHECKPOINT_BYTES,
    COPY_BYTES,
    STATE_BYTES,
    least_bytes,
    least_parameters,
    less_memory,
    needed_and_present,
)
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, Resolved, resolve
from headway.spec.run_file import OptimizerConfig
from headway.train.optim import make_optimizer
from headway.train.weight_copies import WeightCopies


def resolved(folder: Path, *overrides: str, nodes: int = 1) -> Resolved:
    (folder / "run.yaml").write_text("version: 1\nname: it\nextends: llama2-7b\n")
    return resolve(
        load_run(folder, ["data.train=prepared", *overrides]),
        Hardware(cores=2, cuda_devices=0),
        nodes=nodes,
        parameters=None,
        train_set=folder,
        validation_sets={},
    )


@pytest.mark.parametrize(
    ("overrides", "nodes", "bytes_each", "copies"),
    [
        # Whole models compute with a copy of their weights in bf16; sharded ones gather blocks.
        ((), 1, 18, 1),
        ((), 3, 18, 3),
        (("precision=fp32",), 1, 16, 1),
        (("resources.accelerators=cpu:2",), 1, 18, 2),
        (("resources.accelerators=cpu:2", "shard=node"), 3, 16, 3),
    ],
)
def test_every_copy_of_the_state_is_counted(
    tmp_path: Path, overrides: tuple[str, ...], nodes: int, bytes_each: int, copies: int
) -> None:
    # 6,738,415,616 parameters, as published.
    run = resolved(tmp_path, *overrides, nodes=nodes)
    parameters = least_parameters(run.run)
    assert parameters is not None
    found = least_bytes(run, nodes, parameters)
    assert found == bytes_each * 6_738_415_616 * copies


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_the_bytes_of_a_parameter_are_those_of_real_tensors(optimizer: str) -> None:
    module = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16))
    parameters = list(module.parameters())
    updates = make_optimizer(OptimizerConfig(type=optimizer), module)
    with WeightCopies(module, "bf16", is_sharded=False).in_use():
        copies = {id(one): one for part in module.modules() for one in part._parameters.values()}
        copied = [one for one in copies.values() if one is not None]
        module(torch.zeros(1, 4, dtype=torch.int64)).logits.sum().backward()
    updates.step()
    gradients = [parameter.grad for parameter in parameters]
    averages = [one for state in updates.state.values() for one in state.values() if one.ndim]
    assert {tensor.dtype for tensor in [*parameters, *gradients, *averages]} == {torch.float32}
    number = sum(parameter.numel() for parameter in parameters)
    assert num_bytes([*parameters, *gradients, *averages]) == STATE_BYTES * number
    assert num_bytes(copied) == COPY_BYTES * number
    assert num_bytes([*parameters, *averages]) == CHECKPOINT_BYTES * number


def num_bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def test_in_words(tmp_path: Path) -> None:
    assert needed_and_present(resolved(tmp_path), 1, 23 * 2**30) == (
        "weights, gradients and optimizer state need at least 113.0 GiB; 23.0 GiB is available"
    )
    own = resolved(tmp_path, 'model={call: "mine:net"}')
    assert needed_and_present(own, 1, 2**30) == "1.0 GiB is available"


def test_nodes_elsewhere_take_no_memory_here(tmp_path: Path) -> None:
    three = resolved(tmp_path, nodes=3)
    alone = resolved(tmp_path)
    assert needed_and_present(three, 1, 2**30) == needed_and_present(alone, 1, 2**30)
    assert "state of all 3 workers need at least 338.9 GiB" in needed_and_present(three, 3, 2**30)


def test_what_would_need_less(tmp_path: Path) -> None:
    small = ("batch.micro=5", "memory.checkpoint_activations=false")
    assert less_memory(resolved(tmp_path, *small, nodes=3), 3) == (
        "to need less memory: --set memory.checkpoint_activations=true recomputes activations; "
        "--nodes 1 has fewer workers on this machine; "
        "in a new run, --set batch.micro=2 computes fewer sequences at once"
    )
    least = resolved(tmp_path, "batch.micro=1", "memory.checkpoint_activations=true")
    assert less_memory(least, 1) == (
        "use a smaller model, shorter sequences, or a machine with more memory"
    )
