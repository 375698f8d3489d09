"""Several prepared sets read as one.

    FOLDER/mixture.json      the members: location, digest of their content, number of slots

Samples are numbered consecutively: a member's own number plus the samples of the members before it.
In version 2, whose members may still be being prepared, each member has 2^40 numbers instead.
`mixture_order.py` decides which member each position belongs to.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
import xxhash
from pydantic import Field, ValidationError

import headway
from headway.clock import Clock, SystemClock
from headway.data.mixture_shares import NUM_SLOTS, divide_slots, exact, require_shares
from headway.data.reading.block_fetcher import Need
from headway.data.reading.growing_set import GrowingSet, Show, open_one
from headway.data.reading.look_ahead import BatchShare, StepsAhead
from headway.data.reading.mixture_order import (
    MixtureOrder,
    SlotTable,
    group_by_value,
    member_seed,
)
from headway.data.reading.token_set import ReadOptions, TokenRows, TokenSet
from headway.data.retry import OPEN_SECONDS, with_retries
from headway.data.set_format import Frozen
from headway.errors import BadInput, NotFound
from headway.state.set_files import MIXTURE
from headway.state.store import Store

VERSIONS = (1, 2)
MEMBER_SAMPLES = 2**40
"""Sample numbers of each member in version 2: where a member's begin depends on no size."""

OneSet = TokenSet | GrowingSet
Positive = Field(default=None, gt=0, allow_inf_nan=False)


class MemberSpec(Frozen):
    """A set to add to a mixture, and how much of it: by `weight` or by `epochs`."""

    name: str = Field(pattern=r"^[\w.-]+$")
    location: str = Field(min_length=1)
    """A prepared set: a folder, relative to the mixture's or absolute, or a URL."""
    weight: float | None = Positive
    """Share of the mixture, in any unit: only the ratios count."""
    epochs: float | None = Positive
    """How often it is read in one epoch of the mixture."""


class MixtureMember(MemberSpec):
    digest: str
    """Digest of the set's content."""
    slots: int = Field(ge=1)
    """Number of slots in the table: weight, or epochs times tokens, rounded to slots."""


class MixtureManifest(Frozen):
    version: Literal[1, 2] = 1
    members: tuple[MixtureMember, ...] = Field(min_length=1)
    created_by: str
    """`headway VERSION`."""

    @property
    def digest(self) -> str:
        """The identity of content and order: the same wherever the members are stored."""
        members = [[member.digest, member.slots, member.epochs] for member in self.members]
        facts = {"mixture": self.version, "members": members}
        return xxhash.xxh3_128_hexdigest(json.dumps(facts, separators=(",", ":")).encode())

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(member.slots for member in self.members)


def write_mixture(
    store: Store, members: Sequence[MemberSpec], *, is_streamed: bool = False
) -> MixtureManifest:
    """Opens every member, checks that they fit, and writes mixture.json. `is_streamed`: members,
    which have weights, may still be being prepared."""
    version: Literal[1, 2] = 2 if is_streamed else 1
    if problem := _problem(members):
        raise BadInput(f"{store.root}: {problem}", _ONE_KIND)
    with ExitStack() as opened:
        sets = _open_members(opened, store.root, members, ReadOptions(), version)
        _require_fit(members, sets)
        wanted = _wanted(members, sets)
        slots = divide_slots(wanted, NUM_SLOTS)
        require_shares([member.name for member in members], wanted, slots)
        manifest = MixtureManifest(
            version=version,
            members=tuple(
                MixtureMember(
                    **member.model_dump(include=set(MemberSpec.model_fields)),
                    digest=tokens.digest,
                    slots=num_slots,
                )
                for member, tokens, num_slots in zip(members, sets, slots, strict=True)
            ),
            created_by=f"headway {headway.__version__}",
        )
    content = manifest.model_dump_json(indent=2, exclude_none=True) + "\n"
    store.write(MIXTURE, content.encode())
    return manifest


