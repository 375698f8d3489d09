"""What `headway run` refuses because of its plan, and the line that `headway check` prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli.check import examined
from headway.cli.plan.gate import plan_for, require_planned
from headway.cli.target_render import resolved_for
from headway.errors import CheckFailed
from headway.spec.load import load_run, load_target
from support.in_process import Headway

RUN = """\
version: 1
name: it
extends: llama2-13b
data: {train: "s3://data/wiki"}
"""
TARGETS = """\
small: {resources: {accelerators: 'L4:1'}, pod: {resources: {cpu: 8, memory: 64Gi}}}
large: {resources: {accelerators: 'H100:8'}, pod: {resources: {cpu: 8, memory: 640Gi}},
        prices: {H100: 4}, storage: 's3://runs/all',
        image: 'it@sha256:0000000000000000000000000000000000000000000000000000000000000000'}
either: {resources: {accelerators: ['H100:8', 'L4:8']}, pod: {resources: {cpu: 8, memory: 640Gi}}}
described: {machine: hgx-h100, pod: {resources: {cpu: 8, memory: 8Gi}}}
"""
HUGE = "batch: {global: 1000000, micro: 1000000}\n"


@pytest.fixture
def here(folder: Path) -> Path:
    (folder / "run.yaml").write_text(RUN)
    (folder / "targets.yaml").write_text(TARGETS)
    return folder


def test_what_does_not_fit_is_refused_unless_told_otherwise(here: Path) -> None:
    with pytest.raises(CheckFailed) as error:
        require_planned(load_run(), "small", None, anyway=False)
    assert "it does not fit on L4:1: " in error.value.message
    assert "--anyway" in str(error.value.hint)
    require_planned(load_run(), "small", None, anyway=True)
    require_planned(load_run(), "large", None, anyway=False)


def test_a_choice_that_does_not_fit_is_a_warning(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_planned(load_run(), "either", None, anyway=False)
    assert "warning: it does not fit on L4:8" in capsys.readouterr().err


@pytest.mark.parametrize("budget", ["budget.hours=3", "budget.usd=100"])
def test_a_run_over_its_budget_is_refused(here: Path, budget: str) -> None:
    with pytest.raises(CheckFailed) as error:
        require_planned(load_run(None, [budget]), "large", None, anyway=False)
    assert "it is over its budget on H100:8: " in error.value.message
    assert budget.partition("=")[0] in error.value.message


def test_a_run_within_its_budget_is_not(here: Path) -> None:
    short = ["train_for=100 steps", "budget.hours=30", "budget.usd=2000"]
    require_planned(load_run(None, short), "large", None, anyway=False)


def test_what_cannot_be_planned_has_the_benefit_of_the_doubt(here: Path) -> None:
    for unknown in (
        "resources.accelerators=H100-NVL:8",
        "model={from: org/unknown}",
        "model={call: 'mine:build'}",
    ):
        require_planned(load_run(None, [unknown]), "large", None, anyway=False)
    # It would get pods without accelerators, not those of the machine.
    assert plan_for(load_run(), "described", None) is None


def test_a_cpu_without_a_measurement_refuses_no_length(here: Path) -> None:
    long = ["precision=fp32", "train_for=1000T tokens", "budget.hours=1"]
    small = "model={type: gpt2, config: {n_layer: 1, vocab_size: 64}}"
    require_planned(load_run(None, [*long, small]), None, None, anyway=False)


def test_run_refuses_before_anything_is_prepared(folder: Path, headway: Headway) -> None:
    headway("init", "tiny", ".")
    with (folder / "run.yaml").open("a") as file:
        file.write(HUGE)
    said = headway("run")
    assert said.exit_code == 4, said.err
    assert " does not fit on cpu:1: " in said.err
    assert "--anyway" in said.err
    assert not (folder / "runs").exists()


def test_check_prints_a_line_of_the_plan(here: Path, headway: Headway) -> None:
    headway("init", "tiny", "t")
    (line,) = [line for line in headway("check", "t").out.splitlines() if line.startswith("plan ")]
    assert line.startswith("plan              fits on cpu:1: ")
    assert "MiB" in line


def test_the_plan_of_a_run_that_exists_is_compared_with_it(folder: Path, headway: Headway) -> None:
    from headway.clock import SystemClock
    from headway.spec.resolve import Hardware, resolve
    from headway.state.run_directory import RunDirectory

    headway("init", "tiny", "t")
    loaded = load_run("t")
    machine = Hardware(cores=2, cuda_devices=0)
    resolved = resolve(loaded, machine, nodes=1, parameters=None, train_set="", validation_sets={})
    RunDirectory.create(folder / "runs" / "begun", SystemClock()).write_spec(resolved)
    said = headway("plan", "begun")
    assert said.exit_code == 0, said.err
    assert said.out.startswith("begun: 0 steps\n")
    assert "started without a plan" in said.out
    assert json.loads(headway("plan", "begun", "--json").out)["place"] is None


def test_a_run_that_has_begun_is_not_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its budget may have been raised, and it trains where a plan says that it does not fit."""
    budget = load_run(None, ["budget.usd=100"])
    require_planned(budget, "large", None, anyway=False, has_begun=lambda: True)
    assert "warning: it is over its budget on H100:8" in capsys.readouterr().err


