"""The run file: what to train. Every key, its type, its default, and a line on what it does.

The reference page and the JSON Schema are generated from this file (`make generate`), so a
docstring here is documentation. A field made with `later(...)` is accepted and validated, but
nothing acts on it yet; `headway check` and `headway run` say so.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    field_validator,
    model_validator,
)
from pydantic_core import core_schema

from headway.spec.units import (
    AcceleratorsField,
    BatchSizeField,
    Interval,
    IntervalField,
    Length,
    LengthField,
    NodeRange,
    NodeRangeField,
    ShareField,
    Warmup,
    WarmupField,
)

NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"
CALL_PATTERN = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
VARIABLE_PATTERN = r"^[A-Za-z_]\w*$"

# Strict: pydantic alone would take `yes`, `on` and 1 for true as well.
Flag = Annotated[bool, Strict()]
Count = Annotated[int, Field(ge=1)]


def later(default: Any = None) -> Any:
    """A field that is part of the format but not acted on by this version."""
    return Field(default=default, json_schema_extra={"not_yet": True})


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        allow_inf_nan=False,
    )


class Shorthand:
    """A section that may also be written as one word, which then is its value of `key`."""

    def __init__(self, key: str) -> None:
        self.key = key

    def _expanded(self, value: Any) -> Any:
        return {self.key: value} if isinstance(value, str) else value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_before_validator_function(self._expanded, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler(schema)]}


Call = Annotated[str, Field(pattern=CALL_PATTERN, examples=["mine:build"])]


def _exactly_one(section: BaseModel, names: dict[str, str]) -> None:
    given = [written for field, written in names.items() if getattr(section, field) is not None]
    if len(given) != 1:
        found = f"found {' and '.join(given)}" if given else "found none"
        raise ValueError(f"give exactly one of {', '.join(names.values())} ({found})")


class Model(Section):
    """The network: `{from: gpt2}`, `{type: llama, config: {...}}` or `{call: "mine:build"}`."""

    from_: str | None = Field(default=None, alias="from")
    """Start from these weights: a hub name, a folder in the HF format, or `RUN@step`."""
    type: str | None = None
    """Start from scratch: a model type of transformers (`gpt2`, `llama`, `bert`, `qwen3`, ...)."""
    call: Call | None = None
    """Start from the user's own function, `module:function`, which returns a module, or a module
    and its list of blocks."""
    config: dict[str, Any] = {}
    """With `type`: fields of the transformers config (a missing `vocab_size` is taken from the
    tokenizer). With `from`: fields to override. With `call`: keyword arguments."""

    @model_validator(mode="after")
    def _one_origin(self) -> Model:
        _exactly_one(self, {"from_": "from", "type": "type", "call": "call"})
        return self


class DistillWeights(Section):
    """How the three losses of distillation add up."""

    soft: float = Field(default=5.0, ge=0)
    """Cross-entropy with the teacher's softened distribution, times temperature squared."""
    hard: float = Field(default=2.0, ge=0)
    """The ordinary language-modelling loss."""
    hidden: float = Field(default=1.0, ge=0)
    """One minus the cosine between the last hidden states (needs equal widths)."""


class Objective(Section):
    """What is minimised: `causal`, `masked`, `{type: distill, ...}` or `{call: "mine:loss"}`."""

    type: Literal["causal", "masked", "distill"] | None = None
    """`causal`: next token. `masked`: hidden tokens, the BERT way. `distill`: causal, with a
    teacher."""
    call: Call | None = None
    """The user's own loss, `module:function`: `loss(model, batch) -> Loss(sum, count, extras)`."""
    teacher: Annotated[Model, Shorthand("from")] | None = None
    """distill: the teacher, as `model` is written, or just its name."""
    temperature: float = Field(default=2.0, gt=0)
    """distill: softens both distributions."""
    weights: DistillWeights = DistillWeights()
    """distill: weights of the three losses."""
    mask_probability: float = Field(default=0.15, gt=0, lt=1)
    """masked: share of the tokens to predict."""

    @model_validator(mode="after")
    def _consistent(self) -> Objective:
        _exactly_one(self, {"type": "type", "call": "call"})
        if (self.type == "distill") != (self.teacher is not None):
            raise ValueError("`teacher` goes with `type: distill`, and distill needs it")
        return self


class TrainTokenizer(Section):
    """A tokenizer made from the text itself: byte-level BPE."""

    vocab: int = Field(ge=300, le=2**20)
    """Size of the vocabulary."""


class Tokenizer(Section):
    """`gpt2`, a folder, or `{train: {vocab: 8192}}`."""

    from_: str | None = Field(default=None, alias="from")
    """A hub name, or a folder with `tokenizer.json`."""
    train: TrainTokenizer | None = None
    """Train one on the set's own text."""

    @model_validator(mode="after")
    def _one_origin(self) -> Tokenizer:
        _exactly_one(self, {"from_": "from", "train": "train"})
        return self


