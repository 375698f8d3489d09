"""Peak memory of real steps, by torch's own record of its allocations, and what plan predicts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.clock import SystemClock
from headway.launch.hardware import this_machine
from headway.plan.fleet import Fleet
from headway.plan.memory_peak import MemoryEstimate, memory_of
from headway.plan.workload import Layout, workload_of
from headway.spec.load import Begun, load_run
from headway.spec.resolve import Resolved, choose_micro, recomputed_blocks, resolve
from headway.state.run_directory import RunDirectory
from support.workers import PROCESSES

DEADLINE_SECONDS = 600.0
WARM_STEPS = 2
LENGTH = 128
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GATED = {
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 192,
    "intermediate_size": 512,
    "vocab_size": 3072,
    "max_position_embeddings": LENGTH,
}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {
        "n_layer": 4,
        "n_head": 6,
        "n_embd": 192,
        "n_positions": LENGTH,
        "vocab_size": 3072,
        **NO_DROPOUT,
    },
    "llama": GATED,
    "qwen3": {**GATED, "head_dim": 64},
    "bert": {
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "hidden_size": 192,
        "intermediate_size": 768,
        "vocab_size": 3072,
        "max_position_embeddings": LENGTH,
    },
}


@dataclass(frozen=True)
class MemoryCase:
    """A run whose peak is measured."""

    type: str
    precision: str = "bf16"
    micro: int = 4
    passes: int = 1
    """Micro-batches of a step, on each worker."""
    ranks: int = 1
    """Workers that the model is sharded over."""
    nodes: int = 1
    recomputes: bool | int = False
    """As `memory.checkpoint_activations` has it."""
    optimizer: str = "adamw"
    length: int = LENGTH
    config: Mapping[str, Any] = field(default_factory=dict)
    """Beyond the type's in MODELS."""
    teacher: Mapping[str, Any] | None = None
    loss_in_chunks: bool = True

    def __str__(self) -> str:
        words = [self.type, self.precision, f"{self.passes} x {self.micro} x {self.length}"]
        words += [f"{self.ranks} ranks"] if self.ranks > 1 else []
        words += [f"{self.nodes} nodes"] if self.nodes > 1 else []
        number = "" if self.recomputes is True else f"{self.recomputes} "
        words += [f"{number}recomputed"] if self.recomputes else []
        words += [self.optimizer] if self.optimizer != "adamw" else []
        words += ["distilled"] if self.teacher is not None else []
        words += [] if self.loss_in_chunks or self.teacher else ["plain loss"]
        words += [f"{key}={value}" for key, value in self.config.items()]
        return ", ".join(words)

    def run_file(self) -> str:
        """In JSON, which is YAML."""
        model = {"type": self.type, "config": {**MODELS[self.type], **self.config}}
        objective: Any = "masked" if self.type == "bert" else "causal"
        if self.teacher is not None:
            taught_by = {**model, "config": {**MODELS[self.type], **self.teacher}}
            objective = {"type": "distill", "teacher": taught_by}
        batch = self.micro * self.passes * self.ranks * self.nodes
        never = {"every": "1000000 steps"}
        run = {
            "version": 1,
            "name": "memory",
            "model": model,
            "objective": objective,
            "data": {"train": "set", "sequence_length": self.length},
            "batch": {"global": batch, "micro": self.micro},
            "train_for": "1000000 steps",
            "optimizer": {"type": self.optimizer},
            "schedule": {"type": "constant", "warmup": "0 steps"},
            "evaluation": never,
            "checkpoint": never,
            "precision": self.precision,
            "memory": {"checkpoint_activations": self.recomputes},
            "shard": "node" if self.ranks > 1 else "none",
            "resources": {"accelerators": f"cpu:{self.ranks}"},
            "threads": 1,
        }
        return json.dumps(run)


