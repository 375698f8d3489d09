"""Small runs that train on the CPU and on the simulated device, and their figures."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headway.state.rewinds import apply_rewinds
from headway.state.run_directory import RunDirectory
from support.simulated_workers import WorkerEnd, WorkerPrograms
from support.workers import resolved_run

if TYPE_CHECKING:
    from support.simulated_streams import Fault

TOLERANCE = 1e-5
RUN_FILE = """\
version: 1
name: unnamed
model: {model}
objective: {objective}
data: {{train: unused, sequence_length: 16}}
batch: {{global: 4, micro: 2}}
optimizer: {{type: {optimizer}, lr: 2e-3}}
schedule: {{type: constant}}
precision: fp32
seed: 3
threads: 1
track: []
evaluation: {{every: 6 steps, sequences: 5}}
checkpoint: {{every: 1000 steps}}
watch: {{activations: {{every: 6 steps}}}}
memory: {{checkpoint_activations: {recompute}}}
"""
MODELS = {
    "gpt2": "{type: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 32, n_positions: 32, "
    "vocab_size: 448, resid_pdrop: 0.1, embd_pdrop: 0.1, attn_pdrop: 0.1}}",
    "llama": "{type: llama, config: {num_hidden_layers: 2, num_attention_heads: 4, "
    "num_key_value_heads: 2, hidden_size: 32, intermediate_size: 64, vocab_size: 448, "
    "attention_dropout: 0.1}}",
    "bert": "{type: bert, config: {num_hidden_layers: 2, num_attention_heads: 2, hidden_size: 32, "
    "intermediate_size: 64, max_position_embeddings: 32, vocab_size: 448}}",
}


@dataclass(frozen=True)
class SmallRun:
    """A run file in a folder of its own, and its prepared sets."""

    programs: WorkerPrograms
    folder: Path
    sets: dict[str, Path]
    ends: list[WorkerEnd] = field(default_factory=list)
    """Of the newest start."""

    @property
    def syncs(self) -> list[str]:
        """Host syncs of the first worker in the newest start."""
        return self.ends[0].record.get("syncs", [])

    def write(
        self,
        model: str,
        *,
        objective: str = "causal",
        optimizer: str = "adamw",
        recompute: str = "false",
    ) -> SmallRun:
        content = RUN_FILE.format(
            model=MODELS[model], objective=objective, optimizer=optimizer, recompute=recompute
        )
        (self.folder / "run.yaml").write_text(content)
        return self

    def train(
        self,
        device: str,
        steps: int,
        *overrides: str,
        nodes: int = 1,
        source: Path | None = None,
        name: str | None = None,
        offload: bool = False,
        fault: Fault | None = None,
    ) -> RunDirectory:
        """The run, started or resumed, until `steps`. Fails with the first worker's log, unless
        there is a fault."""
        settings = [f"name={name or device}", f"train_for={steps} steps", *overrides]
        resolved = resolved_run(self.folder, self.sets, nodes, settings)
        if offload:  # which a run file may only ask for where there are GPUs
            memory = resolved.run.memory.model_copy(update={"offload": "activations"})
            run = resolved.run.model_copy(update={"memory": memory})
            resolved = resolved.model_copy(update={"run": run, "checkpoint_activations": True})
        ends = self.programs.start(resolved, device, source, fault)
        for rank, end in enumerate(ends):
            assert end.code == 0 or fault is not None, (
                f"worker {rank} ended with {end.code}: {end.log}"
            )
        self.ends[:] = ends
        return RunDirectory.open(resolved.run_directory)


def figures(directory: RunDirectory) -> list[float]:
    """All numbers that a run has recorded: losses, gradient norms, evaluations, activations."""
    steps = directory.steps()
    assert [line["step"] for line in steps] == list(range(1, len(steps) + 1))
    found = [line[key] for line in steps for key in ("loss", "grad_norm", "targets")]
    found = [math.nan if value is None else value for value in found]
    for log in (directory.evaluations, directory.activations):
        lines = apply_rewinds(log.read()[0])
        assert lines
        found += [
            value
            for line in lines
            for key, value in sorted(line.items())
            if isinstance(value, int | float) and key not in ("generation", "seconds")
        ]
    return found


def largest_difference(one: RunDirectory, other: RunDirectory) -> float:
    """Infinite if a figure is missing, or is no number."""
    mine, others = figures(one), figures(other)
    if len(mine) != len(others) or not all(map(math.isfinite, mine)):
        return math.inf
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(mine, others, strict=True))