class Source(Section):
    """A prepared set, or sources that `run` prepares when they are not prepared yet."""

    path: str | None = None
    """A set made by `headway data prepare`: a folder, s3:// or gs://. A bare string means this."""
    sources: list[str] | None = Field(default=None, min_length=1)
    """Files, folders, globs, s3:// and gs:// addresses of .txt, .jsonl, .json, .csv, .parquet,
    .arrow, .npy, .h5 and .tar, each also as .gz, .zst or .xz; or `hub:NAME?split=train`."""
    column: str = "text"
    """The column that holds the text."""
    template: str | None = None
    """Text made of several columns: `"{question} {answer}"`."""
    messages: str | None = None
    """The column that holds a conversation. It goes through the tokenizer's chat template, and the
    loss counts on the answers only."""
    transform: Call | None = None
    """The user's own function, `module:function`, from a record to its text, to messages, to
    (ids, mask), or to None to leave it out."""
    ids: str | None = None
    """The column that holds token ids, taken over as they are. (In .npy: any name.)"""
    mask: str | None = None
    """With `ids`: the column that is 1 where a token counts for the loss, and 0 elsewhere."""
    tokenizer: Annotated[Tokenizer, Shorthand("from")] | None = None
    """How to tokenise the sources; a validation set takes the training set's when left out."""
    deduplicate: Flag = False
    """Leave out documents whose text came before, to the letter."""
    anonymous: Flag = False
    """Public buckets: ask s3:// and gs:// without credentials."""

    def _given(self, names: frozenset[str]) -> list[str]:
        """Those that say something other than their default."""
        fields = type(self).model_fields
        return [
            name for name in fields if name in names and getattr(self, name) != fields[name].default
        ]

    def _consistent(self) -> None:
        if self.path is not None:
            given = self._given(SOURCES_ONLY)
            if given == ["tokenizer"]:
                raise ValueError("a prepared set brings its own tokenizer; leave `tokenizer` out")
            if given:
                raise ValueError(f"`{given[0]}` goes with `sources`; a prepared set is as it is")
        ways = [way for way in WAYS if getattr(self, way) is not None]
        if len(ways) > 1:
            raise ValueError(f"give one of {' and '.join(ways)}")
        if self.mask is not None and self.ids is None:
            raise ValueError("`mask` goes with `ids`")


WAYS = ("template", "messages", "transform", "ids")
"""From a record to tokens, other than by one column of text."""
SOURCES_ONLY = frozenset({"column", *WAYS, "mask", "tokenizer", "deduplicate", "hold_out"})


class Member(Source):
    """One set of a mixture."""

    weight: float | None = Field(default=None, gt=0)
    """Its share of the samples, in relation to the others' weights."""
    epochs: float | None = Field(default=None, gt=0)
    """How often it is gone through in one epoch of the mixture."""

    @model_validator(mode="after")
    def _one_origin(self) -> Member:
        _exactly_one(self, {"path": "path", "sources": "sources"})
        _exactly_one(self, {"weight": "weight", "epochs": "epochs"})
        self._consistent()
        return self


class DataSet(Source):
    """A prepared set, sources to prepare, or a mixture of such."""

    mixture: dict[str, Member] | None = Field(default=None, min_length=1)
    """Several sets by name, each with a `weight` or each with `epochs`."""
    hold_out: ShareField | None = None
    """Keep this share of the documents out of training, chosen by their content so that it never
    moves; they become the validation set `held_out`."""
    stream: Flag = False
    """Start training while the sources are still being prepared: in their order, mixed within
    windows of 64 Mi tokens."""

    @model_validator(mode="after")
    def _one_origin(self) -> DataSet:
        _exactly_one(self, {"path": "path", "sources": "sources", "mixture": "mixture"})
        self._consistent()
        if self.mixture is not None:
            kinds = {member.weight is None for member in self.mixture.values()}
            if len(kinds) > 1:
                raise ValueError("give every member a weight, or every member epochs")
            ways = (*WAYS, "mask", "hold_out", "deduplicate")
            given = self._given(frozenset(ways))
            if given:
                raise ValueError(f"`{given[0]}` goes to a member of the mixture")
        if self.stream and self.sources is None:
            raise ValueError("`stream` goes with `sources`")
        if self.stream and (self.deduplicate or self.hold_out is not None):
            raise ValueError(
                "`stream` starts before all documents are known: `deduplicate` and `hold_out` do "
                "not go with it"
            )
        return self


DataSetField = Annotated[DataSet, Shorthand("path")]


