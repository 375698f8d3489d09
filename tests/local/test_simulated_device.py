"""Training on a simulated accelerator: the same numbers as on the CPU. What would fail on CUDA
fails there; `support.simulated_device` says what, and where it is too weak."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from headway.train.export import export
from support.collectives_on_sim import enqueue_and_fail
from support.healing_on_sim import heal_and_continue
from support.host_copies_on_sim import copy_twice
from support.offload_on_sim import BLOCKS, STEPS, train_both_ways
from support.simulated_cases import TOLERANCE, SmallRun, largest_difference
from support.simulated_workers import WorkerPrograms
from support.workers import in_worker_process

pytestmark = [pytest.mark.local, pytest.mark.timeout(200)]

SHARDED = ("shard=node", "resources.accelerators=cpu:2")
LONG = pytest.mark.long("the gate has no time for more runs than one of each kind")


@pytest.fixture
def causal(programs: WorkerPrograms, tmp_path: Path, stream: dict[str, Path]) -> SmallRun:
    return SmallRun(programs, tmp_path, stream)


def test_one_worker_trains_saves_resumes_evaluates_and_exports(causal: SmallRun) -> None:
    causal.write("gpt2")
    expected = causal.train("cpu", 20)
    causal.train("sim", 12)
    trained = causal.train("sim", 20)
    assert largest_difference(trained, expected) <= TOLERANCE
    assert next(e for e in trained.history() if e["event"] == "started")["device"] == "simulated"
    # 5,000 bytes by torch's allocator at its peak, and beside it 4,000 in use less its 3,000.
    assert trained.history()[-1]["device_peak_bytes"] == 6000
    weights = []
    for directory in (trained, expected):
        _, folder = export(directory, None, causal.folder / f"exported-{directory.name}")
        weights.append(_weights(folder))
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        torch.testing.assert_close(weight, weights[1][name], rtol=0, atol=TOLERANCE)


@LONG
def test_rotary_embeddings_recomputed_blocks_and_lamb(causal: SmallRun) -> None:
    causal.write("llama", optimizer="lamb", recompute="true")
    expected = causal.train("cpu", 8)
    causal.train("sim", 6)
    assert largest_difference(causal.train("sim", 8), expected) <= TOLERANCE


@LONG
def test_distillation(causal: SmallRun, teacher: Path) -> None:
    causal.write("gpt2", objective=f"{{type: distill, teacher: {{from: {teacher}}}}}")
    expected = causal.train("cpu", 6)
    assert largest_difference(causal.train("sim", 6), expected) <= TOLERANCE


@pytest.mark.parametrize(
    ("optimizer", "sharded", "most"),
    [
        ("adamw", False, 1),
        pytest.param("adamw", True, 1, marks=LONG),
        pytest.param("lamb", False, 1, marks=LONG),
    ],
)
def test_host_syncs_of_a_step(causal: SmallRun, optimizer: str, sharded: bool, most: int) -> None:
    """Counted in two starts that resume, and differ by two steps of two micro-batches."""
    causal.write("gpt2", optimizer=optimizer)
    how = SHARDED if sharded else ()
    seldom = ["evaluation.every=100 steps", "watch.activations.every=100 steps"]
    counts = []
    for steps in (1, 2, 5):
        causal.train("sim", steps, *how, *seldom)
        counts.append(Counter(causal.syncs))
    more = counts[2] - counts[1]
    assert more.total() <= 2 * most, more
    assert more.total() >= 2, "a step reads its loss"


def test_host_syncs_of_an_evaluation(causal: SmallRun) -> None:
    causal.write("llama")
    (causal.folder / "figures.py").write_text(
        "def mine(model, batch): return {'rows': (len(batch.inputs), 1)}"
    )
    own = ["code={path: .}", "evaluation.metrics.call=figures:mine"]
    counts = []
    for sequences in (2, 8):
        causal.train("sim", 1, *own, f"evaluation.sequences={sequences}", name=f"for-{sequences}")
        counts.append(Counter(causal.syncs))
    assert counts[0] == counts[1], "more micro-batches, more syncs"


def test_collectives_are_enqueued_and_may_fail() -> None:
    found = in_worker_process(enqueue_and_fail)
    # Garbage until the stream that computes has waited, not only another one.
    assert found["sound"] == [True, True, [2.0, 2.0, 2.0]]
    assert found["fails"] == "DistBackendError"
    assert found["hangs"] == "not reached"
    assert found["breaks"] == "broken"
    # A device that has come to a collective waits for others; one that has not is late itself.
    assert found["waits: none"] == [1.0, 1.0]
    assert found["waits: hangs"] is False
    assert found["waits: never"] is True
    assert found["log"] == [("allreduce", (0,), 12)]


def test_copies_to_the_host_go_through_two_pinned_buffers_beside_training() -> None:
    found, syncs, early, num_buffers = in_worker_process(copy_twice)
    assert syncs == [], "training waits for no copy"
    assert early == [False, False], "but the state must not change before they are made"
    expected = [torch.arange(100.0), torch.tensor(3.0), torch.arange(33).view(3, 11).t()]
    assert found == [[one.tolist() for one in expected]] * 2
    assert num_buffers == 2, "kept from one save to the next"


def test_offloaded_inputs_of_blocks_change_no_bit() -> None:
    plain, offloaded = in_worker_process(train_both_ways)
    assert offloaded[0] == plain[0]
    assert plain[1:] == (0, 0, 0)
    # The input of each block, and nothing of what is inside it; nobody waits for the copies.
    assert offloaded[1:] == (BLOCKS * STEPS,) * 3


@LONG
def test_a_run_with_offloaded_activations(causal: SmallRun) -> None:
    causal.write("llama", recompute="true")
    expected = causal.train("sim", 8, name="plain")
    syncs = list(causal.syncs)
    offloaded = causal.train("sim", 8, name="offloaded", offload=True)
    assert largest_difference(offloaded, expected) == 0
    assert len(causal.syncs) == len(syncs), "copies that nobody waits for"
    causal.train("sim", 6, *SHARDED, name="sharded", offload=True)
    sharded = causal.train("sim", 8, *SHARDED, name="sharded", offload=True)
    assert largest_difference(sharded, expected) <= TOLERANCE


def test_a_worker_without_the_state_receives_it() -> None:
    """As one that joins a live run does, although live runs are refused with GPUs for now."""
    found = in_worker_process(heal_and_continue)
    for kind, (healed, continued, devices) in found.items():
        assert healed[0] == healed[1], kind
        assert continued[0] == continued[1], kind
        assert healed != continued, "a step changes something"
        assert devices[0] == devices[1], kind
        weights = {on for name, on in devices[1].items() if not name.endswith("/step")}
        assert weights == {"sim"}, devices


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_two_workers_replicated_then_sharded(causal: SmallRun) -> None:
    causal.write("gpt2")
    expected = causal.train("cpu", 18)
    for steps in (6, 12):  # in the second start each reads a half, and broadcasts it
        causal.train("sim", steps, nodes=2)
        _require_steps_on_the_device(causal, 6)
    trained = causal.train("sim", 18, *SHARDED)
    _require_steps_on_the_device(causal, 6)
    assert largest_difference(trained, expected) <= TOLERANCE


STEP_BYTES = 8 * 8
"""Of a step's last all-reduce: loss, squared norm, count and five flags in fp64."""


