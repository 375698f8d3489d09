"""What Prometheus reads of a run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headway.clock import SystemClock, seconds_of
from headway.launch.run_metrics import RunMetrics
from headway.state.run_directory import Journal, RunDirectory
from headway.state.run_history import HistoryReader
from support.clock import Patient
from support.scraped_run import scrape, scraped_run, train


def value_of(
    directory: RunDirectory, name: str, num_training: int | None = None, **labels: str
) -> float | None:
    found = [
        sample.value
        for sample in scrape(directory, num_training)
        if sample.name == f"headway_run_{name}" and labels.items() <= sample.labels.items()
    ]
    assert len(found) <= 1, f"{name} is there {len(found)} times"
    return found[0] if found else None


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return scraped_run(tmp_path)


def test_training_is_shown(run: RunDirectory) -> None:
    with run.held():
        assert value_of(run, "step") == 2
        assert value_of(run, "steps_planned") == 100
        assert value_of(run, "loss") == 2.0
        assert value_of(run, "evaluation_loss", set="held-out") == 2.5
        assert value_of(run, "tokens_per_second") == 512
        assert value_of(run, "members") == 4
        assert value_of(run, "nodes_wanted") == 2
        assert value_of(run, "state", state="running") == 1
        assert value_of(run, "state", state="failed") == 0


def test_a_run_that_does_not_train_has_no_members_and_no_speed(run: RunDirectory) -> None:
    """Its newest step stays: Prometheus would else draw its old speed for ever."""
    assert value_of(run, "state", state="lost") == 1
    assert value_of(run, "members") == 0
    assert value_of(run, "tokens_per_second") == 0
    assert value_of(run, "loss") == 2.0


def test_members_are_those_of_the_coordinator_not_of_the_newest_record(run: RunDirectory) -> None:
    """Nobody writes a record when all workers are gone, or wait for others."""
    with run.held():
        assert value_of(run, "members", num_training=3) == 3
        assert value_of(run, "tokens_per_second", num_training=3) == 512
        assert value_of(run, "members", num_training=0) == 0
        assert value_of(run, "tokens_per_second", num_training=0) == 0
        assert value_of(run, "state", num_training=0, state="running") == 1


def test_workers_and_those_wanted_can_be_compared(run: RunDirectory) -> None:
    assert value_of(run, "members_wanted") == 4
    Journal(run.launcher, SystemClock()).note("scaled", nodes=3)
    assert (value_of(run, "nodes_wanted"), value_of(run, "members_wanted")) == (3, 6)


def test_time_is_shown_by_cause_and_adds_up(run: RunDirectory) -> None:
    causes = {
        sample.labels["cause"]: sample.value
        for sample in scrape(run)
        if sample.name == "headway_run_time_seconds"
    }
    assert causes["learning"] == 1.5
    assert causes["data"] == 0.5
    assert value_of(run, "goodput_ratio") is not None


def test_the_age_of_the_newest_checkpoint_can_be_told(run: RunDirectory) -> None:
    (saved,) = (event for event in run.history() if event["event"] == "saved")
    assert value_of(run, "checkpoint_timestamp_seconds") == seconds_of(saved["time"])
    assert value_of(run, "checkpoint_step") == 2
    assert value_of(run, "save_failing") == 0
    assert value_of(run, "save_failures_total") == 1


def test_a_lost_node_counts_once_however_many_workers_it_has(run: RunDirectory) -> None:
    assert value_of(run, "losses_total") == 1
    assert value_of(run, "replacements_total") == 1
    assert value_of(run, "coordinator_losses_total") == 1


def test_counters_do_not_fall_when_steps_are_redone_or_the_run_is_launched_again(
    run: RunDirectory,
) -> None:
    run.metrics.append({"rewind": 1, "generation": 2, "time": "2026-11-17T00:00:00.000Z"})
    Journal(run.launcher, SystemClock()).note("launched", nodes=3)
    assert value_of(run, "step") == 1
    assert value_of(run, "nodes_wanted") == 3
    assert value_of(run, "losses_total") == 1


def test_a_run_that_has_not_begun_has_no_loss_rather_than_zero(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "new", SystemClock())
    assert value_of(directory, "loss") is None
    assert value_of(directory, "checkpoint_timestamp_seconds") is None
    assert value_of(directory, "losses_total") == 0


def test_a_loss_that_is_not_finite_is_left_out(run: RunDirectory) -> None:
    clock = SystemClock()
    train(run, clock, 3)
    run.metrics.append({**run.metrics.read()[0][-1], "step": 4, "loss": None})
    assert value_of(run, "loss") is None
    assert value_of(run, "step") == 4


def test_each_sample_names_its_run(run: RunDirectory) -> None:
    assert {sample.labels["run"] for sample in scrape(run)} == {"wiki"}


def test_names_follow_the_conventions_of_prometheus(tmp_path: Path) -> None:
    run = scraped_run(tmp_path, Patient())
    text = generate_latest(RunMetrics(HistoryReader(run), Patient())).decode()
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert re.fullmatch(r"headway_run(_[a-z]+)+", family.name)
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total"), sample.name
        # Seconds, not minutes or milliseconds; ratios, not percent.
        assert not re.search(r"_(ms|millis|minutes|hours|percent|mb|gb)\b", family.name)
