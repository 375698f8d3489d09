"""Memory of a host: what all its workers need together, and who keeps a copy to save it."""

from __future__ import annotations

from typing import Any

import pytest

from headway.plan.accelerators import find_device
from headway.plan.figure import Figure
from headway.plan.fleet import Fleet
from headway.plan.host_memory import HostMemory, host_memory

GIB = 2**30
PARAMETERS = 7_000_000_000
STATE = 12 * PARAMETERS
H100 = find_device("H100")
STEP = Figure.within(3 * GIB, 0.1, "counted", "a step")


def on_gpus(workers: int = 8, nodes: int = 1, copy_nodes: int = 1, **more: Any) -> HostMemory:
    return host_memory(
        Fleet(H100, workers, nodes, **more),
        parameters=PARAMETERS,
        copy_nodes=copy_nodes,
        part_bytes=GIB // 2,
        tensors=None,
    )


def on_cpus(
    workers: int, nodes: int = 1, parameters: int = 100_000_000, copy_nodes: int = 1, **more: Any
) -> HostMemory:
    return host_memory(
        Fleet(None, workers, nodes, **more),
        parameters=parameters,
        copy_nodes=copy_nodes,
        part_bytes=0,
        tensors=STEP,
    )


def test_a_gpus_host_holds_one_copy_of_the_state_however_many_workers_write_it() -> None:
    one, eight = on_gpus(1), on_gpus(8)
    assert one.moment == eight.moment == "while it is saved"
    assert STATE < one.need.low < one.need.value < one.need.high < STATE + 4 * GIB
    assert STATE < eight.need.low < eight.need.value < eight.need.high < STATE + 24 * GIB


def test_nodes_of_one_copy_share_what_is_saved() -> None:
    alone, shared = on_gpus(nodes=4), on_gpus(nodes=4, copy_nodes=4)
    assert alone.need.value - shared.need.value == pytest.approx(STATE * 3 / 4)


def test_nodes_on_one_machine_hold_it_once() -> None:
    apart = on_gpus(2, nodes=4, copy_nodes=2)
    together = on_gpus(2, nodes=4, copy_nodes=2, is_one_host=True)
    assert together.need.value > STATE
    assert together.need.value - apart.need.value < STATE / 2 + 12 * GIB


@pytest.mark.parametrize(
    ("gib", "verdict"),
    [(None, None), (32, "does not fit"), (86, "may not fit"), (128, "fits")],
)
def test_verdicts(gib: int | None, verdict: str | None) -> None:
    assert on_gpus(host_bytes=None if gib is None else gib * GIB).verdict == verdict


def test_a_small_model_needs_most_while_it_is_built() -> None:
    found = host_memory(
        Fleet(H100, 8, 8), parameters=10**7, copy_nodes=8, part_bytes=GIB, tensors=None
    )
    assert found.moment == "while it is built"
    assert found.need.value > 8 * GIB


def test_on_cpus_each_worker_has_its_tensors_and_itself_and_one_copy_is_saved() -> None:
    one, four = on_cpus(1), on_cpus(4)
    saved = 12 * 100_000_000
    assert one.need.low > STEP.low + saved + GIB // 4, "a process with torch is not small"
    assert four.need.value - one.need.value == pytest.approx(3 * STEP.value, rel=0.15)
    assert four.need.high < 1.3 * 4 * STEP.high + saved + 3 * GIB, "not a copy for each"


# Pages that are not of files, of all processes of a run, 2026-11-18, torch 2.15.0.
@pytest.mark.parametrize(
    ("workers", "parameters", "step_gib", "seen_gib"),
    [(3, 957_000, 0.048, 0.77), (2, 57_500_000, 2.3, 6.46)],
)
def test_what_real_runs_needed(
    workers: int, parameters: int, step_gib: float, seen_gib: float
) -> None:
    need = host_memory(
        Fleet(None, 1, workers, is_one_host=True),
        parameters=parameters,
        copy_nodes=1,
        part_bytes=0,
        tensors=Figure.within(step_gib * GIB, 0.03, "counted", ""),
    ).need
    assert need.low < seen_gib * GIB < need.high


def test_a_machine_is_not_all_for_one_run_and_a_pod_is() -> None:
    need = on_cpus(1).need
    fits_pod = on_cpus(1, host_bytes=int(need.high) + 1)
    assert fits_pod.verdict == "fits"
    machine = on_cpus(1, host_bytes=int(need.high) + 1, is_one_host=True)
    assert machine.verdict == "may not fit"


def test_the_reason_names_each_part() -> None:
    words = on_gpus().need.reason
    assert "78.2 GiB of the state, copied to be saved" in words
    assert "of processes with torch" in words
    assert "4 x 3.0 GiB of tensors of a step" in on_cpus(4).need.reason
