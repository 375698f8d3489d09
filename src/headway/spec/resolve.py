"""Completes a run file for the hardware it runs on. After this nothing is `auto`.

Facts about the machine, the model's size and the data are passed in; this file only decides.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.errors import BadInput, SpecError
from headway.spec.data_config import DataSetConfig
from headway.spec.hub_names import model_reference
from headway.spec.load import Begun, Loaded
from headway.spec.located_yaml import PRESET
from headway.spec.quantities import LengthField, Sharding
from headway.spec.run_file import CheckpointConfig, ModelConfig, RunFile
from headway.spec.section import Count, Flag, Section
from headway.spec.stepped_interval import SteppedInterval, SteppedIntervalField

LARGE_MODEL_PARAMETERS = 10**9
"""From here on `auto` shards over the node and recomputes activations, where the device is not
known: fp32 weights, gradients and two Adam moments of 10^9 parameters are 16 GB, the memory of the
smallest devices for rent."""
ALL_BLOCKS = sys.maxsize
"""Stands for the number of blocks of any model."""
AUTO_MICRO_TOKENS = 8192
"""Tokens of a micro-batch under `micro: auto`, unless the search for the devices finds a faster
size at the run's first start: enough to keep a GPU busy, and few enough to fit."""


class Hardware(Section):
    """Hardware of a node."""

    cores: int
    """Number of CPU cores that this process may use."""
    cuda_devices: int
    """Number of CUDA devices."""
    device_name: str | None = None
    """Name of these devices, as the driver says it; None if it is not known, or if they differ."""
    memory_bytes: int | None = None
    """Memory for the processes of this node; None if it is not known."""
    unsupported_devices: tuple[str, ...] = ()
    """Accelerators that Headway cannot use."""
    torch_version: str | None = None
    """Version of the torch that workers would import; None if it is not known."""


@dataclass(frozen=True)
class AutoLayout:
    """What `auto` means on devices that are known."""

    shards: bool
    """Of `shard`: whether the model is sharded."""
    checkpoint_activations: bool | int
    """Of `memory.checkpoint_activations`."""
    shard_nodes: int = 1
    """Nodes that a copy of the model is sharded over."""
    micro: int | None = None
    """Sequences per micro-batch; None: about AUTO_MICRO_TOKENS."""


class WorkerPython(Section):
    """What packages of `code.requirements` are resolved for."""

    python: str
    """Version of Python, such as 3.12."""
    architecture: str
    """Processor architecture, as the kernel names it: x86_64 or aarch64."""
    torch: str | None = None
    """Version of torch; None if it is not known, or if no package needs it."""


