"""Steps that plan measures: which run they are of, and what they leave alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from headway.cli.model_shape import UnknownShape, read_workload
from headway.cli.plan.measurement import measured_here
from headway.data.random_set import write_random_set
from headway.errors import BadInput
from headway.plan.accelerators import find_device
from headway.plan.fleet import Fleet
from headway.plan.step_time import StepTime
from headway.plan.workload import Layout
from headway.spec.load import load_run
from headway.spec.resolve import Resolved
from headway.state.run_directory import RunDirectory

RUN_FILE = """\
version: 1
name: small
extends: tiny
data: {train: %s, validation: {other: elsewhere}, sequence_length: 64}
batch: {global: 8, micro: 2}
train_for: 3 epochs
evaluation: {every: 2 steps, prompts: [once upon a time]}
checkpoint: {every: 1min}
watch: {activations: {}}
storage: s3://nowhere/runs
"""
HERE = Fleet(device=None, devices_per_node=1, nodes=1)


class RecordedSteps:
    """Takes no step, and remembers of which run they would have been."""

    def __init__(self) -> None:
        self.resolved: Resolved | None = None
        self.runs: list[Resolved] = []
        self.environment: Mapping[str, str] = {}

    def __call__(
        self, folder: Path, runs: Sequence[Resolved], environment: Mapping[str, str]
    ) -> list[list[float]]:
        for one in runs:
            assert RunDirectory.open(one.run_directory).read_spec() == one
            assert Path(one.train_set, "manifest.json").is_file()
        self.resolved, self.environment, self.runs = runs[-1], environment, list(runs)
        # A tenth of a second for each pass of a worker, and 0.1 for the rest of a step.
        passes = [one.global_batch / one.micro / one.num_workers for one in runs]
        return [[0.1 + 0.1 * number] * 5 for number in passes]


def measured(folder: Path, fleet: Fleet, steps: RecordedSteps, *overrides: str) -> StepTime:
    loaded = load_run(folder, list(overrides))
    workload = read_workload(loaded)
    assert not isinstance(workload, UnknownShape)
    return measured_here(loaded, workload, fleet, Layout(1, recomputes=False), steps)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("no_gpu")
def test_its_own_training_set_is_used_if_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN_FILE % "set")
    write_random_set(
        tmp_path / "set", vocab_size=512, num_sequences=9, sequence_length=64, is_windowed=False
    )
    before = sorted(tmp_path.rglob("*"))
    steps = RecordedSteps()
    found = measured(tmp_path, HERE, steps)
    assert found.seconds.value == 0.5
    assert "with its training set" in found.seconds.reason
    assert steps.resolved is not None
    assert steps.resolved.train_set == str(tmp_path / "set")
    assert sorted(tmp_path.rglob("*")) == before, "nothing is left beside the run file"
    assert not Path(steps.resolved.run_directory).exists()


@pytest.mark.usefixtures("no_gpu")
def test_nothing_but_steps_is_measured(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        RUN_FILE % "{sources: [no.txt], tokenizer: {train: {vocab: 512}}}"
    )
    steps = RecordedSteps()
    found = measured(tmp_path, Fleet(None, 1, nodes=2), steps)
    assert "with random tokens" in found.seconds.reason
    resolved = steps.resolved
    assert resolved is not None
    assert (resolved.nodes, resolved.num_workers, resolved.device) == (2, 2, "cpu")
    assert (resolved.global_batch, resolved.micro) == (8, 2)
    assert resolved.validation_sets == {}
    run = resolved.run
    assert run.track == []
    assert run.evaluation.prompts == []
    assert run.watch.activations is None
    assert run.checkpoint.every != "auto"
    assert run.checkpoint.every.rest.amount > 10**5 < run.evaluation.every.amount
    assert not resolved.run_directory.startswith("s3:")
    assert steps.environment["GLOO_SOCKET_IFNAME"] == "lo"


@pytest.mark.usefixtures("no_gpu")
def test_a_preset_is_measured_with_random_tokens(tmp_path: Path) -> None:
    steps = RecordedSteps()
    loaded = load_run("bert-base", ["data.sequence_length=32", "batch.global=4"])
    workload = read_workload(loaded)
    assert not isinstance(workload, UnknownShape)
    found = measured_here(loaded, workload, HERE, Layout(1, recomputes=False), steps)
    assert "with random tokens" in found.seconds.reason
    assert found.tokens_per_second.value == pytest.approx(4 * 32 / 0.2)


@pytest.mark.usefixtures("no_gpu")
def test_a_step_of_many_passes_is_calculated_from_shorter_ones(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN_FILE % "set")
    write_random_set(
        tmp_path / "set", vocab_size=512, num_sequences=9, sequence_length=64, is_windowed=False
    )
    steps = RecordedSteps()
    found = measured(tmp_path, Fleet(None, 1, nodes=2), steps, "batch.global=2000")
    assert [one.global_batch for one in steps.runs] == [4 * 2 * 2, 8 * 2 * 2]
    assert found.num_passes == 500
    assert found.seconds.value == pytest.approx(0.1 + 500 * 0.1)
    assert "by steps of 4 and 8 of its 500 passes" in found.seconds.reason
    assert found.tokens_per_second.value == pytest.approx(2000 * 64 / 50.1)


@pytest.mark.usefixtures("no_gpu")
def test_devices_that_are_not_here_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN_FILE % "set")
    with pytest.raises(
        BadInput, match="this machine, which has no GPU, and the plan is for H100:8"
    ):
        measured(
            *(tmp_path, Fleet(find_device("H100"), 8, 1), RecordedSteps()),
            "model.config.vocab_size=512",
        )
