"""A run completed for the machine it is on: every rule that `auto` stands for, by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headway.errors import BadInput, Exit, SpecError
from headway.spec.load import Begun, Loaded, load_run
from headway.spec.resolve import (
    ALL_BLOCKS,
    AutoLayout,
    Hardware,
    Resolved,
    begun_of,
    choose_micro,
    recomputed_blocks,
    require_complete,
    require_whole_copies,
    resolve,
    run_directory,
    run_name,
)

COMPLETE = """\
version: 1
model: {type: gpt2}
data: {train: prepared, sequence_length: 1024}
batch: {global: 512}
"""
LAPTOP = Hardware(cores=8, cuda_devices=0)
SERVER = Hardware(cores=64, cuda_devices=8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "My first_Run"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "run.yaml").write_text(COMPLETE)
    return folder


def load(*overrides: str) -> Loaded:
    return load_run(None, list(overrides))


def resolved(
    *overrides: str,
    machine: Hardware = LAPTOP,
    nodes: int = 1,
    parameters: int | None = None,
    auto: AutoLayout | None = None,
    begun: Begun | None = None,
) -> Resolved:
    return resolve(
        replace(load(*overrides), begun=begun),
        machine,
        nodes=nodes,
        parameters=parameters,
        auto=auto,
        train_set=Path("prepared"),
        validation_sets={"held-out": Path("other")},
    )


def test_nothing_is_auto_any_more(folder: Path) -> None:
    found = resolved().model_dump(
        exclude={
            "run",
            "checkpoint_every",  # of the plan: it needs rates of interruptions
            "shard_nodes",  # only if a copy of the model is on several nodes
            *("code_digest", "script_digest", "packages", "packages_for", "hub_commits"),
        }
    )
    assert "auto" not in found.values()
    assert None not in found.values()


def test_what_the_workers_read_is_what_was_resolved(folder: Path) -> None:
    """Through JSON, as it goes into the run directory, with every kind of value written down."""
    found = resolved(
        "checkpoint.every=1234567.5s",
        "schedule.warmup=12.34567%",
        "train_for=10000000000000001 tokens",
        "optimizer.betas=[0.8, 0.9]",
        "data.validation.a={sources: [x], tokenizer: {train: {vocab: 300}}}",
        "objective={type: distill, teacher: gpt2}",
        "resources={accelerators: cpu:2, nodes: 2..16}",
        "memory.checkpoint_activations=true",
    )
    text = found.model_dump_json(by_alias=True, exclude_none=True)
    assert Resolved.model_validate_json(text) == found


def test_a_stored_run_may_have_keys_that_this_version_does_not_know(folder: Path) -> None:
    found = resolved()
    content = json.loads(found.model_dump_json(by_alias=True, exclude_none=True))
    content["other"] = content["run"]["other"] = content["run"]["checkpoint"]["other"] = 1
    assert Resolved.stored(json.dumps(content)) == found
    with pytest.raises(ValidationError, match="other"):
        Resolved.model_validate_json(json.dumps(content))


@pytest.mark.parametrize(
    ("written", "micro"),
    [
        ({}, 8),  # 8192 tokens of 1024
        ({"batch.global": "5"}, 5),  # no more than there is
        ({"data.sequence_length": "128"}, 64),
        ({"data.sequence_length": "16384"}, 1),
        ({"batch.micro": "3"}, 3),
        ({"batch.micro": "64", "batch.global": "16"}, 16),
    ],
)
def test_micro(folder: Path, written: dict[str, str], micro: int) -> None:
    found = resolved(*(f"{key}={value}" for key, value in written.items()))
    assert found.micro == micro
    assert choose_micro(found.run, found.global_batch) == micro, "as `headway check` says"


def test_the_cut_into_slices_does_not_depend_on_the_machine(folder: Path) -> None:
    assert resolved().micro == resolved(machine=SERVER, nodes=1).micro
    assert resolved().micro == resolved("resources.accelerators=cpu:4", nodes=3).micro


def test_a_batch_in_tokens(folder: Path) -> None:
    assert resolved("batch.global=0.5M tokens").global_batch == 488
    assert resolved("batch.global=1 token").global_batch == 1


@pytest.mark.trap(2)
@pytest.mark.parametrize(
    ("machine", "accelerators", "nodes", "device", "ranks", "threads"),
    [
        (LAPTOP, None, 1, "cpu", 1, 8),
        (LAPTOP, None, 3, "cpu", 1, 2),
        (LAPTOP, "cpu:2", 1, "cpu", 2, 4),
        (LAPTOP, "CPU:2", 2, "cpu", 2, 2),
        (LAPTOP, "cpu:16", 1, "cpu", 16, 1),
        (SERVER, None, 1, "cuda", 8, 8),
        (SERVER, "H100:2", 1, "cuda", 2, 32),
        (SERVER, "H100:2", 4, "cuda", 2, 8),
        (SERVER, "H100:8", 1, "cuda", 8, 8),
        (SERVER, "cpu:4", 1, "cpu", 4, 16),
    ],
)
def test_devices_workers_and_threads(
    folder: Path,
    machine: Hardware,
    accelerators: str | None,
    nodes: int,
    device: str,
    ranks: int,
    threads: int,
) -> None:
    wanted = [f"resources.accelerators={accelerators}"] if accelerators else []
    found = resolved(*wanted, machine=machine, nodes=nodes)
    assert (found.device, found.ranks_per_node, found.threads) == (device, ranks, threads)
    assert found.num_workers == nodes * ranks


def test_threads_as_written(folder: Path) -> None:
    assert resolved("threads=3").threads == 3


@pytest.mark.parametrize(
    ("machine", "asked", "says", "hint", "where"),
    [
        (LAPTOP, "A100:8", "A100:8 requested, but this machine has no GPU", "cpu:1", "CPU"),
        (
            SERVER,
            "H100:16",
            "H100:16 requested, but this machine has 8 GPUs",
            "H100:8",
            "GPUs of this machine",
        ),
    ],
)
def test_accelerators_that_are_not_there_are_refused_by_name(
    folder: Path, machine: Hardware, asked: str, says: str, hint: str, where: str
) -> None:
    (folder / "run.yaml").write_text(COMPLETE + f"resources: {{accelerators: {asked}}}\n")
    with pytest.raises(SpecError) as caught:
        resolved(machine=machine)
    assert caught.value.message == f"run.yaml:5:13: resources.accelerators: {says}"
    assert caught.value.hint == f"to run it on the {where}: --set resources.accelerators={hint}"
    assert resolved(f"resources.accelerators={hint}", machine=machine).num_workers > 0


def test_more_devices_than_the_machine_has(folder: Path) -> None:
    with pytest.raises(
        BadInput, match="2 nodes with 8 devices each need 16, but this machine has 8"
    ):
        resolved(machine=SERVER, nodes=2)


def test_fp16_needs_a_gpu(folder: Path) -> None:
    (folder / "run.yaml").write_text(COMPLETE + "precision: fp16\n")
    with pytest.raises(SpecError) as caught:
        resolved()
    assert (caught.value.where, caught.value.exit_code) == ("run.yaml:5:1", Exit.BAD_INPUT)
    assert "--set precision=bf16" in str(caught.value.hint)
    assert resolved(machine=SERVER).run.precision == "fp16"
    with pytest.raises(SpecError, match="fp16 needs a GPU"):
        resolved("resources.accelerators=cpu:1", machine=SERVER)


@pytest.mark.parametrize(
    ("written", "parameters", "sharded"),
    [
        ("auto", 10**9, True),
        ("auto", 10**9 - 1, False),
        ("auto", None, False),
        ("node", None, True),
        ("none", 10**12, False),
    ],
)
def test_sharding(folder: Path, written: str, parameters: int | None, sharded: bool) -> None:
    overrides = (f"shard={written}",)
    assert resolved(*overrides, machine=SERVER, parameters=parameters).sharded is sharded
    assert not resolved(*overrides, parameters=parameters).sharded, "one rank has nobody to share"


def test_activations(folder: Path) -> None:
    assert resolved(parameters=10**9).checkpoint_activations
    assert not resolved(parameters=None).checkpoint_activations
    assert resolved("memory.checkpoint_activations=true").checkpoint_activations
    off = resolved("memory.checkpoint_activations=false", parameters=10**12)
    assert not off.checkpoint_activations
    some = resolved("memory.checkpoint_activations=3", parameters=10**12)
    assert some.checkpoint_activations == 3
    offloaded = resolved("memory.offload=activations", machine=SERVER)
    assert offloaded.checkpoint_activations, "what is offloaded are inputs of recomputed blocks"


@pytest.mark.parametrize(("written", "blocks"), [(True, ALL_BLOCKS), (False, 0), (1, 1), (3, 3)])
def test_recomputed_blocks_are_stored_as_they_are_written(
    folder: Path, written: bool | int, blocks: int
) -> None:
    """Runs of earlier versions have true or false."""
    stored = resolved(f"memory.checkpoint_activations={json.dumps(written)}").model_dump_json()
    assert f'"checkpoint_activations":{json.dumps(written)}' in stored
    assert recomputed_blocks(Resolved.stored(stored).checkpoint_activations) == blocks


@pytest.mark.parametrize(
    ("override", "in_chunks"),
    [
        ("precision=bf16", True),
        ("objective=masked", True),
        ("objective={call: mine:loss}", False),
        ("objective={type: distill, teacher: {type: gpt2}}", False),
        ("model={call: mine:build}", False),
        ("precision=fp16", False),
    ],
)
def test_the_loss_is_computed_in_chunks_where_nothing_needs_all_logits(
    folder: Path, override: str, in_chunks: bool
) -> None:
    assert resolved(override, machine=SERVER).loss_in_chunks is in_chunks


def test_a_run_keeps_what_its_first_start_decided(folder: Path) -> None:
    """On other devices, and with a version whose new runs are decided otherwise."""
    whole = AutoLayout(shards=False, checkpoint_activations=False, micro=3)
    new = resolved(machine=SERVER, auto=whole)
    assert (new.micro, new.loss_in_chunks) == (3, True)
    stored = json.loads(new.model_dump_json())
    del stored["loss_in_chunks"]  # no earlier version has it
    begun = begun_of(Resolved.stored(json.dumps(stored)))
    again = resolved(machine=SERVER, auto=replace(whole, micro=8), begun=begun)
    assert (again.micro, again.loss_in_chunks) == (3, False)
    assert resolved("batch.micro=2", begun=begun).micro == 2, "as written"


# --- names and places


def test_a_run_is_named_after_its_folder(folder: Path) -> None:
    assert run_name(load()) == "my-first-run"
    assert run_name(load("name=other")) == "other"
    assert run_directory(load()) == str(folder / "runs" / "my-first-run")
    assert resolved().run_directory == str(folder / "runs" / "my-first-run")


def test_a_name_made_of_a_folders_is_always_a_valid_one(folder: Path) -> None:
    long = folder / ("x" * 39 + "--y")
    long.mkdir()
    (long / "run.yaml").write_text(COMPLETE)
    name = run_name(load_run(long))
    assert name == "x" * 39
    assert load_run(long, [f"name={name}"]).run.name == name


def test_a_folder_no_name_can_be_made_of(folder: Path) -> None:
    nameless = folder / "___"
    nameless.mkdir()
    (nameless / "run.yaml").write_text(COMPLETE)
    with pytest.raises(BadInput, match="the run has no name"):
        run_name(load_run(nameless))


def test_the_run_directory_lies_beside_the_run_file_not_the_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    loaded = load_run(folder.name, ["name=it"])
    assert run_directory(loaded) == str(folder / "runs" / "it")
    assert run_directory(load_run(folder, ["name=it", "storage=/big/disk"])) == "/big/disk/it"
    for storage in ("s3://bucket/runs", "s3://bucket/runs/"):
        loaded = load_run(folder, ["name=it", f"storage={storage}"])
        assert run_directory(loaded) == "s3://bucket/runs/it"


# --- what a run may not leave out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "version: 1\ndata: {train: a}\nbatch: {global: 8}\n",
            "run.yaml:1:1: the run file has no model",
        ),
        (
            "# mine\n\nversion: 1\nmodel: {from: a}\ndata: {train: a}\n",
            "run.yaml:3:1: the run file has no batch",
        ),
        (
            "version: 1\nmodel: {from: a}\nbatch: {global: 8}\n",
            "run.yaml:1:1: the run file has no data.train\nhint: for example data: {train:",
        ),
        (
            "version: 1\nmodel: {from: a}\nbatch: {global: 8}\ndata:\n  sequence_length: 8\n",
            "run.yaml:4:1: the run file has no data.train",
        ),
        (
            "version: 1\nmodel: {from: a}\nbatch: {global: 8}\ndata:\n  train: {sources: [a]}\n",
            "run.yaml:5:3: data.train: sources need a tokenizer\nhint: add tokenizer: gpt2",
        ),
    ],
)
def test_what_is_missing_is_named_with_its_place(folder: Path, text: str, says: str) -> None:
    (folder / "run.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        require_complete(load())
    assert says in str(caught.value)
    with pytest.raises(SpecError):
        resolved()
    # Nor is it the fault of a flag that has nothing to do with it.
    with pytest.raises(SpecError) as caught:
        require_complete(load("seed=3"))
    assert caught.value.where.startswith("run.yaml:")


@pytest.mark.parametrize("train", ["prepared", "{sources: [a.txt], tokenizer: gpt2}"])
def test_a_validation_set_takes_the_training_sets_tokenizer(folder: Path, train: Any) -> None:
    sets = "data.validation={held-out: {sources: [b.txt]}, train: {sources: [c.txt]}}"
    require_complete(load(f"data.train={train}", sets))


def test_a_validation_set_called_train_does_not_hide_the_training_set(folder: Path) -> None:
    (folder / "run.yaml").write_text(
        "version: 1\nmodel: {type: gpt2}\nbatch: {global: 8}\ndata:\n"
        "  train: {sources: [a.txt]}\n  validation: {train: prepared}\n"
    )
    with pytest.raises(SpecError, match=r"run.yaml:5:3: data.train: sources need a tokenizer"):
        require_complete(load())


LIVE_ON_GPUS = (
    "--set elastic: elastic: live is not supported with GPUs\n"
    "hint: --set elastic=restart restarts all nodes from the newest checkpoint after a loss"
)


@pytest.mark.parametrize("asked", [["resources.accelerators=H100:1"], []])
def test_live_on_gpus_is_refused_by_name(folder: Path, asked: list[str]) -> None:
    """Whether the run file asks for them, or the machine has some."""
    with pytest.raises(SpecError) as caught:
        resolved("elastic=live", *asked, machine=SERVER)
    assert str(caught.value) == LIVE_ON_GPUS
    for how in ("elastic=restart", "elastic=auto"):
        assert not resolved(how, *asked, machine=SERVER).is_live
    assert resolved("elastic=live", "resources.accelerators=cpu:1", machine=SERVER).is_live


def test_and_when_the_run_file_is_checked_wherever_that_is(folder: Path) -> None:
    loaded = load("elastic=live", "resources.accelerators=H100:8")
    with pytest.raises(SpecError) as caught:
        require_complete(loaded)
    assert str(caught.value) == LIVE_ON_GPUS


@pytest.mark.parametrize(
    ("written", "nodes", "domain_ranks"), [("2 nodes", 4, 4), ("all", 3, 2), ("1 node", 3, 2)]
)
def test_a_copy_of_the_model_on_several_nodes(
    folder: Path, written: str, nodes: int, domain_ranks: int
) -> None:
    cpus = "resources.accelerators=cpu:2"
    found = resolved(f"shard={written}", cpus, nodes=nodes)
    assert (found.sharded, found.domain_ranks, found.node_ranks) == (True, domain_ranks, 2)
    assert found.is_live is (written == "1 node"), "any of its nodes is lost with the others"
    assert Resolved.model_validate_json(found.model_dump_json()) == found
    require_whole_copies(load(f"shard={written}"), nodes)


def test_copies_on_several_nodes_are_not_live_and_never_half(folder: Path) -> None:
    with pytest.raises(SpecError, match="shard: all is not supported with elastic: live"):
        resolved("shard=all", "elastic=live", nodes=2)
    with pytest.raises(SpecError, match="shard: 2 nodes: 3 nodes are not a multiple of 2"):
        require_whole_copies(load("shard=2 nodes"), 3)
    for wrong in ("0 nodes", "some", "2"):
        with pytest.raises(SpecError, match="such as 2 nodes"):
            load(f"shard={wrong}")


def test_a_script_has_no_sets_and_no_batch_and_always_a_coordinator(folder: Path) -> None:
    (folder / "run.yaml").write_text(
        "version: 1\ncommand: [python, train.py]\nresources: {accelerators: V100:2}\n"
    )
    one = resolved(machine=SERVER)
    assert one.is_script
    assert (one.train_set, one.validation_sets, one.global_batch) == ("", {}, 0)
    assert (one.device, one.num_workers, one.domain_ranks) == ("cuda", 2, 2)
    assert one.has_coordinator
    assert not one.is_live


def test_nodes_that_are_chosen_for_a_copy_count_as_those_that_are_written(folder: Path) -> None:
    def on_four_nodes(shard: str) -> Resolved:
        return resolve(
            load("resources.accelerators=H100:2", f"shard={shard}"),
            SERVER,
            nodes=4,
            parameters=None,
            train_set="prepared",
            validation_sets={},
            auto=AutoLayout(shards=True, checkpoint_activations=True, shard_nodes=2),
        )

    chosen, written = on_four_nodes("auto"), on_four_nodes("2 nodes")
    assert (chosen.shard_nodes, written.shard_nodes) == (2, None)
    assert chosen.run.shard.unit == "auto", "the next start decides anew"
    for one in (chosen, written):
        assert (one.sharded, one.copy_nodes, one.domain_ranks, one.mode) == (True, 2, 4, "restart")
        assert one.shard == written.run.shard
    assert Resolved.model_validate_json(chosen.model_dump_json()) == chosen
    assert on_four_nodes("node").shard_nodes is None
