"""The memory that is counted for a step is what the real step holds, at any number of ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from headway.plan.fleet import Fleet
from headway.plan.step_moments import highest_moment, step_shape
from headway.plan.workload import Layout, Workload, workload_of
from headway.spec.resolve import ALL_BLOCKS
from headway.spec.run_file import RunFile
from support.rehearsal import put_rehearsed
from support.workers import in_worker_process

pytestmark = pytest.mark.local

LLAMA = {
    "type": "llama",
    "config": {
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 8192,
    },
}


def workload() -> Workload:
    keys = {
        "version": 1,
        "model": LLAMA,
        "batch": {"global": 512, "micro": 2},
        "data": {"sequence_length": 512},
        "train_for": "10 steps",
    }
    found = workload_of(RunFile.model_validate(keys), vocabulary=None)
    assert found is not None
    return found


def test_what_is_counted_is_what_the_real_step_holds() -> None:
    """One of 64 ranks that hold a model together; the others are in `make rehearse`."""
    layout, ranks = Layout(64, recomputed_blocks=ALL_BLOCKS), 64
    whole = workload()
    state, peak = in_worker_process(partial(put_rehearsed, whole, layout, ranks))
    shape = step_shape(whole, Fleet(None, 8, ranks // 8), layout)
    _, parts = highest_moment(replace(shape, on_gpu=True, has_gradients=True))
    assert sum(parts.values()) == pytest.approx(peak, rel=0.05)
    assert state == pytest.approx(12 * whole.model.size.parameters / ranks, rel=0.01)
