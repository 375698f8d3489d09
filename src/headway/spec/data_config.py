"""The `data` section of the run file: prepared sets, sources to prepare, and mixtures of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from headway.spec.quantities import Length, LengthField, ShareField
from headway.spec.section import Call, Flag, Section, Shorthand, exactly_one

LEAST_WINDOW = 4096
CLAIM, HUB = "claim:", "hub:"
"""How a path on a target's claim begins, and a dataset on the hub."""
HELD_OUT = "held_out"
"""Name of the validation set that `hold_out` makes."""


def is_elsewhere(source: str) -> bool:
    """Whether it is not on this machine: an address, `hub:NAME` or `claim:PATH`."""
    return "://" in source or source.startswith((CLAIM, HUB))


def claim_path(text: str) -> str:
    """The path of `claim:PATH`. Raises ValueError if it is not one inside the claim."""
    path = PurePosixPath(text.removeprefix(CLAIM))
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(
            f"{text}: write claim:PATH, a path inside the claim, such as claim:sets/c4"
        )
    return str(path)


class TokenizerTrainingConfig(Section):
    """A byte-level BPE tokenizer, trained on the set's own text."""

    vocab: int = Field(ge=300, le=2**20)
    """Size of the vocabulary."""


class TokenizerConfig(Section):
    """`gpt2`, a folder, or `{train: {vocab: 8192}}`."""

    from_: str | None = Field(default=None, alias="from")
    """Hub name, or a folder with `tokenizer.json`."""
    revision: str | None = None
    """With a hub name: commit, tag or branch, as for a model."""
    train: TokenizerTrainingConfig | None = None
    """Tokenizer to train on the set's own text."""
    chat_template: Literal["zephyr"] | None = None
    """Built-in chat template for a tokenizer that has none; takes the place of its own. `zephyr`
    ends each message with the tokenizer's end-of-text token, and adds no token."""

    @model_validator(mode="after")
    def _one_origin(self) -> TokenizerConfig:
        exactly_one(self, {"from_": "from", "train": "train"})
        if self.revision is not None and self.from_ is None:
            raise ValueError("`revision` needs `from`")
        if self.train is not None and self.chat_template is not None:
            raise ValueError("`chat_template` needs `from`: conversations need a tokenizer first")
        return self


class UnmaskConfig(Section):
    """Columns that say what was masked in token ids, as BERT's HDF5 files have them."""

    positions: str
    """Column with the positions in each row; zero after the last."""
    ids: str
    """Column with the true ids at these positions."""


class RecordConfig(Section):
    """How a record of a source becomes tokens."""

    column: str = "text"
    """The column that holds the text."""
    template: str | None = None
    """Text made of several columns: `"{question} {answer}"`."""
    messages: str | None = None
    """The column that holds a conversation. It goes through the tokenizer's chat template, and the
    loss counts on the answers only."""
    transform: str | None = None
    """Function of your own, `module:function`, from a record to its text, to messages, to
    (ids, mask), or to None to drop the record."""
    ids: str | None = None
    """Column with token ids, used as they are. (In .npy: any name.) For a masked model they are
    packed into windows like text, without the special tokens at the ends of each row."""
    mask: str | None = None
    """With `ids`: column that is 1 where a token counts for the loss, and 0 elsewhere."""
    unmask: UnmaskConfig | None = None
    """With `ids`, for a masked model: what is masked in the source already, to be put back:
    `{positions: masked_lm_positions, ids: masked_lm_ids}`."""


class PlaceConfig(Section):
    """Where a set is, or its sources."""

    path: str | None = None
    """Set made by `headway data prepare`: a folder, s3:// or gs://. A bare string means this."""
    sources: list[str] | None = Field(default=None, min_length=1)
    """Files, folders, globs, s3:// and gs:// addresses, and https:// addresses of single files, of
    .txt, .jsonl, .json, .csv, .parquet, .arrow, .npy and .h5, each also as .gz, .zst or .xz;
    Megatron's .bin with .idx; or `hub:NAME?split=train`, where `&revision=` is a commit, tag or
    branch."""


class StreamConfig(Section):
    """How a set is read that is still being prepared."""

    window: LengthField = Length(2**26, "tokens")
    """Tokens within which samples are shuffled, such as `4M tokens`. A smaller window starts sooner
    and mixes less: the sources should be shuffled already. It also makes smaller files: one for
    about as many tokens."""

    @field_validator("window")
    @classmethod
    def _is_tokens(cls, window: Length) -> Length:
        if window.unit != "tokens" or window.amount < LEAST_WINDOW:
            raise ValueError(f"{window} is not a number of tokens such as 4M tokens")
        return window


class SourceConfig(RecordConfig, PlaceConfig):
    """A prepared set, or sources that `run` prepares if they are not prepared yet."""

    transform: Call | None = None
    tokenizer: Annotated[TokenizerConfig, Shorthand("from")] | None = None
    """Tokenizer for the sources. Left out in a validation set: the training set's."""
    deduplicate: Flag = False
    """Whether documents with exactly the same text as an earlier one are left out."""
    anonymous: Flag = False
    """Whether s3:// and gs:// are read without credentials, for public buckets."""
    allow_unreadable: Flag = False
    """Whether sources are accepted although a file is damaged, or more records are unreadable or
    blank than have text."""
    stream: StreamConfig | Flag = False
    """Whether training starts while the sources are still being prepared: in their order, shuffled
    within windows of 64 Mi tokens. `{window: 4M tokens}`: within smaller ones."""

    def _given(self, names: frozenset[str]) -> list[str]:
        """The fields among `names` that differ from their default."""
        fields = type(self).model_fields
        return [
            name for name in fields if name in names and getattr(self, name) != fields[name].default
        ]

    def _consistent(self) -> None:
        if self.path is not None:
            given = self._given(SOURCES_ONLY)
            if given == ["tokenizer"]:
                raise ValueError("a prepared set has its own tokenizer; remove `tokenizer`")
            if given:
                raise ValueError(f"`{given[0]}` needs `sources`: a prepared set is used as it is")
        ways = [way for way in WAYS if getattr(self, way) is not None]
        if len(ways) > 1:
            raise ValueError(f"give only one of {' and '.join(ways)}")
        if self.mask is not None and self.ids is None:
            raise ValueError("`mask` needs `ids`")
        if self.unmask is not None and self.ids is None:
            raise ValueError("`unmask` needs `ids`")
        if self.stream and self.deduplicate:
            raise ValueError("`stream` starts before all documents are known: remove `deduplicate`")


