"""Layouts that are chosen by what fits, and changes that make a run fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.plan.accelerators import find_device
from headway.plan.fit import auto_layout, changes_that_fit, cheaper_changes, chosen_way
from headway.plan.fleet import Fleet
from headway.plan.search import Way, fits, step_seconds
from headway.plan.workload import Layout, Workload, workload_of
from headway.spec.load import load_run
from headway.spec.resolve import ALL_BLOCKS, AutoLayout, Hardware
from headway.spec.run_file import RunFile

VOCABULARY = 32000


def read(folder: Path, preset: str, *settings: str) -> RunFile:
    (folder / "run.yaml").write_text(f"version: 1\nextends: {preset}\n")
    return load_run(folder, list(settings)).run


def planned(run: RunFile) -> Workload:
    workload = workload_of(run, VOCABULARY)
    assert workload is not None
    return workload


def layout_of_way(run: RunFile, workload: Workload, there: Fleet) -> Layout:
    return chosen_way(run, workload, there).layout


def fleet(kind: str, devices: int = 8, nodes: int = 1, **more: Any) -> Fleet:
    device = find_device(kind)
    assert device is not None
    return Fleet(device, devices, nodes, **more)


@pytest.mark.parametrize(
    ("preset", "kind", "devices", "layout"),
    [
        ("gpt2-small", "A100-40GB", 8, Layout(1, recomputed_blocks=0)),
        # More than a billion parameters, and room for them.
        ("gpt2-xl", "H100", 8, Layout(1, recomputed_blocks=0)),
        ("gpt2-xl", "A10G", 8, Layout(8, recomputed_blocks=0)),
        ("llama2-7b", "H100", 8, Layout(8, recomputed_blocks=0)),
        ("llama2-7b", "A10G", 8, Layout(8, recomputed_blocks=31)),
        # Nothing fits: what needs least.
        ("llama2-70b", "A10G", 8, Layout(8, recomputed_blocks=ALL_BLOCKS)),
    ],
)
def test_auto_is_the_fastest_layout_that_fits(
    preset: str, kind: str, devices: int, layout: Layout, tmp_path: Path
) -> None:
    run = read(tmp_path, preset, "batch.micro=1", "precision=bf16", "shard=auto")
    assert layout_of_way(run, planned(run), fleet(kind, devices)) == layout


def test_auto_is_wider_than_a_node_only_if_no_node_holds_a_copy(tmp_path: Path) -> None:
    there = fleet("H100", nodes=8)
    run = read(tmp_path, "llama2-70b", "precision=bf16", "shard=auto")
    way = chosen_way(run, planned(run), there)
    assert way.layout.shard_devices > 8
    assert fits(way.workload, there, way.layout)
    assert not fits(planned(run), there, Layout(8, recomputed_blocks=ALL_BLOCKS))
    for preset in ("gpt2-xl", "llama2-7b"):
        run = read(tmp_path, preset, "precision=bf16", "shard=auto")
        assert layout_of_way(run, planned(run), there).shard_devices <= 8


def test_a_node_whose_host_has_too_little_memory_for_a_save_shares_it_with_others(
    tmp_path: Path,
) -> None:
    run = read(tmp_path, "llama2-7b", "batch.micro=1", "precision=bf16", "shard=auto")
    workload = planned(run)
    found = {
        gib: layout_of_way(run, workload, fleet("H100", nodes=4, host_bytes=gib * 2**30))
        for gib in (128, 64, 16)
    }
    assert found[128] == found[16] == Layout(8, recomputed_blocks=0), (
        "16 is too little in any layout"
    )
    assert found[64] == Layout(16, recomputed_blocks=0)


def test_auto_is_laid_out_alike_on_pods_and_in_a_plan(tmp_path: Path) -> None:
    run = read(tmp_path, "llama2-70b", "batch.micro=1", "resources.accelerators=H100:8")
    pod = Hardware(cores=8, cuda_devices=8, memory_bytes=640 * 2**30)
    workload = planned(run)
    planned_as = layout_of_way(run, workload, fleet("H100", nodes=8, host_bytes=640 * 2**30))
    assert auto_layout(run, workload, pod, 8) == AutoLayout(
        shards=True,
        checkpoint_activations=planned_as.checkpoint_activations,
        shard_nodes=planned_as.shard_devices // 8,
        micro=1,
    )


def test_what_the_run_file_says_is_kept(tmp_path: Path) -> None:
    settings = ("shard=none", "memory.checkpoint_activations=true")
    run = read(tmp_path, "gpt2-small", *settings)
    assert layout_of_way(run, planned(run), fleet("H100")) == Layout(
        1, recomputed_blocks=ALL_BLOCKS
    )
    run = read(tmp_path, "gpt2-small", "shard=2 nodes", "memory.checkpoint_activations=false")
    assert layout_of_way(run, planned(run), fleet("H100", nodes=4)) == Layout(16, 0)


@pytest.mark.parametrize(
    ("preset", "layout"), [("gpt2-small", Layout(1, 0)), ("llama2-7b", Layout(4, ALL_BLOCKS))]
)
def test_on_cpus_the_size_of_the_model_decides(preset: str, layout: Layout, tmp_path: Path) -> None:
    run = read(tmp_path, preset, "shard=auto")
    small = Fleet(None, 4, 2, host_bytes=2**20)
    assert layout_of_way(run, planned(run), small) == layout


def test_auto_is_left_to_the_size_where_the_device_is_not_known(tmp_path: Path) -> None:
    node = Hardware(cores=8, cuda_devices=8)
    for settings in (
        [],
        ["resources.accelerators=cpu:4"],
        ["resources.accelerators=RTX-9:8"],
        ["resources.accelerators=[H100:8, RTX-9:8]"],
    ):
        run = read(tmp_path, "gpt2-xl", *settings)
        assert auto_layout(run, planned(run), node, 1) is None


def test_auto_fits_each_device_that_a_run_may_get(tmp_path: Path) -> None:
    settings = ["batch.micro=1", "precision=bf16"]
    node = Hardware(cores=8, cuda_devices=8)
    run = read(tmp_path, "gpt2-xl", *settings, "resources.accelerators=H100:8")
    whole = AutoLayout(shards=False, checkpoint_activations=False, micro=1)
    assert auto_layout(run, planned(run), node, 1) == whole
    run = read(tmp_path, "gpt2-xl", *settings, "resources.accelerators=[H100:8, A10G:8]")
    assert auto_layout(run, planned(run), node, 1) == replace(whole, shards=True)


def test_devices_of_two_kinds_get_one_size_of_micro_batch(tmp_path: Path) -> None:
    node = Hardware(cores=8, cuda_devices=8)
    found = {}
    for choices in ("H100:8", "A10G:8", "[H100:8, A10G:8]"):
        run = read(tmp_path, "gpt2-xl", "precision=bf16", f"resources.accelerators={choices}")
        auto = auto_layout(run, planned(run), node, 1)
        assert auto is not None
        found[choices] = auto.micro
    assert found["[H100:8, A10G:8]"] == found["A10G:8"] < found["H100:8"]


def way_of(workload: Workload, there: Fleet, layout: Layout) -> Way:
    return Way(workload, layout, step_seconds(workload, there, layout))


def test_changes_fit_and_have_a_price(tmp_path: Path) -> None:
    run = read(tmp_path, "llama2-7b", "batch.micro=8", "precision=bf16")
    workload, devices = planned(run), fleet("A100-40GB", nodes=2)
    now = way_of(workload, devices, Layout(8, recomputed_blocks=0))
    assert not fits(workload, devices, now.layout)
    changes = changes_that_fit(run, workload, devices, now)
    assert changes
    for change in changes:
        assert fits(change.way.workload, change.fleet, change.way.layout), change.flags
        assert change.time_factor is not None
        assert change.flags.startswith(("--set", "--nodes"))
    other = changes[-1].fleet.device
    assert other is not None
    assert other.torch_gib > 39.39


def test_recomputation_alone_is_enough_and_takes_as_few_blocks_as_fit(tmp_path: Path) -> None:
    run = read(tmp_path, "llama2-7b", "batch.micro=2", "precision=bf16", "shard=node")
    workload, devices = planned(run), fleet("A100-40GB")
    now = way_of(workload, devices, Layout(8, recomputed_blocks=0))
    assert not fits(workload, devices, now.layout)
    first = changes_that_fit(run, workload, devices, now)[0]
    blocks = first.way.layout.recomputed_blocks
    assert first.flags == f"--set memory.checkpoint_activations={blocks}"
    assert first.words == f"recomputes {blocks} of 32 blocks"
    assert 16 < blocks < 32
    assert not fits(workload, devices, Layout(8, recomputed_blocks=blocks - 1))
    assert first.time_factor == pytest.approx(1.2, abs=0.1)


def test_a_larger_model_takes_more_nodes(tmp_path: Path) -> None:
    run = read(tmp_path, "llama2-70b", "batch.micro=1", "precision=bf16")
    workload, devices = planned(run), fleet("H100")
    now = way_of(workload, devices, Layout(8, recomputed_blocks=ALL_BLOCKS))
    flags = [change.flags for change in changes_that_fit(run, workload, devices, now)]
    assert "--nodes 4" in flags, "which a copy is divided over by itself"
    kept = read(tmp_path, "llama2-70b", "batch.micro=1", "precision=bf16", "shard=node")
    flags = [change.flags for change in changes_that_fit(kept, workload, devices, now)]
    assert [flag for flag in flags if flag.startswith("--nodes 4 --set shard=all")]


def test_one_machine_gets_no_more_nodes_than_it_has(tmp_path: Path) -> None:
    """On one's own machine nodes are processes that share its devices and its memory."""
    run = read(tmp_path, "llama2-7b", "batch.micro=1", "precision=bf16")
    workload, here = planned(run), fleet("A10G", 1, host_bytes=2**40, is_one_host=True)
    now = way_of(workload, here, Layout(1, recomputed_blocks=ALL_BLOCKS))
    changes = changes_that_fit(run, workload, here, now)
    assert not [change for change in changes if "--nodes" in change.flags]
    assert changes
    assert all("of another machine" in change.words for change in changes)