class Resolved(Section):
    """The run with every setting resolved. Written to the run directory, read by the workers."""

    version: Literal[1] = 1
    """Version of this record."""
    name: str
    """Name of the run."""
    run: RunFile
    """Run file, with the files it extends and `--set` merged in."""
    folder: str
    """Folder of the run file, which relative paths start from."""
    run_directory: str
    """Folder or URL of the run directory."""
    train_set: str
    """Location of the prepared training set; empty if the run is a script."""
    validation_sets: dict[str, str]
    """Locations of the prepared validation sets, by name."""
    device: str
    """Type of device that workers compute on, as torch names it: cpu or cuda."""
    nodes: int
    """Number of nodes at the start."""
    ranks_per_node: int
    """Workers per node."""
    threads: int
    """CPU threads per worker."""
    global_batch: int
    """Sequences per step; 0 if the run is a script."""
    micro: int
    """Sequences per micro-batch; 0 if the run is a script."""
    sharded: bool
    """Whether a copy of the model is sharded over the ranks of a node, or of several."""
    shard_nodes: int | None = None
    """Nodes of one copy of the model, if they are several and the run file leaves that to Headway
    (`auto`)."""
    checkpoint_activations: Flag | Count
    """Whether blocks are recomputed in the backward pass, or how many, counted from the first."""
    loss_in_chunks: bool = False
    """Whether the loss is computed in chunks of rows, where the model's output head is linear.
    False: over the logits of whole micro-batches, as by all runs that were started without this
    key."""
    checkpoint_every: SteppedIntervalField | None = None
    """Interval of checkpoints, if the run file leaves it to Headway (`auto`)."""
    code_digest: str | None = None
    """Digest of the files of `code.path`, as they were at the launch."""
    script_digest: str | None = None
    """Digest of those that decide what a script does: with other ones, it starts again after its
    end."""
    packages: str | None = None
    """Folder with the packages of `code.requirements`, for the Python path of workers."""
    packages_for: WorkerPython | None = None
    """What they were resolved for."""
    first_length: LengthField | None = None
    """`train_for` at the first start, by which the shares of a mixture were decided. None: the run
    was started without this key."""
    hub_commits: dict[str, str] | None = None
    """Commits of what the run file names on the hub, such as `models/gpt2`. None: not known when
    the run was first started."""

    @classmethod
    def stored(cls, content: str | bytes) -> Resolved:
        """Return a run that any Headway has written. Keys that this one does not know are passed
        over: what decides the weights is in the identity that each checkpoint names."""
        return cls.model_validate_json(content, extra="ignore")

    def revision_of(self, model: ModelConfig) -> str | None:
        """Revision of a model on the hub: its commit, if that is known."""
        named = model_reference(model)
        commits = self.hub_commits or {}
        return model.revision if named is None else commits.get(named.id, model.revision)

    @property
    def save_every(self) -> SteppedInterval:
        """Interval of checkpoints: as the run file says, or as it was decided for it."""
        every = self.run.checkpoint.every
        default = CheckpointConfig().every
        assert default != "auto"
        return (self.checkpoint_every or default) if every == "auto" else every

    @property
    def is_script(self) -> bool:
        """Whether workers run the user's command: nothing is known of what it trains."""
        return self.run.command is not None

    @property
    def num_workers(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def shard(self) -> Sharding:
        """What a copy of the model is divided over: as the run file says, or as it was decided for
        it where that is several nodes."""
        chosen = self.shard_nodes
        return self.run.shard if chosen is None else Sharding("nodes", chosen)

    @property
    def domain_ranks(self) -> int:
        """Number of workers in a domain: they hold one copy of the model, or are those of a node.
        In a live run they are lost together, and the others continue."""
        if self.is_live:
            return self.ranks_per_node if self.sharded else 1
        return self.ranks_per_node * max(1, self.shard.num_nodes)

    @property
    def node_ranks(self) -> int:
        """Number of workers that the coordinator admits together: those of a node, unless each is
        a domain of its own."""
        return min(self.ranks_per_node, self.domain_ranks)

    @property
    def copy_nodes(self) -> int | None:
        """Nodes that one copy of the model is sharded over, 0: all; None if it is not sharded."""
        return self.shard.num_nodes if self.sharded else None

    @property
    def copy_ranks(self) -> int:
        """Workers that one copy of the model is sharded over; 1 if it is not sharded."""
        if self.copy_nodes is None:
            return 1
        return self.ranks_per_node * (self.copy_nodes or self.nodes)

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.run.data.sequence_length

    @property
    def is_live(self) -> bool:
        """Whether workers can join and leave while the run continues."""
        if self.shard.is_wide or self.is_script:
            return False
        num_copies = self.nodes if self.sharded else self.num_workers
        auto = num_copies > 1 and self.device == "cpu"
        return self.run.elastic == "live" or (self.run.elastic == "auto" and auto)

    @property
    def mode(self) -> str:
        """How it meets a change of its nodes, for people."""
        return "script" if self.is_script else "live" if self.is_live else "restart"

    @property
    def has_coordinator(self) -> bool:
        """Whether a coordinator decides who is in the run. One node that restarts as a whole needs
        none on this machine, unless it runs a script: there is one kind of script worker."""
        return self.is_live or self.is_script or self.nodes > 1


def run_name(loaded: Loaded) -> str:
    """The run's name: from the run file, else from its folder."""
    name = name_or_empty(loaded.run, loaded.folder)
    if not name:
        raise BadInput(
            f"the run has no name, and the folder {loaded.folder} yields none",
            "add name: to run.yaml",
        )
    return name


def name_or_empty(run: RunFile, folder: Path) -> str:
    """Empty: neither has one."""
    if run.name is not None:
        return run.name
    return re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-")[:40].strip("-")


def run_directory(loaded: Loaded) -> str:
    """`runs/NAME` beside the run file, or below `storage`: a folder or a URL."""
    return f"{runs_location(loaded)}/{run_name(loaded)}"


def runs_location(loaded: Loaded) -> str:
    storage = loaded.run.storage.rstrip("/")
    return storage if "://" in storage else str(loaded.folder / storage)


EXAMPLES = {
    "model": "model: {type: gpt2, config: {n_layer: 6, n_head: 6, n_embd: 384}}, or a script of "
    "your own: command: [python, train.py]",
    "batch": "batch: {global: 64, micro: auto}",
    "data.train": "data: {train: {sources: [text.txt], tokenizer: gpt2}}",
}
"""Of keys that only a preset may leave out."""


def require_complete(loaded: Loaded) -> None:
    """Raises if a key is missing that only a preset may leave out."""
    if loaded.run.command is not None:
        return
    for key in ("model", "batch"):
        if getattr(loaded.run, key) is None:
            raise _lacks(loaded, key)
    wanted = loaded.run.resources.accelerators
    if wanted is not None and not wanted.is_cpu:
        _refuse_live_gpus(loaded)
    if loaded.run.shard.is_wide and loaded.run.elastic == "live":
        raise SpecError(
            f"shard: {loaded.run.shard} is not supported with elastic: live: a copy of the model "
            "on several nodes is lost with any of them",
            str(loaded.located.mark(("elastic",))),
            "--set elastic=restart restarts all nodes from the newest checkpoint after a loss",
        )
    if loaded.run.data.train is None:
        raise _lacks(loaded, "data.train")
    if loaded.run.data.train.is_streamed and loaded.run.train_for.unit == "epochs":
        raise SpecError(
            "data.train.stream: the length of an epoch is not known yet",
            str(loaded.located.mark(("data", "train"))),
            "give train_for in tokens or steps, for example train_for: 10B tokens",
        )
    if _lacks_tokenizer(loaded.run.data.train):
        raise SpecError(
            "data.train: sources need a tokenizer",
            str(loaded.located.mark(("data", "train"))),
            "add tokenizer: gpt2, a folder, or {train: {vocab: 8192}}",
        )


def _refuse_live_gpus(loaded: Loaded) -> None:
    """Membership changes close gloo's connections; there is no such support for NCCL."""
    if loaded.run.elastic == "live":
        raise SpecError(
            "elastic: live is not supported with GPUs",
            str(loaded.located.mark(("elastic",))),
            "--set elastic=restart restarts all nodes from the newest checkpoint after a loss",
        )


def _lacks_tokenizer(train: DataSetConfig) -> bool:
    """Whether no tokenizer is given. In a mixture the others use the first member's."""
    if train.tokenizer is not None:
        return False
    first = next(iter(train.mixture.values())) if train.mixture else train
    return first.sources is not None and first.tokenizer is None


def _lacks(loaded: Loaded, key: str) -> SpecError:
    mark = loaded.located.mark(tuple(key.split("."))[:-1])
    # The user cannot edit a preset.
    where = str(loaded.located.mark(()) if mark.file.endswith(PRESET) else mark)
    return SpecError(f"the run file has no {key}", where, f"for example {EXAMPLES[key]}")


def require_whole_copies(loaded: Loaded, nodes: int) -> None:
    """Raises if a number of nodes is not a multiple of those that hold one copy of the model."""
    shard = loaded.run.shard
    if problem := copies_problem(shard, nodes):
        where = str(loaded.located.mark(("shard",)))
        hint = f"--nodes {whole_copies(shard, nodes)}, or --set shard=all"
        raise SpecError(problem, where, hint)


def copies_problem(shard: Sharding, nodes: int) -> str | None:
    """Why this number of nodes cannot be divided into copies of the model."""
    if shard.unit != "nodes" or nodes % shard.num_nodes == 0:
        return None
    several = "1 node is" if nodes == 1 else f"{nodes} nodes are"
    return f"shard: {shard}: {several} not a multiple of {shard.num_nodes}"


def whole_copies(shard: Sharding, nodes: int) -> int:
    """The next lower number of nodes that can be, or that of one copy."""
    return max(1, nodes // shard.num_nodes) * shard.num_nodes


def choose_micro(run: RunFile, global_batch: int, auto: int | None = None) -> int:
    """Sequences per micro-batch: as written or, under `auto`, as it was decided for the devices or
    else about AUTO_MICRO_TOKENS; never more than the batch has."""
    assert run.batch is not None
    if run.batch.micro == "auto" and auto is not None:
        return auto
    if run.batch.micro == "auto":
        return min(max(1, AUTO_MICRO_TOKENS // run.data.sequence_length), global_batch)
    return min(run.batch.micro, global_batch)


def recomputed_blocks(written: bool | int) -> int:
    """Number of blocks that are recomputed, counted from the first one, for a value of
    `memory.checkpoint_activations`. It may be more than the model has."""
    return ALL_BLOCKS if written is True else int(written)


def computes_loss_in_chunks(run: RunFile) -> bool:
    """Whether a new run computes its loss in chunks. A loss or a model of the user's own and a
    distillation need all logits. In fp16 gradients are scaled before they are rounded, and in
    chunks they would be rounded before."""
    is_own = run.objective.call is not None or (
        run.model is not None and run.model.call is not None
    )
    return not is_own and run.objective.type != "distill" and run.precision != "fp16"


def begun_of(resolved: Resolved) -> Begun:
    return Begun(resolved.micro, resolved.loss_in_chunks, resolved.first_length)


def devices_of(loaded: Loaded, machine: Hardware, nodes: int) -> tuple[int, bool]:
    """Workers per node, and whether they run on the CPU. Raises if the hardware does not have the
    devices that the run asks for."""
    wanted, present = loaded.run.resources.accelerators, machine.cuda_devices
    if wanted is not None and wanted.is_cpu:
        return wanted.count, True
    if wanted is not None and wanted.count > present:
        has = "no GPU" if not present else "1 GPU" if present == 1 else f"{present} GPUs"
        possible = f"{wanted.kind}:{present}" if present else "cpu:1"
        where = f"GPU{'s' if present > 1 else ''} of this machine" if present else "CPU"
        raise SpecError(
            f"resources.accelerators: {wanted} requested, but this machine has {has}",
            str(loaded.located.mark(("resources", "accelerators"))),
            f"to run it on the {where}: --set resources.accelerators={possible}",
        )
    ranks = wanted.count if wanted is not None else present
    if nodes > 1 and nodes * ranks > present:
        raise BadInput(
            f"{nodes} nodes with {ranks} devices each need {nodes * ranks}, but this machine has "
            f"{present}",
            "to simulate the nodes on the CPU: --set resources.accelerators=cpu:1",
        )
    if present:
        _refuse_live_gpus(loaded)
    return max(ranks, 1), present == 0


def resolve(
    loaded: Loaded,
    machine: Hardware,
    *,
    nodes: int,
    parameters: int | None,
    train_set: str | Path,
    validation_sets: Mapping[str, str | Path],
    auto: AutoLayout | None = None,
) -> Resolved:
    """`parameters` is the model's size, if it is known without loading the model; without `auto` it
    decides what `auto` means."""
    run = loaded.run
    require_complete(loaded)
    ranks, on_cpu = devices_of(loaded, machine, nodes)
    if run.command is not None:
        return _resolved_script(loaded, machine, nodes, ranks, on_cpu)
    assert run.batch is not None
    if on_cpu and run.precision == "fp16":
        # CPUs emulate half-precision matrix products: slower by orders of magnitude.
        raise SpecError(
            "precision: fp16 needs a GPU",
            str(loaded.located.mark(("precision",))),
            "--set precision=bf16",
        )
    offloads = run.memory.offload != "none"
    if on_cpu and offloads:
        raise SpecError(
            "memory.offload: activations needs a GPU: on the CPU they are in the host's memory "
            "already",
            str(loaded.located.mark(("memory", "offload"))),
            "--set memory.offload=none",
        )
    if auto is None or on_cpu:
        large = parameters is not None and parameters >= LARGE_MODEL_PARAMETERS
        auto = AutoLayout(shards=large, checkpoint_activations=large or offloads)
    begun, global_batch = loaded.begun, run.batch.global_.sequences(run.data.sequence_length)
    recompute, is_auto = run.memory.checkpoint_activations, run.shard.unit == "auto"
    is_wide = is_auto and auto.shard_nodes > 1
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
        threads=_threads(run, machine, nodes * ranks),
        global_batch=global_batch,
        micro=choose_micro(run, global_batch, auto.micro if begun is None else begun.micro),
        sharded=run.shard.is_wide
        or is_wide
        or (ranks > 1 and (run.shard.unit == "node" or (is_auto and auto.shards))),
        shard_nodes=auto.shard_nodes if is_wide else None,
        checkpoint_activations=auto.checkpoint_activations if recompute == "auto" else recompute,
        loss_in_chunks=begun.loss_in_chunks if begun is not None else computes_loss_in_chunks(run),
        first_length=run.train_for if begun is None else begun.length,
        hub_commits=None if loaded.hub_commits is None else dict(loaded.hub_commits),
    )


def _resolved_script(
    loaded: Loaded, machine: Hardware, nodes: int, ranks: int, on_cpu: bool
) -> Resolved:
    return Resolved(
        name=run_name(loaded),
        run=loaded.run,
        folder=str(loaded.folder),
        run_directory=run_directory(loaded),
        train_set="",
        validation_sets={},
        device="cpu" if on_cpu else "cuda",
        nodes=nodes,
        ranks_per_node=ranks,
        threads=_threads(loaded.run, machine, nodes * ranks),
        global_batch=0,
        micro=0,
        sharded=False,
        checkpoint_activations=False,
    )


def _threads(run: RunFile, machine: Hardware, num_workers: int) -> int:
    return max(1, machine.cores // num_workers) if run.threads == "auto" else run.threads
