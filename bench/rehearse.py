"""`make rehearse`: the closed form of a device's memory against a rehearsal of the real step on
tensors without memory, for all presets on one device, on eight and on sixty-four. Ends with one
line of JSON.

Both without what is not in a rehearsal: buffers of collectives, the allocator's overhead, and
attention as GPUs compute it. PRESETS=tiny,gpt2-small rehearses these only.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from dataclasses import replace
from functools import partial
from importlib.resources import files

from headway.plan.fleet import Fleet
from headway.plan.step_moments import highest_moment, step_shape
from headway.plan.workload import Layout, Workload, workload_of
from headway.spec.load import load_run
from headway.spec.resolve import ALL_BLOCKS, LARGE_MODEL_PARAMETERS
from support.rehearsal import put_rehearsed
from support.workers import in_worker_process

TARGET = 0.10
VOCABULARY = 50257
"""Of presets that leave it to the tokenizer."""
SHAPES = (1, 8, 64)


def main() -> int:
    errors: dict[str, float] = {}
    for preset in _presets():
        workload = workload_of(load_run(preset).run, VOCABULARY)
        assert workload is not None, preset
        for ranks in SHAPES:
            is_large = workload.model.size.parameters >= LARGE_MODEL_PARAMETERS
            layout = Layout(ranks, recomputed_blocks=ALL_BLOCKS if is_large else 0)
            _, peak = in_worker_process(partial(put_rehearsed, workload, layout, ranks))
            moment, counted = _counted(workload, layout, ranks)
            errors[f"{preset} on {ranks}"] = error = counted / peak - 1
            print(
                f"{preset:12} on {ranks:2}: rehearsed {peak / 1e9:8.2f} GB, counted "
                f"{counted / 1e9:8.2f} GB, {error:+.1%}, {moment}",
                file=sys.stderr,
            )
    worst = max(errors, key=lambda case: abs(errors[case]))
    line = {
        "name": "rehearse",
        "figure": round(abs(errors[worst]), 4),
        "target": TARGET,
        "pass": abs(errors[worst]) <= TARGET,
        "spread": {
            "worst": worst,
            "median": round(statistics.median(map(abs, errors.values())), 4),
            "beyond": sorted(case for case, error in errors.items() if abs(error) > TARGET),
            "cases": len(errors),
        },
    }
    print(json.dumps(line))
    return 0


def _presets() -> list[str]:
    if named := os.environ.get("PRESETS"):
        return named.split(",")
    folder = files("headway.spec") / "presets"
    return sorted(one.name.removesuffix(".yaml") for one in folder.iterdir())


def _counted(workload: Workload, layout: Layout, ranks: int) -> tuple[str, int]:
    """Tensors alone: activations of the CPU's operators, collectives without buffers."""
    shape = step_shape(workload, Fleet(None, min(ranks, 8), max(1, ranks // 8)), layout)
    moment, parts = highest_moment(replace(shape, on_gpu=True, has_gradients=True))
    return moment, sum(parts.values())


if __name__ == "__main__":
    sys.exit(main())
