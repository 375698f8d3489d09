"""Layouts that are chosen by what fits, and changes that make a run fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.plan.accelerators import find_device
from headway.plan.fit import auto_layout, changes_that_fit, chosen_layout, fits
from headway.plan.fleet import Fleet
from headway.plan.workload import Layout, Workload, workload_of
from headway.spec.load import load_run
from headway.spec.resolve import AutoLayout, Hardware
from headway.spec.run_file import RunFile

VOCABULARY = 32000


def read(folder: Path, preset: str, *settings: str) -> RunFile:
    (folder / "run.yaml").write_text(f"version: 1\nextends: {preset}\n")
    return load_run(folder, list(settings)).run


def planned(run: RunFile) -> Workload:
    workload = workload_of(run, VOCABULARY)
    assert workload is not None
    return workload


def fleet(kind: str, devices: int = 8, nodes: int = 1, **more: Any) -> Fleet:
    device = find_device(kind)
    assert device is not None
    return Fleet(device, devices, nodes, **more)


@pytest.mark.parametrize(
    ("preset", "kind", "devices", "layout"),
    [
        ("gpt2-small", "A100-40GB", 8, Layout(1, recomputes=False)),
        # More than a billion parameters, and room for them.
        ("gpt2-xl", "H100", 8, Layout(1, recomputes=False)),
        ("gpt2-xl", "A10G", 8, Layout(8, recomputes=False)),
        ("llama2-7b", "H100", 8, Layout(8, recomputes=False)),
        ("llama2-7b", "A10G", 8, Layout(8, recomputes=True)),
        # Nothing fits: what needs least.
        ("llama2-70b", "A10G", 8, Layout(8, recomputes=True)),
    ],
)
def test_auto_is_the_fastest_layout_that_fits(
    preset: str, kind: str, devices: int, layout: Layout, tmp_path: Path
) -> None:
    run = read(tmp_path, preset, "batch.micro=1", "precision=bf16", "shard=auto")
    assert chosen_layout(run, planned(run), fleet(kind, devices)) == layout


@pytest.mark.parametrize(
    ("kind", "nodes", "devices"),
    [
        # As few nodes as hold a copy, in groups that use all of them.
        ("H100", 8, 32),
        ("H100", 6, 24),
        ("H200", 8, 16),
        ("B200", 8, 8),
        ("H100", 2, 16),
    ],
)
def test_auto_is_wider_than_a_node_only_if_no_node_holds_a_copy(
    kind: str, nodes: int, devices: int, tmp_path: Path
) -> None:
    run = read(tmp_path, "llama2-70b", "batch.micro=1", "precision=bf16", "shard=auto")
    workload, there = planned(run), fleet(kind, nodes=nodes)
    layout = chosen_layout(run, workload, there)
    assert layout.shard_devices == devices
    for smaller in (1, 8, 16):
        assert smaller >= devices or not fits(workload, there, Layout(smaller, recomputes=True))


def test_a_node_whose_host_has_too_little_memory_for_a_save_shares_it_with_others(
    tmp_path: Path,
) -> None:
    run = read(tmp_path, "llama2-7b", "batch.micro=1", "precision=bf16", "shard=auto")
    workload = planned(run)
    found = {
        gib: chosen_layout(run, workload, fleet("H100", nodes=4, host_bytes=gib * 2**30))
        for gib in (128, 64, 16)
    }
    assert found[128] == found[16] == Layout(8, recomputes=False), "16 is too little in any layout"
    assert found[64] == Layout(16, recomputes=False)


def test_auto_is_laid_out_alike_on_pods_and_in_a_plan(tmp_path: Path) -> None:
    run = read(tmp_path, "llama2-70b", "batch.micro=1", "resources.accelerators=H100:8")
    pod = Hardware(cores=8, cuda_devices=8, memory_bytes=640 * 2**30)
    workload = planned(run)
    planned_as = chosen_layout(run, workload, fleet("H100", nodes=8, host_bytes=640 * 2**30))
    assert auto_layout(run, workload, pod, 8) == AutoLayout(
        shards=True, recomputes=planned_as.recomputes, shard_nodes=planned_as.shard_devices // 8
    )


def test_what_the_run_file_says_is_kept(tmp_path: Path) -> None:
    settings = ("shard=none", "memory.checkpoint_activations=true")
    run = read(tmp_path, "gpt2-small", *settings)
    assert chosen_layout(run, planned(run), fleet("H100")) == Layout(1, recomputes=True)
    run = read(tmp_path, "gpt2-small", "shard=2 nodes", "memory.checkpoint_activations=false")
    assert chosen_layout(run, planned(run), fleet("H100", nodes=4)) == Layout(16, False)


@pytest.mark.parametrize(
    ("preset", "layout"), [("gpt2-small", Layout(1, False)), ("llama2-7b", Layout(4, True))]
)
def test_on_cpus_the_size_of_the_model_decides(preset: str, layout: Layout, tmp_path: Path) -> None:
    run = read(tmp_path, preset, "shard=auto")
    small = Fleet(None, 4, 2, host_bytes=2**20)
    assert chosen_layout(run, planned(run), small) == layout


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
    assert auto_layout(run, planned(run), node, 1) == AutoLayout(shards=False, recomputes=False)
    run = read(tmp_path, "gpt2-xl", *settings, "resources.accelerators=[H100:8, A10G:8]")
    assert auto_layout(run, planned(run), node, 1) == AutoLayout(shards=True, recomputes=False)


def test_changes_fit_and_have_a_price(tmp_path: Path) -> None:
    run = read(tmp_path, "llama2-7b", "batch.micro=8", "precision=bf16")
    workload, devices = planned(run), fleet("A100-40GB", nodes=2)
    now = Layout(8, recomputes=False)
    assert not fits(workload, devices, now)
    changes = changes_that_fit(run, workload, devices, now)
    assert changes
    for change in changes:
        assert fits(change.workload, change.fleet, change.layout), change.flags
        assert change.time_factor is not None
        assert change.flags.startswith(("--set", "--nodes"))
    smaller = [change for change in changes if change.is_new_run]
    assert [change.flags.split()[1].split("=")[0] for change in smaller] == ["batch.micro"]
    other = changes[-1].fleet.device
    assert other is not None
    assert other.torch_gib > 39.39


def test_recomputation_alone_is_enough_and_costs_about_a_third(tmp_path: Path) -> None:
    run = read(tmp_path, "llama2-7b", "batch.micro=2", "precision=bf16", "shard=node")
    workload, now = planned(run), Layout(8, recomputes=False)
    devices = fleet("A100-40GB")
    assert not fits(workload, devices, now)
    first = changes_that_fit(run, workload, devices, now)[0]
    assert first.flags == "--set memory.checkpoint_activations=true"
    assert first.layout == Layout(8, recomputes=True)
    assert first.time_factor == pytest.approx(1.3, abs=0.1)


def test_a_larger_model_takes_more_nodes(tmp_path: Path) -> None:
    run = read(tmp_path, "llama2-70b", "batch.micro=1", "precision=bf16")
    workload, devices = planned(run), fleet("H100")
    changes = changes_that_fit(run, workload, devices, Layout(8, recomputes=True))
    flags = [change.flags for change in changes]
    assert "--nodes 4" in flags, "which a copy is divided over by itself"
    kept = read(tmp_path, "llama2-70b", "batch.micro=1", "precision=bf16", "shard=node")
    changes = changes_that_fit(kept, workload, devices, Layout(8, recomputes=True))
    assert "--nodes 4 --set shard=all" in [change.flags for change in changes]


def test_one_machine_gets_no_more_nodes_than_it_has(tmp_path: Path) -> None:
    """On one's own machine nodes are processes that share its devices and its memory."""
    run = read(tmp_path, "llama2-7b", "batch.micro=1", "precision=bf16")
    workload, here = planned(run), fleet("A10G", 1, host_bytes=2**40, is_one_host=True)
    changes = changes_that_fit(run, workload, here, Layout(1, recomputes=True))
    assert not [change for change in changes if "--nodes" in change.flags]
    assert changes
    assert all("of another machine" in change.words for change in changes)


def test_fewer_nodes_need_less_of_one_machine(tmp_path: Path) -> None:
    run = read(tmp_path, "gpt2-small", "precision=fp32", "batch.micro=1")
    workload = planned(run)
    here = Fleet(None, 1, 8, host_bytes=20 * 2**30, is_one_host=True)
    changes = changes_that_fit(run, workload, here, Layout(1, recomputes=True))
    assert [change.flags for change in changes if "--nodes" in change.flags] == ["--nodes 4"]
