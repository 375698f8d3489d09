"""Which presets are measured where, and what remains of a measurement that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.prove.judge import ProofFailed
from headway.prove.program import Program
from headway.prove.speed import cases_for, fastest_precision, planned_rows, speed_row

SPEED = {
    "preset": "gpt2-small",
    "against": "fsdp2",
    "workers": 8,
    "ratio": 0.987,
    "quartiles": [0.98, 0.991],
    "rounds": 30,
    "tokens_per_second": 1234567.8,
    "other_tokens_per_second": 1250828.6,
    "mfu": 0.412,
    "other_mfu": None,
}


@pytest.mark.parametrize(
    ("device", "presets"),
    [
        ("Tesla T4", ["tiny", "gpt2-small"]),
        ("NVIDIA L4", ["tiny", "gpt2-small", "gpt2-medium"]),
        ("NVIDIA H100 80GB HBM3", ["tiny", "gpt2-medium", "qwen3-0.6b"]),
        ("a device of tomorrow", ["tiny", "gpt2-small"]),
        (None, ["tiny", "gpt2-small"]),
    ],
)
def test_the_two_largest_presets_that_fit(device: str | None, presets: list[str]) -> None:
    assert [case.preset for case in cases_for(device, is_cpu=False)] == presets


def test_on_the_cpu_they_are_scaled_down() -> None:
    tiny, *others = cases_for(None, is_cpu=True)
    assert tiny.config == ()
    assert len(others) == 2
    assert all(case.config for case in others)


def test_what_was_measured_before_a_failure_is_kept(tmp_path: Path) -> None:
    (tmp_path / "breaks.py").write_text(
        "import sys, time\n"
        "if sys.argv[1] == '0':\n"
        "    print('{\"tokens\": 5}', flush=True)\n"
        "    time.sleep(60)\n"
        "time.sleep(1)\n"
        "sys.exit('out of memory')\n"
    )
    lines = Program(tmp_path, SystemClock(), 60).ranks("breaks", 2, environment={})
    assert next(lines) == {"tokens": 5}
    with pytest.raises(ProofFailed, match="out of memory"):
        next(lines)


GIB = 2**30
ROWS = {
    "step_seconds": {
        "planned": {"value": 0.4, "low": 0.3, "high": 0.55, "basis": "measured"},
        "measured": 0.5,
    },
    "tokens_per_second": {"planned": None, "measured": 16384.0},
    "goodput": {"planned": {"value": 0.6, "low": 0.5, "high": 0.7}, "measured": 0.6},
    "memory_bytes": {
        "planned": {"value": 6 * GIB, "low": 5 * GIB, "high": 7 * GIB},
        "measured": None,
    },
}


def test_each_planned_figure_is_a_row_beside_what_was_measured() -> None:
    found = planned_rows(ROWS, "gpt2-small")
    assert [(one.name, one.figure) for one in found] == [
        ("seconds a step beside its plan: gpt2-small", "0.500, planned 0.400 (0.300 to 0.550)"),
        ("tokens/s beside its plan: gpt2-small", "16,384, not planned"),
        (
            "memory of a device beside its plan: gpt2-small",
            "not measured, planned 6.0 GiB (5.0 GiB to 7.0 GiB)",
        ),
    ]
    seconds, speed, memory = (one.numbers for one in found)
    assert seconds == {
        "planned_value": 0.4,
        "planned_low": 0.3,
        "planned_high": 0.55,
        "measured": 0.5,
    }
    assert speed == {"measured": 16384.0}
    assert "measured" not in memory


def test_a_device_that_no_plan_knows_has_what_was_measured() -> None:
    found = planned_rows({"tokens_per_second": ROWS["tokens_per_second"]}, "gpt2-small")
    assert [one.numbers for one in found] == [{}, {"measured": 16384.0}, {}]


def test_a_t4_is_measured_in_fp16() -> None:
    assert fastest_precision("Tesla T4", is_cpu=False) == "fp16"
    assert fastest_precision("NVIDIA L4", is_cpu=False) == "bf16"
    assert fastest_precision(None, is_cpu=True) == "fp32"


def test_a_comparison_is_a_row_with_the_share_of_the_peak() -> None:
    row = speed_row(SPEED)
    assert row.name == "speed beside FSDP2: gpt2-small"
    assert row.figure == (
        "1,234,568 tokens/s, fsdp2 1,250,829, ratio 0.987 (0.980 to 0.991), MFU 41.2%"
    )
    assert row.numbers["other_tokens_per_second"] == 1250828.6
    assert (row.numbers["lower_quartile"], row.numbers["upper_quartile"]) == (0.98, 0.991)
    assert "other_mfu" not in row.numbers
