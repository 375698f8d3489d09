"""headway plan: what it says, to whom, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.spec.load import preset_names
from support.in_process import Headway

HEAVY = ("torch", "transformers", "numpy", "fsspec", "lightkube", "rich.console", "headway.kube")
TARGETS = """\
lab:
  machine: hgx-h100
  pod: {resources: {cpu: 8, memory: 64Gi}}
pods:
  pod: {resources: {cpu: 8, memory: 64Gi}}
"""


def facts(headway: Headway, *arguments: str) -> dict[str, Any]:
    said = headway("plan", *arguments, "--json")
    assert said.exit_code in (0, 4), said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def test_a_model_that_does_not_fit_ends_with_4(headway: Headway) -> None:
    said = headway("plan", "llama2-70b", "--on", "L4:8")
    assert said.exit_code == 4
    assert "does not fit" in said.out
    assert "error: llama2-70b does not fit on L4:8" in said.err


def test_every_line_has_80_columns_at_most(headway: Headway) -> None:
    for arguments in (("llama2-70b", "--on", "H100:8"), ("tiny", "--explain"), ("bert-large",)):
        for line in headway("plan", *arguments).out.splitlines():
            assert len(line) <= 80, line


@pytest.mark.parametrize("shape", ["H100:8", "L4:1", "V100:8"])
def test_every_preset_gets_a_verdict_on_every_shape(headway: Headway, shape: str) -> None:
    for name in preset_names():
        (plan,) = facts(headway, name, "--on", shape)["plans"]
        assert plan["fits"]["verdict"] in ("yes", "maybe", "no"), (name, plan)
        assert plan["fits"]["words"], (name, plan)


def test_the_model_is_counted_exactly(headway: Headway) -> None:
    model = facts(headway, "llama2-7b", "--on", "H100:8")["model"]
    assert model["parameters"]["value"] == 6_738_415_616
    assert model["steps"]["value"] == 476_838
    assert model["parameters"]["basis"] == "counted"


def test_a_shape_is_not_a_target(headway: Headway) -> None:
    said = headway("plan", "gpt2-small", "--on", "H100")
    assert said.exit_code == 3
    assert "--on H100:8" in said.err


def test_a_target_gives_its_machines_devices(folder: Path, headway: Headway) -> None:
    (folder / "targets.yaml").write_text(TARGETS)
    found = facts(headway, "gpt2-small", "--on", "lab", "--nodes", "2")
    assert [(one["accelerators"], one["nodes"]) for one in found["plans"]] == [("H100:8", 2)]
    assert "--set resources.accelerators=H100:8" in found["notes"][0]


def test_pods_without_devices_have_their_memory(folder: Path, headway: Headway) -> None:
    (folder / "targets.yaml").write_text(TARGETS)
    (plan,) = facts(headway, "llama2-7b", "--on", "pods", "--set", "precision=fp32")["plans"]
    assert plan["accelerators"] == "cpu:1"
    assert plan["fits"]["verdict"] == "no"
    assert "64.0 GiB" in plan["fits"]["words"]


def test_a_range_of_nodes_is_planned_at_both_ends(headway: Headway) -> None:
    plans = facts(headway, "gpt2-small", "--on", "A100:8", "--nodes", "2..4")["plans"]
    assert [one["nodes"] for one in plans] == [2, 4]
    plans = facts(headway, "gpt2-small", "--on", "A100:8", "--set", "resources.nodes=3..5")["plans"]
    assert [one["nodes"] for one in plans] == [3, 5]


def test_every_choice_of_accelerators_is_planned(headway: Headway) -> None:
    wanted = "resources.accelerators=[H100:8, A100-80:8]"
    plans = facts(headway, "llama2-7b", "--set", wanted)["plans"]
    assert [one["accelerators"] for one in plans] == ["H100:8", "A100-80GB:8"]


def test_fewer_micro_batches_than_devices_are_named(headway: Headway) -> None:
    small = ("--set", "batch.global=256", "--set", "data.sequence_length=128")
    (plan,) = facts(headway, "bert-base", "--on", "H100:8", *small)["plans"]
    assert "4 micro-batches of 64 for 8 devices: 4 of them idle" in plan["notes"][0]
    assert "--set batch.micro=32" in plan["notes"][0]


def test_an_unknown_device_is_refused_with_how_to_describe_it(headway: Headway) -> None:
    said = headway("plan", "llama2-7b", "--on", "H100-NVL:8")
    assert said.exit_code == 2
    assert "--device like=H100,memory=94GB,bf16=835T" in said.err
    described = ("--device", "like=H100,memory=94GB,bf16=835T")
    (plan,) = facts(headway, "llama2-7b", "--on", "H100-NVL:8", *described)["plans"]
    assert plan["accelerators"] == "H100-NVL:8"
    assert 90 * 2**30 < plan["memory"]["room_bytes"]["value"] < 94 * 2**30


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("gpt2-small", "--on", "MI300X:8"), 2, "does not run on AMD GPUs"),
        (("gpt2-small", "--on", "H100:0"), 2, "--on H100:8"),
        (("gpt2-small", "--on", "H100:8", "--nodes", "many"), 2, "--nodes 2..4"),
        (("nothing",), 3, "nothing is no run file, preset or run"),
        ((), 3, "no run.yaml"),
        (("llama2-7b", "--on", "X:8", "--device", "memory=94GB"), 2, "like= is missing"),
        (("llama2-7b", "--on", "X:8", "--device", "like=H100,memory=lots"), 2, "'lots'"),
        (("llama2-7b", "--on", "X:8", "--device", "colour=red"), 2, "memory=VALUE"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    headway: Headway, arguments: tuple[str, ...], code: int, words: str
) -> None:
    said = headway("plan", *arguments)
    assert said.exit_code == code, said
    assert words in said.err


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("command: [python, train.py]", "a script of your own (python train.py)"),
        ("model: {call: 'mine:build'}\nbatch: {global: 8}", "mine:build is a function of yours"),
        ("model: {from: org/name}\nbatch: {global: 8}", "org/name is not on this machine"),
        ("model: {type: mixtral}\nbatch: {global: 8}", "does not count models of type mixtral"),
        ("model: {type: gpt2}\nbatch: {global: 8}", "vocab_size is that of the tokenizer"),
    ],
)
def test_a_model_whose_shape_is_not_known_is_named(
    folder: Path, headway: Headway, monkeypatch: pytest.MonkeyPatch, keys: str, problem: str
) -> None:
    monkeypatch.setenv("HF_HOME", str(folder / "hub"))
    (folder / "train.py").write_text("")
    (folder / "run.yaml").write_text(f"version: 1\n{keys}\n")
    said = headway("plan", "--on", "H100:8")
    assert said.exit_code == 0, said.err
    shown = " ".join(said.out.split())
    assert problem in shown
    assert "to plan it" in shown


def test_a_model_of_the_hub_is_planned_from_its_cache(
    folder: Path, headway: Headway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(folder / "hub"))
    cached = folder / "hub" / "hub" / "models--org--name"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("c0ffee")
    (cached / "snapshots" / "c0ffee").mkdir(parents=True)
    config = {"model_type": "gpt2", "vocab_size": 512, "n_layer": 2, "n_embd": 64, "n_head": 2}
    (cached / "snapshots" / "c0ffee" / "config.json").write_text(json.dumps(config))
    (folder / "run.yaml").write_text(
        "version: 1\nmodel: {from: org/name}\nbatch: {global: 8}\ntrain_for: 10 steps\n"
    )
    assert facts(headway, "--on", "H100:8")["model"]["parameters"]["value"] > 100_000


def test_it_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['headway', 'plan', 'llama2-70b', '--on', 'H100:8', '--nodes', '8']\n"
        "from headway.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
