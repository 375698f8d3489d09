"""`make bench-memory`: memory that plan predicts against what torch allocates, in real steps.

Each case is a run of its own with real workers on this machine, sharded by FSDP2 over gloo where it
says so. Two steps are taken, then a third is recorded by torch's profiler: the peak is the sum of
all tensors alive, not the process's resident size. The figure is the median error, its spread the
least and the largest, with sign. It passes if the median is at most 5 % and the worst 15 %, and no
peak exceeds what plan calls the most that it could be.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path

import torch

from headway.data.tiny_stories import stories
from support.preparing import prepare_set
from support.step_memory import LENGTH, MemoryCase, measured, predicted

TARGET, WORST = 0.05, 0.15
DROPOUT = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
CASES = (
    MemoryCase("gpt2", "fp32", passes=2),
    MemoryCase("gpt2", "bf16", micro=8),
    MemoryCase("gpt2", "bf16", config=DROPOUT),
    MemoryCase("gpt2", "bf16", passes=2, recomputes=True),
    MemoryCase("gpt2", "bf16", micro=1, length=32),
    MemoryCase("gpt2", "fp32", nodes=2),
    MemoryCase("gpt2", "bf16", teacher={"n_layer": 6}),
    MemoryCase("gpt2", "bf16", ranks=2),
    MemoryCase("gpt2", "bf16", ranks=4, micro=1, passes=2),
    MemoryCase("llama", "bf16", passes=2),
    MemoryCase("llama", "fp32", micro=1, length=32),
    MemoryCase("llama", "bf16", micro=8, recomputes=True, config={"vocab_size": 1024}),
    MemoryCase("llama", "bf16", ranks=2, passes=2, recomputes=True),
    MemoryCase("llama", "fp32", ranks=4, micro=1),
    MemoryCase("qwen3", "bf16"),
    MemoryCase("qwen3", "bf16", ranks=2, micro=1, passes=2),
    MemoryCase("bert", "bf16"),
    MemoryCase("bert", "fp32", micro=1, optimizer="lamb"),
)


def main() -> int:
    errors, unsafe = [], []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "text.txt").write_text("\n\n".join(stories(400_000, seed=1)))
        stream, windows = folder / "stream", folder / "windows"
        prepare_set(["text.txt"], stream, folder, vocab=1000)
        prepare_set(["text.txt"], windows, folder, vocab=1000, window_tokens=LENGTH)
        for number, case in enumerate(CASES):
            place = folder / f"case-{number}"
            place.mkdir()
            train_set = windows if case.type == "bert" else stream
            peaks, estimate = measured(case, place, train_set), predicted(case, place)
            for what, expected, seen in (
                ("step", estimate.step, peaks.step),
                ("save", estimate.saving, peaks.saving),
            ):
                error = expected.value / seen - 1
                errors += [error] if what == "step" else []
                unsafe += [f"{case}: {what}"] if seen > expected.high else []
                print(
                    f"{what} {seen / 1e6:7.2f} MB, predicted {expected.value / 1e6:7.2f} "
                    f"({error:+.1%}): {case}; {estimate.moment}",
                    file=sys.stderr,
                    flush=True,
                )
    figure, worst = statistics.median(map(abs, errors)), max(map(abs, errors))
    line = {
        "name": "bench-memory",
        "figure": round(figure, 4),
        "target": TARGET,
        "pass": figure <= TARGET and worst <= WORST and not unsafe,
        "spread": [round(min(errors), 4), round(max(errors), 4)],
        "worst": round(worst, 4),
        "unsafe": unsafe,
        "cases": len(CASES),
        "versions": {"torch": torch.__version__},
    }
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