class Data(Section):
    """What to train and evaluate on."""

    train: DataSetField | None = None
    """The training set."""
    validation: dict[str, DataSetField] = {}
    """Held-out sets by name; each gets its own loss at every evaluation."""
    sequence_length: int = Field(default=1024, ge=2)
    """Tokens of one sample."""

    @field_validator("validation")
    @classmethod
    def _plain_names(cls, sets: dict[str, DataSet]) -> dict[str, DataSet]:
        for name, dataset in sets.items():
            if not re.match(r"^[\w.-]+$", name):
                raise ValueError(f"{name!r}: letters, digits, dot, dash and underscore only")
            if dataset.mixture or dataset.stream or dataset.hold_out is not None:
                raise ValueError(
                    f"{name!r}: `mixture`, `stream` and `hold_out` are for the training set"
                )
        return sets


class Batch(Section):
    """The global batch is the same at any number of nodes, divisible or not."""

    global_: BatchSizeField = Field(alias="global")
    """Sequences of one step over all workers, or `0.5M tokens`."""
    micro: int | Literal["auto"] = Field(default="auto")
    """Sequences of one slice, the most a device computes at once. `auto`: about 8192 tokens."""

    @field_validator("micro")
    @classmethod
    def _positive(cls, micro: int | str) -> int | str:
        if isinstance(micro, int) and micro < 1:
            raise ValueError(f"{micro} is not a number of sequences")
        return micro


Beta = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(Section):
    """How gradients become updates."""

    type: Literal["adamw", "lamb"] = "adamw"
    """`adamw` (fused where torch has it) or `lamb` (large batches)."""
    lr: float = Field(default=3e-4, gt=0)
    """Peak learning rate."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay of the running mean and of the running square."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the denominator."""
    weight_decay: float = Field(default=0.1, ge=0)
    """On matrices only: biases and norms are left alone."""
    max_grad_norm: float | Literal["off"] = 1.0
    """Gradients are scaled down to this global norm."""

    @field_validator("max_grad_norm")
    @classmethod
    def _positive(cls, norm: float | str) -> float | str:
        if not isinstance(norm, str) and norm <= 0:
            raise ValueError("a norm is above zero; `off` leaves gradients as they are")
        return norm


class Schedule(Section):
    """The learning rate over the run."""

    type: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """`wsd`: warm up, hold, then decay linearly over the last `decay` of the run."""
    warmup: WarmupField = Warmup(0.01, "share")
    """Linear rise from zero: `5%` of the run, or `2000 steps`."""
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """Where the decay ends, as a share of the peak."""
    decay: WarmupField = Warmup(0.1, "share")
    """wsd: length of the final decay."""


class Memory(Section):
    """Trading time for memory."""

    checkpoint_activations: Flag | Literal["auto"] = "auto"
    """Recompute each block in the backward pass. `auto`: from a billion parameters on."""
    offload: Literal["none"] = later("none")
    """Where optimizer state and parameters may be moved to."""
    compile: Flag = False
    """torch.compile on every block."""


class Keep(Section):
    """Which checkpoints stay."""

    last: int = Field(default=3, ge=1)
    """The newest so many."""
    best: int = Field(default=1, ge=0)
    """The best so many by the mean loss of the validation sets, of those that were evaluated at
    their step: let `checkpoint.every` and `evaluation.every` meet."""
    every: IntervalField | None = None
    """One in every so many steps, for good."""

    @model_validator(mode="after")
    def _by_steps(self) -> Keep:
        if self.every is not None and self.every.unit != "steps":
            raise ValueError("`every` counts steps here, for example 10k steps")
        return self


class Checkpoint(Section):
    """When training state is saved. It is always saved at the end and on Ctrl-C."""

    every: IntervalField = Interval(600, "seconds")
    """Steps or time between two saves."""
    keep: Keep = Keep()
    """Which ones stay."""


class Metrics(Section):
    """The user's own measures."""

    call: Call
    """`module:function`: `metrics(model, batch) -> {name: (sum, count)}`, added up over the whole
    set and divided once."""


class Evaluation(Section):
    """Losses on the validation sets; also at the end of the run."""

    every: IntervalField = Interval(500, "steps")
    """Steps between two evaluations."""
    sequences: Count | Literal["all"] = 512
    """At most so many sequences of each set: a sample fixed by the seed, the same every time."""
    metrics: Metrics | None = None
    """More than the loss."""

    @model_validator(mode="after")
    def _by_steps(self) -> Evaluation:
        # By time it would fall on other steps in every run, and runs could not be compared.
        if self.every.unit != "steps":
            raise ValueError("`every` counts steps here, for example 500 steps")
        return self


class Activations(Section):
    """Figures of every block's output, from one more forward pass over one slice of a step."""

    every: IntervalField = Interval(100, "steps")
    """Steps between two passes."""

    @model_validator(mode="after")
    def _by_steps(self) -> Activations:
        # All workers of a shard group take part, and no two clocks are equal.
        if self.every.unit != "steps":
            raise ValueError("`every` counts steps here, for example 100 steps")
        return self