def _require_steps_on_the_device(run: SmallRun, steps: int) -> None:
    """Each step ends with one all-reduce of a small vector over all workers, and nothing of the run
    is on the host."""
    for end in run.ends:
        assert (end.record["num_host_groups"], end.record["host_collectives"]) == (0, [])
        small = [one for one in end.launches if one.op == "allreduce" and one.num_bytes <= 64]
        assert {one.ranks for one in small} == {tuple(range(len(run.ends)))}
        assert sum(one.num_bytes == STEP_BYTES for one in small) == steps


@LONG
@pytest.mark.parametrize(
    ("how", "nodes", "gradients", "everyone"),
    [((), 2, (0, 1), (0, 1)), (SHARDED, 1, None, (0, 1)), (SHARDED, 2, (0, 2), (0, 1, 2, 3))],
    ids=["replicated", "one copy", "two copies"],
)
def test_what_a_step_launches(
    causal: SmallRun,
    how: tuple[str, ...],
    nodes: int,
    gradients: tuple[int, ...] | None,
    everyone: tuple[int, ...],
) -> None:
    """Beside the collectives of FSDP2: one all-reduce of the gradients, which fit into a bucket,
    one of the small vector, and one host sync. Counted in two runs that differ by two steps."""
    causal.write("gpt2")
    seldom = ["evaluation.every=100 steps", "watch.activations.every=100 steps"]
    counts = []
    for steps in (2, 4):
        causal.train("sim", steps, *how, *seldom, nodes=nodes, name=f"for-{steps}")
        launches = Counter(
            (one.ranks, one.num_bytes == STEP_BYTES)
            for one in causal.ends[0].launches
            if one.op == "allreduce"
        )
        counts.append((launches, len(causal.syncs)))
    (before, syncs_before), (after, syncs_after) = counts
    expected = Counter({(everyone, True): 2})
    if gradients is not None:
        expected[gradients, False] = 2
    assert after - before == expected
    assert syncs_after - syncs_before == 2
