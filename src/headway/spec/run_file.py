"""The run file: what to train. Every key, its type, its default, and a line on what it does.

The reference page and the JSON Schema are generated from this file and data_config.py (`make
generate`), so a docstring here is documentation.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from headway.spec.data_config import DataConfig
from headway.spec.quantities import (
    AcceleratorsField,
    BatchSizeField,
    Interval,
    IntervalField,
    Length,
    LengthField,
    NodeRange,
    NodeRangeField,
    ShardField,
    Sharding,
    Warmup,
    WarmupField,
)
from headway.spec.script_keys import as_list
from headway.spec.section import (
    NAME_PATTERN,
    VARIABLE_PATTERN,
    Call,
    Count,
    Flag,
    Section,
    Shorthand,
    Suggesting,
    exactly_one,
)
from headway.spec.stepped_interval import (
    AutoIntervalField,
    SteppedInterval,
    SteppedIntervalField,
)


class ModelConfig(Section):
    """The network: `{from: gpt2}`, `{type: llama, config: {...}}` or `{call: "mine:build"}`."""

    from_: str | None = Field(default=None, alias="from")
    """Weights to start from: a hub name, a folder in the HF format, or `RUN@step`."""
    revision: str | None = None
    """With a hub name: commit, tag or branch. The first start finds out the commit, and the run
    keeps it."""
    type: str | None = None
    """Model type of transformers, to start from scratch (`gpt2`, `llama`, `bert`, `qwen3`, ...)."""
    call: Call | None = None
    """Function of your own, `module:function`, that returns a module, or a module and its list of
    blocks."""
    config: dict[str, Any] = {}
    """Fields of the transformers config, with `type` (`vocab_size` defaults to the tokenizer's).
    Fields to override, with `from`. Keyword arguments, with `call`."""

    @model_validator(mode="after")
    def _one_origin(self) -> ModelConfig:
        exactly_one(self, {"from_": "from", "type": "type", "call": "call"})
        if self.revision is not None and (self.from_ is None or "@" in self.from_):
            raise ValueError("`revision` needs `from` with a name on the hub")
        return self


class DistillWeightsConfig(Section):
    """Weights of the three losses of distillation."""

    soft: float = Field(default=5.0, ge=0)
    """Cross-entropy with the teacher's softened distribution, times temperature squared."""
    hard: float = Field(default=2.0, ge=0)
    """The ordinary language-modelling loss."""
    hidden: float = Field(default=1.0, ge=0)
    """One minus the cosine between the last hidden states (needs equal widths)."""


class ObjectiveConfig(Section):
    """What is minimised: `causal`, `masked`, `{type: distill, ...}` or `{call: "mine:loss"}`."""

    type: Literal["causal", "masked", "distill"] | None = None
    """Built-in objective. `causal`: next token. `masked`: masked tokens, as in BERT. `distill`:
    causal, with a teacher."""
    call: Call | None = None
    """Loss of your own, `module:function`: `loss(model, batch) -> Loss(sum, count, extras)`."""
    teacher: Annotated[ModelConfig, Shorthand("from")] | None = None
    """distill: the teacher, written like `model`, or just its name."""
    temperature: float = Field(default=2.0, gt=0)
    """distill: temperature that softens both distributions."""
    weights: DistillWeightsConfig = DistillWeightsConfig()
    """distill: weights of the three losses."""
    mask_probability: float = Field(default=0.15, gt=0, lt=1)
    """masked: fraction of the tokens to predict."""

    @model_validator(mode="after")
    def _consistent(self) -> ObjectiveConfig:
        exactly_one(self, {"type": "type", "call": "call"})
        if (self.type == "distill") != (self.teacher is not None):
            raise ValueError("`teacher` and `type: distill` must be given together")
        return self


class BatchConfig(Section):
    """Batch sizes. The global batch is the same at any number of nodes, divisible or not."""

    global_: BatchSizeField = Field(alias="global")
    """Sequences per step over all workers, or tokens: `0.5M tokens`."""
    micro: int | Literal["auto"] = Field(default="auto")
    """Sequences per micro-batch: the most a device computes at once. `auto`: at the first start, on
    GPUs that Headway knows, as the fastest way that fits has it; elsewhere about 8192 tokens. Later
    starts keep it."""

    @field_validator("micro")
    @classmethod
    def _positive(cls, micro: int | str) -> int | str:
        if isinstance(micro, int) and micro < 1:
            raise Suggesting(
                f"{micro} is not a positive number of sequences", "write micro: auto, or 1 or more"
            )
        return micro


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """Optimizer and its settings."""

    type: Literal["adamw", "lamb"] = "adamw"
    """Algorithm: `adamw` (fused where torch supports it) or `lamb` (for large batches)."""
    lr: float = Field(default=3e-4, gt=0)
    """Peak learning rate."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay rates of the running mean and of the running square."""
    eps: float = Field(default=1e-8, gt=0)
    """Constant added to the denominator."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Weight decay of matrices; biases and norms have none."""
    max_grad_norm: float | Literal["off"] = 1.0
    """Global norm that gradients are clipped to, or `off`."""

    @field_validator("max_grad_norm")
    @classmethod
    def _positive(cls, norm: float | str) -> float | str:
        if not isinstance(norm, str) and norm <= 0:
            raise ValueError("a norm must be above zero; `off` disables clipping")
        return norm


class ScheduleConfig(Section):
    """Learning rate over the run."""

    type: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """Shape of the schedule. `wsd`: warm up, hold, then decay linearly over the last `decay`."""
    warmup: WarmupField = Warmup(0.01, "share")
    """Length of the linear rise from zero: `5%` of the run, or `2000 steps`."""
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """Final learning rate, as a fraction of the peak."""
    decay: WarmupField = Warmup(0.1, "share")
    """wsd: length of the final decay."""


class MemoryConfig(Section):
    """Options that trade time for memory."""

    checkpoint_activations: Flag | Count | Literal["auto"] = "auto"
    """Blocks that are recomputed in the backward pass: `true` (all), `false` (none), or a number of
    them, counted from the first block. `auto`: on GPUs that Headway knows, as few as
    fit; elsewhere all from a billion parameters on."""
    offload: Literal["none", "activations"] = "none"
    """On GPUs, what waits for the backward pass in the host's memory. `activations`: the inputs of
    the blocks that are recomputed, which are all unless `checkpoint_activations` is a number."""
    compile: Flag = False
    """Whether every block is compiled with torch.compile."""

    @field_validator("offload", mode="before")
    @classmethod
    def _only_activations(cls, offload: Any) -> Any:
        if offload in ("optimizer", "parameters"):
            raise Suggesting(
                f"the {offload} cannot be offloaded: sharding divides them over devices instead",
                "write shard: node, or shard: all and more nodes",
            )
        return offload

    @model_validator(mode="after")
    def _recomputes_and_is_not_compiled(self) -> MemoryConfig:
        if self.offload == "none":
            return self
        if self.checkpoint_activations is False:
            raise ValueError(
                "`offload: activations` moves the inputs of blocks that are recomputed: leave "
                "`checkpoint_activations: false` out"
            )
        if self.compile:
            raise ValueError("`offload: activations` has not been tried with `compile: true`")
        return self


class KeepConfig(Section):
    """Retention of checkpoints."""

    last: int = Field(default=3, ge=1)
    """Number of newest checkpoints to keep."""
    best: int = Field(default=1, ge=0)
    """Number of best checkpoints to keep, by the mean loss of the validation sets. Only steps that
    were evaluated count: choose `checkpoint.every` and `evaluation.every` so that they coincide."""
    every: SteppedIntervalField | None = None
    """Interval of the checkpoints that are kept forever, in steps: `10k steps`, or
    `[10 steps until 100, 50 steps until 2k, 1k steps]`."""

    @model_validator(mode="after")
    def _by_steps(self) -> KeepConfig:
        if self.every is not None and not self.every.is_by_steps:
            raise ValueError("`every` must be in steps here, for example 10k steps")
        return self


class CheckpointConfig(Section):
    """When checkpoints are saved. One is always saved at the end and on Ctrl-C."""

    every: AutoIntervalField = SteppedInterval((), Interval(600, "seconds"))
    """Steps or time between two checkpoints; a list is one interval after the other:
    `[10 steps until 100, 10min]`. `auto`: the time that loses least, from the cost of a save and
    how often nodes are interrupted; decided at each start."""
    keep: KeepConfig = KeepConfig()
    """Retention of checkpoints."""


class MetricsConfig(Section):
    """Metrics of your own."""

    call: Call
    """Function of your own, `module:function`: `metrics(model, batch) -> {name: (sum, count)}`.
    Sums and counts are added up over the whole set, then divided."""


Prompt = Annotated[str, Field(max_length=1000)]


class EvaluationConfig(Section):
    """Evaluation on the validation sets; one is always done at the end of the run."""

    every: IntervalField = Interval(500, "steps")
    """Steps between two evaluations."""
    sequences: Count | Literal["all"] = 512
    """Most sequences of each set: a sample fixed by the seed, the same every time."""
    metrics: MetricsConfig | None = None
    """Metrics besides the loss."""
    prompts: list[Prompt] = Field(default=[], max_length=8)
    """Texts that the model continues at each evaluation, by the run's seed every time; at most 8.
    Causal models only."""
    sample_tokens: int = Field(default=64, ge=1, le=256)
    """Most new tokens of each continuation: at most 256, and half of `data.sequence_length`."""

    @model_validator(mode="after")
    def _by_steps(self) -> EvaluationConfig:
        # By time, evaluations would fall on other steps in every run: no two could be compared.
        if self.every.unit != "steps":
            raise ValueError("`every` must be in steps here, for example 500 steps")
        return self


class ActivationsConfig(Section):
    """Statistics of every block's output, from an extra forward pass over one micro-batch."""

    every: IntervalField = Interval(100, "steps")
    """Steps between two such passes."""

    @model_validator(mode="after")
    def _by_steps(self) -> ActivationsConfig:
        # All workers of a shard group take part, and no two clocks are equal.
        if self.every.unit != "steps":
            raise ValueError("`every` must be in steps here, for example 100 steps")
        return self


class WatchConfig(Section):
    """What to record besides losses. Nothing here changes training."""

    activations: ActivationsConfig | None = None
    """Mean, standard deviation, largest absolute value and fraction of zeros of each block's
    output; smallest and largest score of its attention, and how spread out it is; `{}`: every 100
    steps. Left out: none."""


class GuardConfig(Section):
    """Protection against loss spikes. The data of a skipped step is consumed and recorded, but the
    weights are not updated."""

    loss_spike: Annotated[float, Field(gt=0)] | Literal["off"] = 6.0
    """Threshold for skipping a step: its loss, in standard deviations above the mean of the last
    128 steps. A loss that stays high without rising is accepted after 7 to 9 skipped steps."""
    stop_after: int = Field(default=10, ge=1)
    """Number of consecutive skipped steps after which the run fails."""


class CodeConfig(Section):
    """Code of your own: that of the `call`s, or the script of `command`."""

    path: str = "."
    """Folder that is added to the Python path of every worker; left out: that of the run file. All
    its files are copied to a target, but hidden ones and those that its `.headwayignore` names; a
    digest of them is recorded."""
    requirements: str | None = None
    """Requirements file of packages that workers have besides those of their image: names and
    versions, which Headway locks at a start, or a lock with hashes. Only wheels are installed, and
    nothing that replaces torch or Headway."""


class ResourcesConfig(Section):
    """Nodes and devices of the run. On this machine, `run --nodes N` simulates N nodes."""

    accelerators: AcceleratorsField | None = None
    """Device and number of devices per node: `H100:8`; a machine with fewer is refused. `cpu:2`
    runs two workers per node on the CPU. A list is a preference: with `[H100:8, A100-80:8]` all
    nodes have H100s; on a target that has too few of them, all have A100s. Left out: the devices of
    the machine."""
    nodes: NodeRangeField = NodeRange(1, 1)
    """On a target: number of nodes, or the range of an elastic run: `2..16`."""
    spot: Literal["all", "above_min", "none"] = "none"
    """On a target: nodes that may be spot machines."""

    @property
    def on_demand_nodes(self) -> int | None:
        """Number of nodes that are kept off spot machines; None: all of them."""
        return {"all": 0, "above_min": self.nodes.minimum, "none": None}[self.spot]


class BudgetConfig(Section):
    """Limits at which the run saves a checkpoint and stops."""

    usd: float | None = Field(default=None, gt=0)
    """On a target with `prices` for the run's nodes: dollars that its nodes cost, over all
    restarts."""
    hours: float | None = Field(default=None, gt=0)
    """On a target: hours of wall-clock time over all restarts."""


# A number is text as it is written (located_yaml.py), and editors need not complain about it.
Argument = Annotated[
    str,
    Field(max_length=4096),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]}),
]


