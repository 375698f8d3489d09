"""The time of a step: what it is made of, how it moves, what is refused, and how near it comes."""

from __future__ import annotations

import statistics
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import BadInput
from headway.plan.accelerators import DEVICES, find_device
from headway.plan.efficiency import ASSUMED_NETWORK_GBIT, fitted
from headway.plan.fleet import Fleet
from headway.plan.model_size import model_size
from headway.plan.step_time import StepTime, measured_step_time, step_time
from headway.plan.workload import CountedModel, Layout, Workload
from headway.spec.resolve import ALL_BLOCKS
from support.accuracy_page import written_section
from support.published_times import published_times, time_section

LLAMA2_7B = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
GPT2 = {"vocab_size": 50304, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
WHOLE = Layout(shard_devices=1, recomputed_blocks=0)


def counted(type: str, config: dict[str, int]) -> CountedModel:
    size = model_size(type, config)
    assert size is not None
    return CountedModel(type, config, size)


SEVEN_B = Workload(
    model=counted("llama", LLAMA2_7B),
    teacher=None,
    sequence_length=4096,
    global_batch=256,
    micro=2,
    precision="bf16",
    optimizer="adamw",
    compiles=False,
    loss_in_chunks=False,
    steps=1000,
)


def fleet(name: str, number: int = 8, nodes: int = 1, gbit: float | None = 3200.0) -> Fleet:
    device = find_device(name)
    assert device is not None
    return Fleet(device, number, nodes, network_bytes_per_second=gbit and gbit * 1e9 / 8)


def timed(workload: Workload, on: Fleet, layout: Layout) -> StepTime:
    found = step_time(workload, on, layout)
    assert found is not None
    return found


def sharded(on: Fleet, recomputed_blocks: int = 0) -> Layout:
    return Layout(on.num_devices, recomputed_blocks)


def test_a_7b_model_on_eight_h100_takes_what_such_runs_take() -> None:
    """fms-fsdp prints 9,600 tokens a second and GPU on 96 H100, compiled."""
    on = fleet("H100", nodes=12)
    compiled = replace(SEVEN_B, compiles=True, global_batch=192)
    found = timed(compiled, on, Layout(8, recomputed_blocks=0))
    assert 7500 < found.tokens_per_second.value / 96 < 11000
    assert found.mfu is not None
    assert 0.3 < found.mfu.value < 0.55


def test_the_parts_are_the_whole() -> None:
    on = fleet("A100-80GB", nodes=2)
    found = timed(SEVEN_B, on, sharded(on, ALL_BLOCKS))
    beside = ("hidden communication", "idle devices")
    parts = {name: part for name, part in found.parts.items() if name not in beside}
    assert sum(part.value for part in parts.values()) == pytest.approx(found.seconds.value)
    assert {"products", "attention", "elementwise", "recomputation", "optimizer"} <= set(parts)
    assert {"communication", "hidden communication"} <= set(found.parts)
    for part in found.parts.values():
        assert part.reason
        assert part.low <= part.value <= part.high
    values = [part.value for part in parts.values()]
    assert values == sorted(values, reverse=True)


def test_the_range_encloses_the_figure_and_is_turned_over_for_rates() -> None:
    found = timed(SEVEN_B, fleet("H100"), Layout(8, recomputed_blocks=0))
    seconds, rate, mfu = found.seconds, found.tokens_per_second, found.mfu
    assert seconds.low < seconds.value < seconds.high
    assert rate.value == pytest.approx(SEVEN_B.tokens_per_step / seconds.value)
    assert rate.low == pytest.approx(SEVEN_B.tokens_per_step / seconds.high)
    assert mfu is not None
    assert mfu.low < mfu.value < mfu.high
    assert seconds.basis == "fitted"


@given(
    micro=st.sampled_from([1, 2, 4]),
    nodes=st.sampled_from([1, 2, 4, 8]),
    blocks=st.sampled_from([0, 5, ALL_BLOCKS]),
    compiles=st.booleans(),
    name=st.sampled_from([device.name for device in DEVICES if device.bf16_flops]),
)
def test_work_takes_longer_and_better_devices_do_not(
    micro: int, nodes: int, blocks: int, compiles: bool, name: str
) -> None:
    run = replace(SEVEN_B, global_batch=1024, micro=micro, compiles=compiles)
    on = fleet(name, nodes=nodes, gbit=400.0)
    layout = Layout(8, blocks)
    seconds = timed(run, on, layout).seconds.value
    assert on.device is not None

    more = replace(run, global_batch=2 * run.global_batch)
    assert timed(more, on, layout).seconds.value > seconds
    assert timed(run, replace(on, nodes=2 * nodes), layout).seconds.value < seconds
    assert timed(run, on, Layout(8, recomputed_blocks=ALL_BLOCKS)).seconds.value >= seconds
    assert timed(replace(run, compiles=True), on, layout).seconds.value <= seconds
    for key in ("memory_bytes_per_second", "link_bytes_per_second", "bf16_flops"):
        better = replace(on.device, **{key: 2 * getattr(on.device, key)})
        assert timed(run, replace(on, device=better), layout).seconds.value <= seconds
    faster = replace(on, network_bytes_per_second=800e9 / 8)
    assert timed(run, faster, layout).seconds.value <= seconds
    found = timed(run, on, layout)
    assert found.mfu is not None
    assert 0 < found.mfu.value < found.mfu.high < 1
    assert found.seconds.low < found.seconds.value < found.seconds.high


def test_larger_micro_batches_send_weights_less_often() -> None:
    on = fleet("A100-80GB", nodes=4, gbit=400.0)
    seconds = [
        timed(replace(SEVEN_B, micro=micro), on, sharded(on)).seconds.value
        for micro in (1, 2, 4, 8)
    ]
    assert seconds == sorted(seconds, reverse=True)


def test_a_slow_network_costs_what_computing_cannot_hide() -> None:
    slow = fleet("A100-80GB", nodes=4, gbit=10.0)
    found = timed(SEVEN_B, slow, sharded(slow))
    # 8 passes x (2 x 2 + 4) bytes x 6.74B weights, three quarters from other nodes, at 1 GB/s.
    least = 4 * 8 * 6.74e9 * 0.75 / 1.25e9
    assert found.parts["communication"].value > least / 2
    assert next(iter(found.parts)) == "communication"


def test_without_sharding_gradients_are_sent_once_a_step() -> None:
    gpt2 = replace(SEVEN_B, model=counted("gpt2", GPT2), sequence_length=1024, micro=8)
    on = fleet("A100-80GB")
    few, many = (
        timed(replace(gpt2, global_batch=batch), on, WHOLE).parts for batch in (64, 64 * 16)
    )
    for name in ("communication", "hidden communication"):
        assert few[name].value == pytest.approx(many[name].value)
    assert "communication" not in timed(gpt2, fleet("A100-80GB", number=1), WHOLE).parts


def test_devices_without_a_micro_batch_are_said_to_be_idle() -> None:
    on = fleet("H100", nodes=4)
    run = replace(SEVEN_B, global_batch=20, micro=2)
    found = timed(run, on, Layout(8, recomputed_blocks=0))
    assert found.num_passes == 1
    assert found.parts["idle devices"].value == pytest.approx(22 / 32)
    assert found.notes[0].startswith("22 of 32 devices have nothing to compute")
    # Twice the devices do not help any more.
    assert timed(run, replace(on, nodes=8), Layout(8, recomputed_blocks=0)).seconds.value >= (
        found.seconds.value * 0.99
    )
    full = timed(replace(run, global_batch=64), on, Layout(8, recomputed_blocks=0))
    assert "idle devices" not in full.parts
    assert full.notes == ()


def test_uneven_shares_take_as_long_as_the_largest() -> None:
    on = fleet("A100-80GB", number=1, nodes=3)
    four, six = (
        timed(replace(SEVEN_B, global_batch=batch, micro=1), on, sharded(on)) for batch in (4, 6)
    )
    assert four.num_passes == six.num_passes == 2
    assert four.seconds.value == pytest.approx(six.seconds.value)
    assert four.parts["idle devices"].value == pytest.approx(1 / 3)


def test_a_small_model_waits_for_the_host() -> None:
    shape = {**GPT2, "n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 512}
    tiny = replace(SEVEN_B, model=counted("gpt2", shape), sequence_length=128, micro=4)
    found = timed(replace(tiny, global_batch=4), fleet("H100", number=1), WHOLE)
    assert "launching" in found.parts
    assert found.seconds.value > 4 * 3e-4


def test_a_teacher_and_offloading_take_time() -> None:
    on = fleet("A100-80GB")
    plain = timed(SEVEN_B, on, sharded(on, ALL_BLOCKS))
    taught = timed(replace(SEVEN_B, teacher=SEVEN_B.model), on, sharded(on, ALL_BLOCKS))
    assert taught.parts["teacher"].value == pytest.approx(plain.seconds.value / 4, rel=0.2)
    offloaded = timed(SEVEN_B, on, Layout(8, recomputed_blocks=ALL_BLOCKS, offloads=True))
    assert offloaded.seconds.value > plain.seconds.value
    assert "offloading" in offloaded.parts


def test_an_unknown_network_is_assumed_and_said() -> None:
    on = fleet("A100-80GB", nodes=4, gbit=None)
    found = timed(SEVEN_B, on, sharded(on))
    known = timed(SEVEN_B, fleet("A100-80GB", nodes=4, gbit=1600.0), sharded(on))
    assert found.seconds.value == pytest.approx(known.seconds.value)
    assert found.seconds.high > known.seconds.high
    assert found.seconds.basis == "assumed"
    assert any("1600 Gbit/s a node are assumed" in note for note in found.notes)
    assert timed(SEVEN_B, fleet("A100-80GB", gbit=None), Layout(8, 0)).notes == ()


def test_a_device_that_no_published_run_was_on_has_a_wider_range() -> None:
    found = timed(SEVEN_B, fleet("B200"), Layout(8, recomputed_blocks=0))
    h100 = timed(SEVEN_B, fleet("H100"), Layout(8, recomputed_blocks=0))
    assert found.seconds.high / found.seconds.value > h100.seconds.high / h100.seconds.value
    assert found.seconds.basis == "assumed"
    assert "No run on B200 was published" in found.notes[0]
    assert "the efficiency of H100 is taken" in found.notes[0]


def test_every_known_device_has_an_efficiency_and_an_assumed_network() -> None:
    for device in DEVICES:
        assert 0.2 < fitted().efficiencies.matmul[device.chip] < 0.9
        assert ASSUMED_NETWORK_GBIT[device.chip] > 0


@pytest.mark.parametrize(
    ("name", "precision", "says", "hint"),
    [
        ("T4", "bf16", "in bf16 on T4 cannot be estimated: the T4 has no bf16", "precision=fp16"),
        ("H100", "fp32", "in fp32 on H100 cannot be estimated: the peak depends", "precision=bf16"),
    ],
)
def test_a_precision_without_a_peak_is_refused(
    name: str, precision: str, says: str, hint: str
) -> None:
    run = replace(SEVEN_B, precision=precision)  # type: ignore[arg-type]
    with pytest.raises(BadInput) as caught:
        step_time(run, fleet(name), Layout(8, recomputed_blocks=0))
    assert says in caught.value.message
    assert hint in (caught.value.hint or "")


def test_devices_that_form_no_whole_groups_are_refused() -> None:
    with pytest.raises(BadInput, match="12 devices do not form whole groups of 8"):
        step_time(SEVEN_B, fleet("H100", number=4, nodes=3), Layout(8, recomputed_blocks=0))


def test_on_a_cpu_only_recorded_steps_say_it() -> None:
    cpu = Fleet(device=None, devices_per_node=2, nodes=1)
    run = replace(SEVEN_B, precision="fp32", global_batch=3, micro=1)
    assert step_time(run, cpu, WHOLE) is None
    found = measured_step_time(run, cpu, WHOLE, [2.1, 2.0, 2.2, 2.0, 2.6], "run trial")
    assert found.seconds.value == pytest.approx(2.18)
    assert found.seconds.low < 2.1 < 2.3 < found.seconds.high
    assert found.seconds.basis == "measured"
    assert "mean of 5 steps, 2 to 2.6 s, recorded by run trial" in found.seconds.reason
    assert found.tokens_per_second.value == pytest.approx(3 * 4096 / 2.18)
    assert found.mfu is None
    assert found.num_passes == 2
    assert found.parts["idle devices"].value == pytest.approx(0.25)


def test_a_burst_of_something_else_does_not_count() -> None:
    cpu = Fleet(device=None, devices_per_node=1, nodes=1)
    found = measured_step_time(SEVEN_B, cpu, WHOLE, [1.0] * 19 + [9.0], "run trial")
    assert found.seconds.value == pytest.approx(1.0)
    assert found.seconds.high == pytest.approx(1.05)


def test_published_runs_that_were_not_fitted_to_are_predicted_within_15_percent() -> None:
    others = [one for one in published_times() if one.row.side == "predict"]
    ratios = [one.predicted(fitted().efficiencies) / one.published for one in others]
    assert len(others) == fitted().num_predicted >= 12
    chips = {one.place.device.chip for one in others}
    assert {"GV100", "GA100", "GH100"} <= chips
    median = statistics.median(abs(ratio - 1) for ratio in ratios)
    assert median == pytest.approx(fitted().median_error, abs=1e-4)
    assert median <= 0.15


def test_the_page_has_what_the_code_predicts() -> None:
    assert written_section("time") == time_section(), "run `make fit-time`"


def test_plan_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, headway.plan.step_time as one; one.fitted(); "
        "assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