def read_mixture(store: Store, clock: Clock | None = None) -> MixtureManifest:
    path = store.location(MIXTURE)
    content = _content(store, clock or SystemClock())
    if content is None:
        raise NotFound(
            f"{store.root} is not a mixture: it has no {MIXTURE}",
            "check the path",
        )
    try:
        fields = json.loads(content)
    except ValueError as error:
        raise BadInput(f"{path} is not valid JSON: {error}", _AGAIN) from None
    version = fields.get("version") if isinstance(fields, dict) else None
    if version not in VERSIONS:
        raise BadInput(
            f"{path} has format version {version!r}; this Headway reads versions 1 and 2",
            f"use the Headway that wrote it, or {_AGAIN}",
        )
    try:
        manifest = MixtureManifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(f"{path}: {where}: {first['msg']}", _AGAIN) from None
    if problem := _problem(manifest.members):
        raise BadInput(f"{path}: {problem}", _ONE_KIND)
    if sum(manifest.slots) != NUM_SLOTS:
        raise BadInput(f"{path}: the members' slots do not add up to {NUM_SLOTS}", _AGAIN)
    return manifest


def is_mixture(store: Store, clock: Clock | None = None) -> bool:
    return _content(store, clock or SystemClock()) is not None


class MixtureSet:
    """A mixture, open for reading; for training, a set like any other."""

    def __init__(self, store: Store, manifest: MixtureManifest, sets: Sequence[OneSet]) -> None:
        self.location = store.root
        self.manifest = manifest
        self.sets = tuple(sets)
        self.table = SlotTable(manifest.slots)
        self.digest = manifest.digest
        # The same for all members.
        self.layout = sets[0].layout
        self.window_tokens = sets[0].window_tokens
        self.vocab_size = sets[0].vocab_size
        self.special_ids = sets[0].special_ids
        self.tokenizer_digest = sets[0].tokenizer_digest
        self.in_sequence = manifest.version == 2
        self._steps_ahead = StepsAhead()
        self._fetcher = next((tokens.fetcher for tokens in sets if tokens.fetcher), None)

    @classmethod
    def open(cls, store: Store, reading: ReadOptions | None = None) -> MixtureSet:
        """Opens every member; refuses one that has changed since the mixture was written."""
        reading = reading or ReadOptions()
        manifest = read_mixture(store, reading.clock)
        with ExitStack() as opened:
            sets = _open_members(opened, store.root, manifest.members, reading, manifest.version)
            for member, tokens in zip(manifest.members, sets, strict=True):
                if tokens.digest != member.digest:
                    raise BadInput(
                        f"{member.name} ({tokens.location}) is not the set that was put into the "
                        f"mixture {store.root}: its digest is {tokens.digest}, not {member.digest}",
                        "restore that set, or start a new run, which mixes the sets as they are",
                    )
            _require_fit(manifest.members, sets)
            if divide_slots(_wanted(manifest.members, sets), NUM_SLOTS) != manifest.slots:
                raise BadInput(
                    f"{store.location(MIXTURE)}: the slots do not match the members' weights or "
                    "epochs",
                    _AGAIN,
                )
            opened.pop_all()
        return cls(store, manifest, sets)

    @property
    def tokenizer_folder(self) -> Path:
        return self.sets[0].tokenizer_folder

    @property
    def is_growing(self) -> bool:
        return any(tokens.is_growing for tokens in self.sets)

    def num_samples(self, sequence_length: int) -> int:
        """Positions of one epoch: the members' samples, each member counted once, or as often as
        its `epochs` says. `num_own_samples` counts the actual samples. While a member grows, those
        up to the first that it does not have yet."""
        own = self.num_own_samples(sequence_length)
        growing = [
            self.table.position(number, own[number])
            for number, tokens in enumerate(self.sets)
            if tokens.is_growing
        ]
        if growing:
            return min(growing)
        own = self.num_own_samples(sequence_length)  # a member may have been finished meanwhile
        epochs = [exact(member.epochs) for member in self.manifest.members if member.epochs]
        if not epochs:
            return sum(own)
        return sum(round(times * num) for times, num in zip(epochs, own, strict=True))

    def num_own_samples(self, sequence_length: int) -> list[int]:
        """Number of samples of each member, as many as there are now."""
        return [tokens.num_samples(sequence_length) for tokens in self.sets]

    def tail_tokens(self, sequence_length: int) -> int:
        """Tokens at the members' ends that are in no sample of this length."""
        return sum(tokens.tail_tokens(sequence_length) for tokens in self.sets)

    def order(self, seed: int, sequence_length: int) -> MixtureOrder:
        return MixtureOrder(
            self.table,
            tuple(
                tokens.order(member_seed(seed, number), sequence_length)
                for number, tokens in enumerate(self.sets)
            ),
            tuple(self._offsets(sequence_length)[:-1].tolist()),
        )

    def wait_for(self, end: int, sequence_length: int, show: Show = lambda growing: None) -> None:
        """Returns when the positions before `end` can be read: each member has its own part of
        them, or is finished, and then begins its next epoch."""
        if self.is_growing:
            for tokens, count in zip(self.sets, self.table.counts(end), strict=True):
                tokens.wait_for(count, sequence_length, show)

    def member_of(self, sample: int, sequence_length: int) -> tuple[str, int]:
        """The name of the member that has the sample, and the sample's number there."""
        offsets = self._offsets(sequence_length)
        number = int(np.searchsorted(offsets, sample, side="right")) - 1
        return self.manifest.members[number].name, sample - int(offsets[number])

    def read(self, samples: np.ndarray, sequence_length: int) -> TokenRows:
        offsets = self._offsets(sequence_length)
        assert samples.ndim == 1
        assert samples.size == 0 or (samples.min() >= 0 and samples.max() < offsets[-1])
        width = sequence_length + (1 if self.layout == "stream" else 0)
        tokens = np.empty((len(samples), width), dtype=np.int64)
        mask: np.ndarray | None = None
        # A member without samples of this length has the offset of the next one: take the last.
        members = np.searchsorted(offsets, samples, side="right") - 1
        for number, here in group_by_value(members):
            rows = self.sets[number].read(samples[here] - offsets[number], sequence_length)
            tokens[here] = rows.tokens
            if rows.mask is not None:
                if mask is None:
                    mask = np.ones((len(samples), width), dtype=np.bool_)
                mask[here] = rows.mask
        return TokenRows(tokens, mask)

    def prefetch(self, seed: int, sequence_length: int, step: int, share: BatchShare) -> None:
        """Announces what is read next of all members at once, in the order of need."""
        if self._fetcher is None:
            return
        first = step * share.global_batch
        begins, ends = self.table.counts(first), self.table.counts(first + share.global_batch)
        known = self._known_until(ends, sequence_length)
        rows = self._steps_ahead.renewed((seed, sequence_length), step, share, known)
        if rows is not None:
            members, indices = self.table.draw(rows)
        needed: dict[Hashable, list[Need]] = {}
        for number, tokens in enumerate(self.sets):
            own = None if rows is None else indices[members == number]
            key, batch = member_seed(seed, number), range(begins[number], ends[number])
            needs = tokens.needs(key, sequence_length, batch, own, share.of_machine)
            if needs is not None:
                apart = self.table.size / self.table.slots[number]  # positions between two indices
                needed[tokens] = [
                    Need(first + int((index - batch.start) * apart), block)
                    for index, block in needs
                ]
        if needed:
            self._fetcher.announce(needed, first)

    def close(self) -> None:
        for tokens in self.sets:
            tokens.close()

    def _known_until(self, wanted: Sequence[int], sequence_length: int) -> int | None:
        """The first position that a member may not have yet; None if all are there. `wanted`: how
        many indices of each member are needed now."""
        known = [
            self.table.position(number, until)
            for number, tokens in enumerate(self.sets)
            if isinstance(tokens, GrowingSet)
            and (until := tokens.known_until(wanted[number], sequence_length)) is not None
        ]
        return min(known, default=None)

    def _offsets(self, sequence_length: int) -> np.ndarray:
        """Where each member's samples start, and where the last one's end."""
        if self.in_sequence:
            return np.arange(len(self.sets) + 1, dtype=np.int64) * MEMBER_SAMPLES
        return np.cumsum([0, *self.num_own_samples(sequence_length)], dtype=np.int64)