class RunFile(Section):
    """A run file: what to train."""

    version: Literal[1]
    """Version of this format."""
    name: str | None = Field(default=None, pattern=NAME_PATTERN)
    """Name of the run and its folder. Left out: the name of the folder the file is in."""
    extends: str | None = None
    """Preset or another run file, whose keys this file overrides."""
    command: list[Argument] | None = Field(default=None, min_length=1)
    """Training script of your own, instead of a model: `[python, train.py, --out,
    $HEADWAY_OUTPUT]`. One process per device runs it in a copy of `code.path`, with torchrun's
    variables; when a node is lost, all start again."""
    model: ModelConfig | None = None
    """Network."""
    objective: Annotated[ObjectiveConfig, Shorthand("type")] = ObjectiveConfig(type="causal")
    """Objective that is minimised."""
    data: DataConfig = DataConfig()
    """Training and validation sets."""
    batch: BatchConfig | None = None
    """Global batch and micro-batches."""
    train_for: LengthField = Length(1, "epochs")
    """Length of the run: `10B tokens`, `500 steps` or `3 epochs`."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer and its settings."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Learning rate over the run."""
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    """Precision of the computation; weights and optimizer state are kept in fp32."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the data order, the initial weights, dropout and masking."""
    threads: Count | Literal["auto"] = "auto"
    """CPU threads per worker; results are bit-identical only with the same number. `auto`: the
    machine's cores divided by its workers."""
    shard: ShardField = Sharding("auto")
    """Sharding of weights, gradients and optimizer state (FSDP2). `node`: over the devices of a
    node. `2 nodes`: over those of every two nodes; `all`: over those of all nodes. `none`: every
    worker holds all of it. `auto`: `node` if a GPU that Headway knows does not hold it whole, as
    many nodes as hold it if one does not; elsewhere `node` from a billion parameters on. Over
    several nodes a run always restarts when its nodes change: `elastic: live` is refused."""
    elastic: Literal["auto", "live", "restart"] = "auto"
    """What happens when a node is lost. `live`: the other nodes continue without it. `restart`: all
    nodes restart from the newest checkpoint. `auto`: `live` on the CPU if several nodes or workers
    hold a copy of the model, else `restart`. `live` is refused with GPUs."""
    memory: MemoryConfig = MemoryConfig()
    """Options that trade time for memory."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When checkpoints are saved, and which are kept."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Evaluation on the validation sets."""
    guard: GuardConfig = GuardConfig()
    """Protection against loss spikes and non-finite losses."""
    track: list[Literal["tensorboard", "wandb"]] = ["tensorboard"]
    """Trackers that get metrics besides the run directory. `wandb` (`pip install
    'headway[wandb]'`): one W&B run over all restarts."""
    watch: WatchConfig = WatchConfig()
    """What to record besides losses."""
    code: CodeConfig | None = None
    """Code of your own."""
    resources: ResourcesConfig = ResourcesConfig()
    """Nodes and devices."""
    budget: BudgetConfig = BudgetConfig()
    """Limits at which the run stops."""
    secrets: list[Annotated[str, Field(pattern=VARIABLE_PATTERN)]] = []
    """Names of environment variables that the run needs; never their values."""
    storage: str = "runs"
    """Parent of the run directory: a folder relative to the run file, or an s3:// or gs:// URL."""

    @model_validator(mode="before")
    @classmethod
    def _has_code(cls, written: Any) -> Any:
        """A script is in the folder of its run file, unless it says otherwise."""
        if isinstance(written, dict) and written.get("command") and written.get("code") is None:
            return {**written, "code": {}}
        return written

    @field_validator("command", mode="before")
    @classmethod
    def _is_a_list(cls, command: Any) -> Any:
        """There is no shell that would divide it into arguments."""
        line = command[0] if isinstance(command, list) and len(command) == 1 else command
        if isinstance(line, str) and (line is command or " " in line.strip()):
            raise Suggesting("must be a list of arguments, without a shell", as_list(line))
        return command