WAYS = ("template", "messages", "transform", "ids")
"""Keys that say how a record becomes tokens, other than `column`."""
SOURCES_ONLY = frozenset(
    {"column", *WAYS, "mask", "unmask", "tokenizer", "deduplicate", "hold_out", "allow_unreadable"}
)


class MixtureMemberConfig(SourceConfig):
    """One set of a mixture."""

    weight: float | None = Field(default=None, gt=0)
    """Share of the samples, relative to the other weights."""
    epochs: float | None = Field(default=None, gt=0)
    """Number of passes over this set in one epoch of the mixture."""
    max_epochs: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Most passes over this set in the whole run, as `train_for` is when it first starts. What that
    cuts from its share goes to the other sets, in proportion."""

    @model_validator(mode="after")
    def _one_origin(self) -> MixtureMemberConfig:
        exactly_one(self, {"path": "path", "sources": "sources"})
        if self.weight is not None and self.epochs is not None:
            raise ValueError("give only one of `weight` and `epochs`")
        if self.epochs is not None and self.max_epochs is not None:
            raise ValueError("`epochs` says how often the set is read: remove `max_epochs`")
        if self.stream and (self.epochs or self.max_epochs):
            raise ValueError("`stream` starts before the size is known: give only a `weight`")
        if isinstance(self.stream, StreamConfig) and self.path is not None:
            raise ValueError("a set has its window already: write `stream: true`")
        self._consistent()
        return self


class DataSetConfig(SourceConfig):
    """A prepared set, sources to prepare, or a mixture of them."""

    mixture: dict[str, MixtureMemberConfig] | None = Field(default=None, min_length=1)
    """Sets by name, all with a `weight`, all with `epochs`, or all with neither and a
    `temperature`."""
    temperature: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Share of each set of the mixture: in proportion to tokens ** (1 / temperature). 1: to its
    size; 3: small sets count for more. It is decided when the run first starts."""
    hold_out: ShareField | None = None
    """Fraction of the documents that is kept out of training and becomes the validation set
    `held_out`. Documents are chosen by their content, so the choice never changes. With `stream`,
    the set has those of the first sources, about a million tokens."""

    @model_validator(mode="after")
    def _one_origin(self) -> DataSetConfig:
        exactly_one(self, {"path": "path", "sources": "sources", "mixture": "mixture"})
        self._consistent()
        if self.temperature is not None and self.mixture is None:
            raise ValueError("`temperature` needs a `mixture`")
        if self.mixture is not None:
            self._require_shares(self.mixture)
            ways = (*WAYS, "mask", "unmask", "deduplicate", "allow_unreadable")
            given = self._given(frozenset(ways))
            if given:
                raise ValueError(f"`{given[0]}` belongs in a member of the mixture")
            if self.hold_out is not None:
                raise ValueError("`hold_out` needs `sources`, not a mixture of them")
        if self.stream and self.sources is None:
            in_mixture = "; in a mixture, write it in a member" if self.mixture else ""
            raise ValueError(f"`stream` needs `sources`{in_mixture}")
        return self

    def _require_shares(self, members: Mapping[str, MixtureMemberConfig]) -> None:
        if self.temperature is None:
            kinds = {(one.weight is None, one.epochs is None) for one in members.values()}
            if len(kinds) > 1 or kinds == {(True, True)}:
                raise ValueError(
                    "give every member a weight, give every member epochs, or give the mixture a "
                    "temperature"
                )
            return
        for name, one in members.items():
            if one.weight or one.epochs or one.stream:
                raise ValueError(
                    f"`temperature` decides the share of {name} by its size: remove its weight, "
                    "epochs or stream, or give every member a weight instead"
                )

    @property
    def is_streamed(self) -> bool:
        """Whether training may start before all of it is prepared."""
        return bool(self.stream) or any(one.stream for one in (self.mixture or {}).values())


DataSetField = Annotated[DataSetConfig, Shorthand("path")]


class DataConfig(Section):
    """Training and validation sets."""

    train: DataSetField | None = None
    """Training set."""
    validation: dict[str, DataSetField] = {}
    """Validation sets by name; each gets its own loss at every evaluation."""
    sequence_length: int = Field(default=1024, ge=2)
    """Tokens per sample."""

    @field_validator("validation")
    @classmethod
    def _plain_names(cls, sets: dict[str, DataSetConfig]) -> dict[str, DataSetConfig]:
        for name, dataset in sets.items():
            if not re.match(r"^[\w.-]+$", name):
                raise ValueError(
                    f"{name!r}: use only letters, digits, dots, dashes and underscores"
                )
            if dataset.mixture or dataset.stream or dataset.hold_out is not None:
                raise ValueError(
                    f"{name!r}: only the training set can have `mixture`, `stream` or `hold_out`"
                )
        return sets