class Watch(Section):
    """What to look at besides losses. Nothing here changes what is trained."""

    activations: Activations | None = None
    """Mean, standard deviation, largest absolute value and share of zeros of each block's output,
    and how spread out its attention is; `{}` for every 100 steps. Left out: none."""


class Guard(Section):
    """What to do when training goes wrong. A skipped step is consumed and recorded, not learned."""

    loss_spike: Annotated[float, Field(gt=0)] | Literal["off"] = 6.0
    """Skip a step whose loss is this many standard deviations above the mean of the last 128. A
    loss that stays up there without rising is learned from after 7 to 9 skipped steps."""
    stop_after: int = Field(default=10, ge=1)
    """Fail the run after so many skipped steps in a row."""


class Code(Section):
    """The user's own code, for the `call`s."""

    path: str
    """A folder that is put on the Python path of every worker; its digest is recorded."""
    requirements: str | None = later()
    """A requirements file to install on a cluster."""


class Resources(Section):
    """What the run wants; on this machine `run --nodes N` plays N nodes."""

    accelerators: AcceleratorsField | None = None
    """Device and its number a node: `H100:8`; a machine that has not as many of them is refused.
    `cpu:2` runs two workers a node on the CPU. Left out: what the machine has."""
    nodes: NodeRangeField = NodeRange(1, 1)
    """On a target: a number, or a range to be elastic in."""
    spot: Literal["all", "above_min", "none"] = "none"
    """On a target: which nodes may be spot machines."""


class Budget(Section):
    """Where the run stops, with its checkpoint safe."""

    usd: float | None = Field(default=None, gt=0, json_schema_extra={"not_yet": True})
    """Money."""
    hours: float | None = Field(default=None, gt=0)
    """On a target: wall-clock time over all restarts."""


class RunFile(Section):
    """What to train."""

    version: Literal[1]
    """Version of this format."""
    name: str | None = Field(default=None, pattern=NAME_PATTERN)
    """The run's name and folder. Left out: the name of the folder the file is in."""
    extends: str | None = None
    """A preset or another run file, whose keys this one overrides."""
    model: Model | None = None
    """The network."""
    objective: Annotated[Objective, Shorthand("type")] = Objective(type="causal")
    """What is minimised."""
    data: Data = Data()
    """What to train and evaluate on."""
    batch: Batch | None = None
    """The global batch and its slices."""
    train_for: LengthField = Length(1, "epochs")
    """How long: `10B tokens`, `500 steps` or `3 epochs`."""
    optimizer: Optimizer = Optimizer()
    """How gradients become updates."""
    schedule: Schedule = Schedule()
    """The learning rate over the run."""
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    """Of the computation; weights and optimizer are kept in fp32."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Decides the order of the data, the initial weights, dropout and masking."""
    threads: Count | Literal["auto"] = "auto"
    """CPU threads of one worker; results are bit-identical only at an equal number. `auto`: the
    machine's cores divided by the workers on it."""
    shard: Literal["auto", "none", "node"] = "auto"
    """`node`: weights, gradients and optimizer are divided over a node's devices (FSDP2). `none`:
    every worker holds all. `auto`: `node` from a billion parameters on."""
    elastic: Literal["auto", "live", "restart"] = "auto"
    """How a lost node is survived. `live`: the others go on without it. `restart`: all start again
    from the newest checkpoint. `auto`: `live` on the CPU where the model is held more than once, by
    several nodes or workers, else `restart`. `live` is refused with GPUs."""
    memory: Memory = Memory()
    """Trading time for memory."""
    checkpoint: Checkpoint = Checkpoint()
    """When training state is saved."""
    evaluation: Evaluation = Evaluation()
    """When validation losses are taken."""
    guard: Guard = Guard()
    """Loss spikes and non-finite steps."""
    track: list[Literal["tensorboard", "wandb"]] = ["tensorboard"]
    """Where metrics go besides the run directory. `wandb` (`pip install 'headway[wandb]'`): one W&B
    run through all restarts."""
    watch: Watch = Watch()
    """What to look at besides losses."""
    code: Code | None = None
    """The user's own code."""
    resources: Resources = Resources()
    """Devices and nodes."""
    budget: Budget = Budget()
    """Where to stop."""
    secrets: list[Annotated[str, Field(pattern=VARIABLE_PATTERN)]] = []
    """Names of environment variables the run needs; never their values."""
    storage: str = "runs"
    """Parent of the run directory: a folder relative to the run file, or s3://, gs://."""
    notify: str | None = later()
    """Address told of failed, finished, stalled and of the budget's use."""
