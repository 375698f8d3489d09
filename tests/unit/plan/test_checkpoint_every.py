"""`checkpoint.every: auto` from the run file to what workers read."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.plan.checkpoint_every import auto_interval, placement_of, with_checkpoint_interval
from headway.spec.interruption_rate import InterruptionsConfig
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, Resolved, resolve

RUN = """\
version: 1
model: {type: gpt2}
data: {train: prepared, sequence_length: 1024}
batch: {global: 512}
checkpoint: {every: auto}
"""
LAPTOP = Hardware(cores=8, cuda_devices=0)
SERVER = Hardware(cores=64, cuda_devices=8)
SEVEN_BILLION = 7 * 10**9


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)


def resolved(
    *overrides: str, machine: Hardware = SERVER, nodes: int = 1, parameters: int = SEVEN_BILLION
) -> Resolved:
    found = resolve(
        load_run(None, list(overrides)),
        machine,
        nodes=1,
        parameters=parameters,
        train_set="prepared",
        validation_sets={},
    )
    return found.model_copy(update={"nodes": nodes})


def interruptions(**written: str) -> InterruptionsConfig:
    return InterruptionsConfig.model_validate(written)


def test_it_is_decided_once_and_read_back_by_workers() -> None:
    found = with_checkpoint_interval(resolved(), SEVEN_BILLION)
    assert found.run.checkpoint.every == "auto"
    assert found.checkpoint_every is not None
    assert found.save_every == found.checkpoint_every
    assert not found.save_every.is_by_steps
    text = found.model_dump_json(by_alias=True, exclude_none=True)
    assert Resolved.model_validate_json(text).save_every == found.save_every


def test_what_the_run_file_says_comes_first() -> None:
    written = resolved("checkpoint.every=500 steps")
    found = with_checkpoint_interval(written, SEVEN_BILLION)
    assert found == written
    assert str(found.save_every) == "500 steps"


def test_a_record_without_it_saves_at_the_default() -> None:
    """As one that another tool made."""
    assert str(resolved().save_every) == "10min"


def test_more_frequent_interruptions_save_more_often() -> None:
    run = resolved("resources={accelerators: H100:8, spot: all}", nodes=8)
    calm = auto_interval(run, SEVEN_BILLION, interruptions(spot="1% per day"))
    rough = auto_interval(run, SEVEN_BILLION, interruptions(spot="20% per hour"))
    assert rough.value < calm.value
    assert "8 spot nodes" in rough.reason
    assert rough.value == 60  # 84 GB are written by all 8 nodes, in 10 s


def test_a_larger_model_saves_less_often() -> None:
    small = auto_interval(resolved(machine=LAPTOP), 10**7)
    large = auto_interval(resolved(machine=LAPTOP), 10**9)
    assert small.value < large.value


def test_a_live_run_does_not_fear_for_its_nodes() -> None:
    run = resolved("elastic=live", machine=LAPTOP, nodes=4, parameters=10**8)
    found = auto_interval(run, 10**8, interruptions(on_demand="50% per hour"))
    assert "4 copies hold the state" in found.reason
    assert found.value == 54 * 60
    restart = resolved("elastic=restart", machine=LAPTOP, nodes=4, parameters=10**8)
    assert auto_interval(restart, 10**8, interruptions(on_demand="50% per hour")).value < 300


def test_a_model_of_the_users_own() -> None:
    found = with_checkpoint_interval(resolved(), None)
    assert str(found.save_every) == "10min"


@pytest.mark.parametrize(
    ("overrides", "nodes", "spot_nodes", "trains_with_fewer"),
    [
        (("resources={accelerators: H100:8, spot: all}",), 8, 8, True),
        (("resources={accelerators: H100:8, spot: above_min, nodes: 2..8}",), 8, 6, True),
        (("resources={accelerators: H100:8, nodes: 8..16}",), 8, 0, False),
        (("resources={accelerators: H100:8}",), 1, 0, False),
        (("resources={accelerators: H100:8}", "shard=2 nodes"), 2, 0, False),
        (("resources={accelerators: H100:8}", "shard=2 nodes"), 4, 0, True),
        (("resources={accelerators: H100:8}", "shard=all"), 4, 0, True),
    ],
)
def test_what_is_left_after_a_loss(
    overrides: tuple[str, ...], nodes: int, spot_nodes: int, trains_with_fewer: bool
) -> None:
    place = placement_of(resolved(*overrides, nodes=nodes), on_pods=True)
    assert (place.spot_nodes, place.trains_with_fewer) == (spot_nodes, trains_with_fewer)