def test_a_budget_is_judged_by_the_targets_own_prices_only(here: Path) -> None:
    free = TARGETS.replace("prices: {H100: 4}", "prices: {A100: 4}")
    (here / "targets.yaml").write_text(free)
    require_planned(load_run(None, ["budget.usd=1"]), "large", None, anyway=False)


def test_on_ones_own_machine_a_budget_refuses_nothing(here: Path) -> None:
    limits = ["resources.accelerators=H100:8", "budget.usd=1", "budget.hours=1"]
    require_planned(load_run(None, limits), None, None, anyway=False)


def test_a_name_of_boards_of_two_sizes_refuses_what_no_board_holds(here: Path) -> None:
    """`A100` is planned as 40 GB, and may have 80."""
    gpt = "model={type: gpt2, config: {n_embd: 2560, n_layer: 32, n_head: 32, vocab_size: 50304}}"
    settings = [gpt, "batch.micro=1", "data.sequence_length=1024", "shard=none"]
    for kind, is_refused in (("A100:1", False), ("A100-40GB:1", True)):
        loaded = load_run(None, [*settings, f"resources.accelerators={kind}"])
        plan = plan_for(loaded, "large", None)
        assert plan is not None
        assert plan.fleets[0].fits.verdict == "no"
        if is_refused:
            with pytest.raises(CheckFailed):
                require_planned(loaded, "large", None, anyway=False)
        else:
            require_planned(loaded, "large", None, anyway=False)


@pytest.mark.parametrize(
    "model",
    [
        "{from: meta-llama/Llama-2-7b-hf}",
        "{type: llama, config: {hidden_size: 2560, num_hidden_layers: 32, num_attention_heads: 32, "
        "intermediate_size: 6912}}",
    ],
)
def test_a_run_is_laid_out_as_its_plan_says(here: Path, model: str) -> None:
    """Also where the shape is that of a name on the hub, or the vocabulary that of a tokenizer
    there: a run that was planned as sharded would not fit unsharded."""
    (here / "run.yaml").write_text(
        f"version: 1\nname: it\nmodel: {model}\nbatch: {{global: 64, micro: 1}}\n"
        "data: {train: {sources: ['s3://some/text.txt'], tokenizer: gpt2}}\n"
        "train_for: 10 steps\nresources: {accelerators: 'A100-40GB:8'}\n"
    )
    loaded = load_run()
    plan = plan_for(loaded, "large", None)
    assert plan is not None
    assert plan.fleets[0].way is not None
    layout = plan.fleets[0].way.layout
    assert layout.shard_devices == 8
    resolved = resolved_for(loaded, load_target("large", here))
    assert (resolved.sharded, resolved.checkpoint_activations) == (
        True,
        layout.checkpoint_activations,
    )
    assert resolved.shard_nodes is None


@pytest.mark.parametrize("memory", ["640Gi", "160Gi"])
def test_a_run_is_divided_over_as_many_nodes_as_its_plan_says(here: Path, memory: str) -> None:
    (here / "targets.yaml").write_text(TARGETS.replace("640Gi", memory))
    (here / "run.yaml").write_text(RUN.replace("13b", "70b"))
    loaded = load_run(None, ["resources.nodes=8"])
    plan = plan_for(loaded, "large", None)
    assert plan is not None
    assert plan.fleets[0].way is not None
    layout = plan.fleets[0].way.layout
    resolved = resolved_for(loaded, load_target("large", here))
    assert resolved.shard_nodes == layout.shard_devices // 8 == {"640Gi": 4, "160Gi": 8}[memory]
    assert resolved.checkpoint_activations == layout.checkpoint_activations
    assert (resolved.mode, resolved.copy_nodes) == ("restart", resolved.shard_nodes)
    assert resolved.domain_ranks == layout.shard_devices


def test_a_pod_without_memory_for_a_save_is_refused_with_what_it_needs(here: Path) -> None:
    (here / "targets.yaml").write_text(TARGETS.replace("640Gi", "64Gi"))
    with pytest.raises(CheckFailed) as error:
        require_planned(load_run(), "large", None, anyway=False)
    assert ") of 64.0 GiB in each pod; " in error.value.message
    assert "in target large, pod: {resources: {memory: 1" in str(error.value.hint)


def test_check_names_the_micro_batch_that_a_first_start_takes(here: Path) -> None:
    loaded = load_run(None, ["batch.micro=auto"])
    _, facts = examined(loaded, is_here=False, code=False, on="large")
    assert facts["batch"]["micro"] == resolved_for(loaded, load_target("large", here)).micro
