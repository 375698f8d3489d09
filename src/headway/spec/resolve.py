"""A run file completed for the place it runs on. After this nothing is `auto` any more.

What only the machine, the model's size or the data can tell is passed in; this file decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from headway.errors import BadInput, SpecError
from headway.spec.load import PRESET, Loaded
from headway.spec.run import DataSet, RunFile, Section

LARGE_MODEL_PARAMETERS = 10**9
"""From here on `auto` shards over the node and recomputes activations: fp32 weights, gradients and
two Adam moments of 10^9 parameters are 16 GB, about the smallest device people rent."""
AUTO_MICRO_TOKENS = 8192
"""Tokens of a slice under `micro: auto`: about what keeps a GPU's matrix units busy, and little
enough to fit one. It depends on what the run is and not on where it runs, since the cut into slices
is part of the run's identity."""


class Machine(Section):
    """What a node has."""

    cores: int
    """CPU cores this process may use."""
    cuda_devices: int
    """CUDA devices."""


class Resolved(Section):
    """The run, with every choice made. Written to the run directory, read by the workers."""

    version: Literal[1] = 1
    """Version of this record."""
    name: str
    """Name of the run."""
    run: RunFile
    """The run file with what it extends and `--set` merged in."""
    folder: str
    """Folder of the run file: relative paths start here."""
    run_directory: str
    """Where everything the run writes goes."""
    train_set: str
    """Folder of the prepared training set."""
    validation_sets: dict[str, str]
    """Folders of the prepared validation sets."""
    device: Literal["cpu", "cuda"]
    """What workers compute on."""
    nodes: int
    """Nodes at the start."""
    ranks_per_node: int
    """Worker processes of a node."""
    threads: int
    """CPU threads of a worker."""
    global_batch: int
    """Sequences of a step."""
    micro: int
    """Sequences of a slice."""
    sharded: bool
    """Whether a node's ranks hold one copy of the model together."""
    checkpoint_activations: bool
    """Whether blocks are recomputed in the backward pass."""

    @property
    def num_workers(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def domain_ranks(self) -> int:
        """Workers that are lost together, where the others go on."""
        return self.ranks_per_node if self.sharded else 1

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.run.data.sequence_length

    @property
    def is_live(self) -> bool:
        """Whether workers come and go while the run goes on."""
        several = self.num_workers > self.domain_ranks
        auto = several and self.device == "cpu"
        return self.run.elastic == "live" or (self.run.elastic == "auto" and auto)


def run_name(loaded: Loaded) -> str:
    """The run's name: as written, else from the folder's."""
    if loaded.run.name is not None:
        return loaded.run.name
    name = re.sub(r"[^a-z0-9]+", "-", loaded.folder.name.lower()).strip("-")[:40].strip("-")
    if not name:
        raise BadInput(
            f"the run has no name, and none can be made of {loaded.folder}", "add name: to run.yaml"
        )
    return name


def run_directory(loaded: Loaded) -> str:
    """`runs/NAME` beside the run file, or as `storage` says: a folder or a URL."""
    return f"{runs_location(loaded)}/{run_name(loaded)}"


def runs_location(loaded: Loaded) -> str:
    storage = loaded.run.storage.rstrip("/")
    return storage if "://" in storage else str(loaded.folder / storage)


def require_complete(loaded: Loaded) -> None:
    """A preset may leave these out; a run may not."""
    for key in ("model", "batch"):
        if getattr(loaded.run, key) is None:
            raise _lacks(loaded, key)
    wanted = loaded.run.resources.accelerators
    if wanted is not None and wanted.kind.lower() != "cpu":
        _refuse_live_gpus(loaded)
    if loaded.run.data.train is None:
        raise _lacks(loaded, "data.train")
    if loaded.run.data.train.stream and loaded.run.train_for.unit == "epochs":
        raise SpecError(
            "data.train.stream: nobody knows yet how long an epoch is",
            str(loaded.located.mark(("data", "train"))),
            "train_for: so many tokens or steps",
        )
    if _lacks_tokenizer(loaded.run.data.train):
        raise SpecError(
            "data.train: sources need a tokenizer",
            str(loaded.located.mark(("data", "train"))),
            "tokenizer: gpt2, a folder, or {train: {vocab: 8192}}",
        )


def _refuse_live_gpus(loaded: Loaded) -> None:
    """Members come and go by shutting gloo's connections; nothing of that was made for NCCL."""
    if loaded.run.elastic == "live":
        raise SpecError(
            "elastic: live does not work with GPUs: its first collective would fail",
            str(loaded.located.mark(("elastic",))),
            "--set elastic=restart: after a loss all start again from the newest checkpoint",
        )


def _lacks_tokenizer(train: DataSet) -> bool:
    """Whether nobody says how to tokenise. In a mixture the first member's serves the others."""
    if train.tokenizer is not None:
        return False
    first = next(iter(train.mixture.values())) if train.mixture else train
    return first.sources is not None and first.tokenizer is None


def _lacks(loaded: Loaded, key: str) -> SpecError:
    mark = loaded.located.mark(tuple(key.split("."))[:-1])
    # A preset is not where the user can mend it.
    where = str(loaded.located.mark(()) if mark.file.endswith(PRESET) else mark)
    hint = "data: {train: {sources: [text.txt], tokenizer: gpt2}}" if key == "data.train" else None
    return SpecError(f"the run lacks {key}", where, hint)


def choose_micro(run: RunFile, global_batch: int) -> int:
    """Sequences of a slice: as written or, under `auto`, as many as make a slice worth its while;
    never more than the batch has."""
    assert run.batch is not None
    if run.batch.micro == "auto":
        return min(max(1, AUTO_MICRO_TOKENS // run.data.sequence_length), global_batch)
    return min(run.batch.micro, global_batch)


def devices_of(loaded: Loaded, machine: Machine, nodes: int) -> tuple[int, bool]:
    """Workers of a node, and whether they are on the CPU. Raises if the machine has not what the
    run asks for."""
    wanted, present = loaded.run.resources.accelerators, machine.cuda_devices
    if wanted is not None and wanted.kind.lower() == "cpu":
        return wanted.count, True
    if wanted is not None and wanted.count > present:
        has = "no GPU" if not present else "1 GPU" if present == 1 else f"{present} GPUs"
        possible = f"{wanted.kind}:{present}" if present else "cpu:1"
        where = "GPUs there are" if present > 1 else "GPU there is" if present else "CPU"
        raise SpecError(
            f"resources.accelerators: {wanted} requested, but this machine has {has}",
            str(loaded.located.mark(("resources", "accelerators"))),
            f"--set resources.accelerators={possible} runs it on the {where}",
        )
    ranks = wanted.count if wanted is not None else present
    if nodes > 1 and nodes * ranks > present:
        raise BadInput(
            f"{nodes} nodes of {ranks} devices need {nodes * ranks}; this machine has {present}",
            "play several nodes with fewer accelerators each, or on the CPU: "
            "--set resources.accelerators=cpu:1",
        )
    if present:
        _refuse_live_gpus(loaded)
    return max(ranks, 1), present == 0


def resolve(
    loaded: Loaded,
    machine: Machine,
    *,
    nodes: int,
    parameters: int | None,
    train_set: str | Path,
    validation_sets: Mapping[str, str | Path],
) -> Resolved:
    """`parameters` is the model's size where it is known without loading it."""
    run = loaded.run
    require_complete(loaded)
    assert run.batch is not None
    ranks, on_cpu = devices_of(loaded, machine, nodes)
    if on_cpu and run.precision == "fp16":
        # Half-precision matrix products on CPUs are emulated and slow by orders of magnitude.
        raise SpecError(
            "precision: fp16 needs a GPU",
            str(loaded.located.mark(("precision",))),
            "use bf16 or fp32 on the CPU",
        )
    large = parameters is not None and parameters >= LARGE_MODEL_PARAMETERS
    global_batch = run.batch.global_.sequences(run.data.sequence_length)
    threads = run.threads
    recompute = run.memory.checkpoint_activations
    return Resolved(
        name=run_name(loaded),
        run=run,
        folder=str(loaded.folder),
        run_directory=run_directory(loaded),
        train_set=str(train_set),
        validation_sets={name: str(folder) for name, folder in validation_sets.items()},
        device="cpu" if on_cpu else "cuda",
        nodes=nodes,
        ranks_per_node=ranks,
        threads=max(1, machine.cores // (nodes * ranks)) if threads == "auto" else threads,
        global_batch=global_batch,
        micro=choose_micro(run, global_batch),
        sharded=ranks > 1 and (run.shard == "node" or (run.shard == "auto" and large)),
        checkpoint_activations=large if recompute == "auto" else recompute,
    )