@dataclass(frozen=True)
class MeasuredPeaks:
    """Bytes of tensors, of the worker that has most."""

    step: int
    """While a step was computed, after two others."""
    saving: int
    """While the state was copied to be saved, and in the step after it, which keeps the copy."""


def predicted(case: MemoryCase, folder: Path) -> MemoryEstimate:
    (folder / "run.yaml").write_text(case.run_file())
    run = load_run(folder).run
    assert run.batch is not None
    micro = choose_micro(run, run.batch.global_.sequences(run.data.sequence_length))
    workload = workload_of(run, None, begun=Begun(micro, case.loss_in_chunks))
    assert workload is not None
    fleet = Fleet(None, case.ranks, case.nodes)
    return memory_of(workload, fleet, Layout(case.ranks, recomputed_blocks(case.recomputes)))


def measured(case: MemoryCase, folder: Path, train_set: Path) -> MeasuredPeaks:
    """Of a run in `folder` with real workers."""
    (folder / "run.yaml").write_text(case.run_file())
    resolved = resolve(
        load_run(folder),
        this_machine(),
        nodes=case.nodes,
        parameters=None,
        train_set=train_set,
        validation_sets={},
    )
    if not case.loss_in_chunks:
        resolved = resolved.model_copy(update={"loss_in_chunks": False})
    RunDirectory.create(resolved.run_directory, SystemClock()).write_spec(resolved)
    answers = PROCESSES.Queue()
    workers = [
        PROCESSES.Process(target=_measure, args=(resolved, rank, folder / "store", answers))
        for rank in range(resolved.num_workers)
    ]
    for worker in workers:
        worker.start()
    try:
        peaks = [answers.get(timeout=DEADLINE_SECONDS) for _ in workers]
    finally:
        for worker in workers:
            worker.kill()
    return MeasuredPeaks(max(step for step, _ in peaks), max(saving for _, saving in peaks))


def _measure(resolved: Resolved, rank: int, store: Path, answers: Any) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    from headway.train.trial import Trial

    torch.set_num_threads(1)
    # From the beginning: so that what is there before a step is counted as well.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        trial = Trial(resolved, rank=rank, store=store)
        for _ in range(WARM_STEPS):
            trial.advance()
        with record_function("measured step"):
            trial.advance()
        with record_function("measured save"):
            trial.run.saver.save_now(trial.run.training, None)
            trial.advance()
    answers.put(_peaks(profiler))
    answers.close()
    answers.join_thread()
    trial.close()


def _peaks(profiler: Any) -> tuple[int, int]:
    results = profiler.profiler.kineto_results
    spans = {
        event.name(): (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in results.events()
        if event.name().startswith("measured ")
    }
    allocations: list[tuple[int, int, int, bool]] = []
    for root in results.experimental_event_tree():
        _collect(root, False, allocations)
    peaks = dict.fromkeys(spans, 0)
    live: dict[int, int] = {}
    total = 0
    for when, address, size, is_of_collective in sorted(allocations):
        most = total
        if is_of_collective and size > 0:
            # gloo frees its copies in a thread that the profiler does not see: they are taken as
            # gone when the next tensor is made.
            most = total + size
        elif size > 0:
            total += size - live.pop(address, 0)
            live[address] = size
            most = total
        else:
            total -= live.pop(address, 0)
        for name, (start, end) in spans.items():
            if start <= when <= end:
                peaks[name] = max(peaks[name], most)
    return peaks["measured step"], peaks["measured save"]


def _collect(event: Any, is_of_collective: bool, into: list[tuple[int, int, int, bool]]) -> None:
    from torch._C._profiler import _EventType

    is_of_collective = is_of_collective or event.name.startswith(("c10d::", "gloo:"))
    if event.tag == _EventType.Allocation:
        fields = event.extra_fields
        into.append((event.start_time_ns, fields.ptr, fields.alloc_size, is_of_collective))
    for child in event.children:
        _collect(child, is_of_collective, into)