@dataclass(frozen=True)
class MemberShare:
    """What a member contributes to a mixture."""

    name: str
    wanted: float
    """Share requested, by weight, or by epochs and tokens."""
    share: float
    """Share of the table, and so of all positions."""
    num_samples: int
    """Number of samples it has."""
    num_positions: int
    """Number of positions it gets."""
    num_epochs: float | None
    """How often it is read; None for a set too short for a sample."""


def member_shares(mixture: MixtureSet, sequence_length: int) -> list[MemberShare]:
    """What each member contributes to one epoch of the mixture."""
    members = mixture.manifest.members
    wanted = _wanted(members, mixture.sets)
    counts = mixture.table.counts(mixture.num_samples(sequence_length))
    return [
        MemberShare(
            name=member.name,
            wanted=float(wanted[number] / sum(wanted)),
            share=member.slots / mixture.table.size,
            num_samples=num_samples,
            num_positions=counts[number],
            num_epochs=counts[number] / num_samples if num_samples else None,
        )
        for number, (member, num_samples) in enumerate(
            zip(members, mixture.num_own_samples(sequence_length), strict=True)
        )
    ]


_AGAIN = "delete that file: headway run writes it again"
_ONE_KIND = "give every member a weight, or give every member epochs"

_FIT = {
    "tokenizer_digest": "prepare both with the same tokenizer",
    "vocab_size": "prepare both with the same tokenizer",
    "special_ids": "prepare both with the same tokenizer",
    "layout": "prepare both with --windows, or both without",
    "window_tokens": "prepare both with the same --windows",
}
"""What members must have in common, and what to do if they do not."""