def test_fewer_nodes_need_less_of_one_machine(tmp_path: Path) -> None:
    run = read(tmp_path, "gpt2-small", "precision=fp32", "batch.micro=1")
    workload = planned(run)
    here = Fleet(None, 1, 8, host_bytes=20 * 2**30, is_one_host=True)
    now = way_of(workload, here, Layout(1, recomputed_blocks=ALL_BLOCKS))
    changes = changes_that_fit(run, workload, here, now)
    assert [change.flags for change in changes if "--nodes" in change.flags] == ["--nodes 4"]


def test_what_is_cheaper_is_one_line_to_paste_the_cheapest_first(tmp_path: Path) -> None:
    """A user's guess that is slow is named, and the same way with compiled blocks."""
    settings = ("memory.checkpoint_activations=true", "batch.micro=1", "precision=bf16")
    run = read(tmp_path, "llama2-7b", *settings)
    workload, there = planned(run), fleet("H100", nodes=8)
    now = chosen_way(run, workload, there)
    *_, compiled, plain = cheaper_changes(run, workload, there, now)
    assert "--set memory.compile=true" in compiled.flags
    assert "memory.checkpoint_activations=" in plain.flags
    assert "compile" not in plain.flags
    assert plain.is_new_run == ("batch.micro" in plain.flags)
    assert compiled.time_factor is not None
    assert plain.time_factor is not None
    assert compiled.time_factor < plain.time_factor < 0.97
    free = read(tmp_path, "llama2-7b", "precision=bf16")
    workload = planned(free)
    found = list(cheaper_changes(free, workload, there, chosen_way(free, workload, there)))
    assert found[-1].flags == "--set memory.compile=true", "auto is the best without"
    assert not found[-1].is_new_run