def _content(store: Store, clock: Clock) -> bytes | None:
    """The content of mixture.json; None if there is none."""

    def look() -> bytes | None:
        try:
            return store.read(MIXTURE)
        except (FileNotFoundError, NotADirectoryError):
            return None

    return with_retries(store, MIXTURE, look, clock, OPEN_SECONDS)


def _problem(members: Sequence[MemberSpec]) -> str | None:
    """Why these cannot be the members of one mixture; None if they can."""
    if not members:
        return "a mixture needs at least one member"
    names = [member.name for member in members]
    for name in names:
        if names.count(name) > 1:
            return f"two members are named {name}"
    for member in members:
        if (member.weight is None) == (member.epochs is None):
            has = "neither weight nor epochs" if member.weight is None else "both weight and epochs"
            return f"{member.name} has {has}"
    by_weight, by_epochs = (
        next((member.name for member in members if getattr(member, kind) is not None), None)
        for kind in ("weight", "epochs")
    )
    if by_weight and by_epochs:
        return f"{by_weight} has a weight and {by_epochs} has epochs: they cannot be compared"
    return None


def _open_members(
    opened: ExitStack, root: str, members: Sequence[MemberSpec], reading: ReadOptions, version: int
) -> list[OneSet]:
    """The members' sets; `opened` closes them."""
    reading = replace(reading, fetcher=reading.new_fetcher())
    sets: list[OneSet] = []
    for member in members:
        store = Store(_location(root, member))
        if is_mixture(store, reading.clock):
            raise BadInput(
                f"{member.name} ({store.root}) is a mixture itself", "list its members instead"
            )
        tokens = (open_one if version == 2 else TokenSet.open)(store, reading)
        opened.callback(tokens.close)
        sets.append(tokens)
    return sets


def _require_fit(members: Sequence[MemberSpec], sets: Sequence[OneSet]) -> None:
    for member, tokens in zip(members, sets, strict=True):
        for fact, hint in _FIT.items():
            one, other = (getattr(found, fact) for found in (sets[0], tokens))
            if one != other:
                raise BadInput(
                    f"{members[0].name} ({sets[0].location}) and {member.name} "
                    f"({tokens.location}) cannot be mixed: {fact} is {one} and {other}",
                    hint,
                )


def _location(root: str, member: MemberSpec) -> str:
    """The location of a member's set, with relative ones resolved."""
    if "://" in member.location or Path(member.location).is_absolute():
        return member.location
    scheme, separator, key = root.partition("://")
    if not separator:
        # By name, without asking the disk: the mixture's folder may not exist yet.
        return os.path.normpath(os.path.join(os.path.realpath(root), member.location))
    # Object stores have no `..`, and the first part is the bucket.
    bucket, _, prefix = key.partition("/")
    inside = posixpath.normpath(posixpath.join(prefix, member.location))
    if inside.split("/")[0] == "..":
        raise BadInput(
            f"{member.name}: {member.location} is outside of {scheme}://{bucket}",
            f"give its full address, {scheme}://...",
        )
    return f"{scheme}://{bucket}/{inside}"


def _wanted(members: Sequence[MemberSpec], sets: Sequence[OneSet]) -> list[Fraction]:
    """The amount requested for each member, in a common unit."""
    return [
        exact(member.weight) if member.weight else exact(member.epochs or 0) * tokens.num_tokens
        for member, tokens in zip(members, sets, strict=True)
    ]
