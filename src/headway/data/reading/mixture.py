"""Several prepared sets as one: which member's turn it is at which position.

    FOLDER/mixture.json      the members: where they are, which content they must have, their slots

Samples are numbered through: a member's own number plus the samples of the members before it.
`mixing.py` says whose turn it is at which position.
"""

from __future__ import annotations

import json
import math
import os
import posixpath
from collections.abc import Sequence
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
from headway.data.patience import OPEN_SECONDS, patiently
from headway.data.reading.mixing import NUM_SLOTS, MixtureOrder, Table, divide, groups, member_seed
from headway.data.reading.tokenset import Reading, Rows, TokenSet
from headway.data.shards import MANIFEST, Frozen
from headway.errors import BadInput, NotFound
from headway.state.store import Store

MIXTURE = "mixture.json"
VERSION = 1
TOLERANCE = Fraction(1, 10)
"""How far a share may be off by rounding it to slots."""

Positive = Field(default=None, gt=0, allow_inf_nan=False)


class Wanted(Frozen):
    """A set to put into a mixture, and how much of it: by `weight` or by `epochs`."""

    name: str = Field(pattern=r"^[\w.-]+$")
    location: str = Field(min_length=1)
    """A prepared set: a folder relative to the mixture's own, an absolute one, or a URL."""
    weight: float | None = Positive
    """Its share of the mixture, in any unit: only the ratios count."""
    epochs: float | None = Positive
    """How often it is read in one epoch of the mixture."""


class Member(Wanted):
    digest: str
    """Of the set's content."""
    slots: int = Field(ge=1)
    """Of the table: weight, or epochs times tokens, in whole slots."""


class MixtureManifest(Frozen):
    version: Literal[1] = 1
    members: tuple[Member, ...] = Field(min_length=1)
    created_by: str
    """`headway VERSION`."""

    @property
    def digest(self) -> str:
        """The identity of content and order: equal wherever the members are."""
        members = [[member.digest, member.slots, member.epochs] for member in self.members]
        facts = {"mixture": self.version, "members": members}
        return xxhash.xxh3_128_hexdigest(json.dumps(facts, separators=(",", ":")).encode())

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(member.slots for member in self.members)


def write_mixture(location: str | Path, members: Sequence[Wanted]) -> MixtureManifest:
    """Opens every member, checks that they fit, and writes mixture.json.

    The same mixture may be written again; another one is never written over it.
    """
    store = Store(location)
    if problem := _problem(members):
        raise BadInput(f"{location}: {problem}", _ONE_KIND)
    if store.size(MANIFEST) is not None:
        raise BadInput(f"{location} already holds a prepared set", "write the mixture elsewhere")
    with ExitStack() as opened:
        sets = _open_members(opened, store.root, members, Reading())
        _require_fit(members, sets)
        wanted = _wanted(members, [tokens.manifest.num_tokens for tokens in sets])
        slots = divide(wanted, NUM_SLOTS)
        _require_shares([member.name for member in members], wanted, slots)
        manifest = MixtureManifest(
            members=tuple(
                Member(
                    **member.model_dump(include=set(Wanted.model_fields)),
                    digest=tokens.digest,
                    slots=num_slots,
                )
                for member, tokens, num_slots in zip(members, sets, slots, strict=True)
            ),
            created_by=f"headway {headway.__version__}",
        )
    content = manifest.model_dump_json(indent=2, exclude_none=True) + "\n"
    if not store.create(MIXTURE, content.encode()):
        there = read_mixture(location)
        if there.members != manifest.members:
            raise BadInput(
                f"{location} already holds another mixture", "delete it, or write into another"
            )
        return there
    return manifest


def read_mixture(location: str | Path, clock: Clock | None = None) -> MixtureManifest:
    store = Store(location)
    path = store.location(MIXTURE)
    content = _content(store, clock or SystemClock())
    if content is None:
        raise NotFound(
            f"{location} is not a mixture: it has no {MIXTURE}",
            "check the path, or write the mixture",
        )
    try:
        fields = json.loads(content)
    except ValueError as error:
        raise BadInput(f"{path} is not valid JSON: {error}", _AGAIN) from None
    version = fields.get("version") if isinstance(fields, dict) else None
    if version != VERSION:
        raise BadInput(
            f"{path} has format version {version!r}; this Headway reads version {VERSION}",
            "use the Headway that wrote it, or write it again with this one",
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


def is_mixture(location: str | Path, clock: Clock | None = None) -> bool:
    return _content(Store(location), clock or SystemClock()) is not None


class MixtureSet:
    """A mixture, open for reading; to training it is a set like any other."""

    def __init__(
        self, location: str | Path, manifest: MixtureManifest, sets: Sequence[TokenSet]
    ) -> None:
        self.location = str(location).rstrip("/")
        self.manifest = manifest
        self.sets = tuple(sets)
        self.table = Table(manifest.slots)
        self.digest = manifest.digest
        # The same for all members.
        self.layout = sets[0].layout
        self.window_tokens = sets[0].window_tokens
        self.vocab_size = sets[0].vocab_size
        self.special_ids = sets[0].special_ids
        self.tokenizer_digest = sets[0].tokenizer_digest
        self.in_sequence = False

    @classmethod
    def open(cls, location: str | Path, reading: Reading | None = None) -> MixtureSet:
        """Opens every member, and refuses one that is not what it was when they were mixed."""
        reading = reading or Reading()
        manifest = read_mixture(location, reading.clock)
        with ExitStack() as opened:
            sets = _open_members(opened, str(location), manifest.members, reading)
            for member, tokens in zip(manifest.members, sets, strict=True):
                if tokens.digest != member.digest:
                    raise BadInput(
                        f"{member.name} ({tokens.location}) is not the set that was put into the "
                        f"mixture {location}: its digest is {tokens.digest}, not {member.digest}",
                        "bring that set back, or write the mixture again",
                    )
            _require_fit(manifest.members, sets)
            wanted = _wanted(manifest.members, [tokens.manifest.num_tokens for tokens in sets])
            if divide(wanted, NUM_SLOTS) != manifest.slots:
                raise BadInput(
                    f"{Store(location).location(MIXTURE)}: the slots are not what the members' "
                    "weights or epochs come to",
                    _AGAIN,
                )
            opened.pop_all()
        return cls(location, manifest, sets)

    @property
    def tokenizer_folder(self) -> Path:
        return self.sets[0].tokenizer_folder

    def num_samples(self, sequence_length: int) -> int:
        """Positions of one epoch: as many as the members have samples, or, when the members are
        given in epochs, as those come to. `num_own_samples` counts what there is."""
        epochs = [_exact(member.epochs) for member in self.manifest.members if member.epochs]
        own = self.num_own_samples(sequence_length)
        if not epochs:
            return sum(own)
        return sum(round(times * num) for times, num in zip(epochs, own, strict=True))

    def wait_for(self, end: int, sequence_length: int) -> None:
        """Members are finished sets."""

    def num_own_samples(self, sequence_length: int) -> list[int]:
        """Of each member; `read` takes numbers below their sum."""
        return [tokens.num_samples(sequence_length) for tokens in self.sets]

    def tail_tokens(self, sequence_length: int) -> int:
        """Tokens at the members' ends that no sample of this length holds."""
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

    def read(self, samples: np.ndarray, sequence_length: int) -> Rows:
        offsets = self._offsets(sequence_length)
        assert samples.ndim == 1
        assert samples.size == 0 or (samples.min() >= 0 and samples.max() < offsets[-1])
        width = sequence_length + (1 if self.layout == "stream" else 0)
        tokens = np.empty((len(samples), width), dtype=np.int64)
        mask: np.ndarray | None = None
        # A member without samples of this length begins where the next one does: take the last.
        members = np.searchsorted(offsets, samples, side="right") - 1
        for number, here in groups(members):
            rows = self.sets[number].read(samples[here] - offsets[number], sequence_length)
            tokens[here] = rows.tokens
            if rows.mask is not None:
                if mask is None:
                    mask = np.ones((len(samples), width), dtype=np.bool_)
                mask[here] = rows.mask
        return Rows(tokens, mask)

    def prefetch(self, seed: int, sequence_length: int, first: int, count: int) -> None:
        """Each member fetches what its own part of these positions needs, and what follows."""
        begins, ends = self.table.counts(first), self.table.counts(first + count)
        for number, (tokens, begin, end) in enumerate(zip(self.sets, begins, ends, strict=True)):
            tokens.prefetch(member_seed(seed, number), sequence_length, begin, end - begin)

    def close(self) -> None:
        for tokens in self.sets:
            tokens.close()

    def _offsets(self, sequence_length: int) -> np.ndarray:
        """Where each member's samples begin, and where the last one's end."""
        return np.cumsum([0, *self.num_own_samples(sequence_length)], dtype=np.int64)


@dataclass(frozen=True)
class MemberShare:
    """What a member of a mixture comes to."""

    name: str
    wanted: float
    """Its share by weight, or by epochs and tokens."""
    share: float
    """Its share of the table: of all positions."""
    num_samples: int
    """That it has."""
    num_positions: int
    """That it gets."""
    num_epochs: float | None
    """How often it is read; None for a set too short for a sample."""


def shares(
    mixture: MixtureSet, sequence_length: int, num_positions: int | None = None
) -> list[MemberShare]:
    """What each member comes to in so many positions, or in one epoch of the mixture."""
    if num_positions is None:
        num_positions = mixture.num_samples(sequence_length)
    members = mixture.manifest.members
    wanted = _wanted(members, [tokens.manifest.num_tokens for tokens in mixture.sets])
    counts = mixture.table.counts(num_positions)
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


_AGAIN = "write the mixture again"
_ONE_KIND = "give every member a weight, or every member epochs"

_FIT = {
    "tokenizer_digest": "prepare both with the same tokenizer",
    "vocab_size": "prepare both with the same tokenizer",
    "special_ids": "prepare both with the same tokenizer",
    "layout": "prepare both with --windows, or both without",
    "window_tokens": "prepare both with the same --windows",
}
"""What members must have in common, and what to do when they do not."""


def _content(store: Store, clock: Clock) -> bytes | None:
    """Of mixture.json; None when there is none."""

    def look() -> bytes | None:
        try:
            return store.read(MIXTURE)
        except (FileNotFoundError, NotADirectoryError):
            return None

    return patiently(store, MIXTURE, look, clock, OPEN_SECONDS)


def _problem(members: Sequence[Wanted]) -> str | None:
    """Why these are no members of one mixture."""
    if not members:
        return "a mixture needs at least one member"
    names = [member.name for member in members]
    for name in names:
        if names.count(name) > 1:
            return f"two members are called {name}"
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
    opened: ExitStack, root: str, members: Sequence[Wanted], reading: Reading
) -> list[TokenSet]:
    """The members' sets. They are closed with `opened`."""
    reading = replace(reading, memory_bytes=reading.memory_bytes // len(members))
    sets: list[TokenSet] = []
    for member in members:
        place = _place(root, member)
        if is_mixture(place, reading.clock):
            raise BadInput(
                f"{member.name} ({place}) is a mixture itself", "name its members one by one"
            )
        tokens = TokenSet.open(place, reading)
        opened.callback(tokens.close)
        sets.append(tokens)
    return sets


def _require_fit(members: Sequence[Wanted], sets: Sequence[TokenSet]) -> None:
    for member, tokens in zip(members, sets, strict=True):
        for fact, hint in _FIT.items():
            one, other = (getattr(found, fact) for found in (sets[0], tokens))
            if one != other:
                raise BadInput(
                    f"{members[0].name} ({sets[0].location}) and {member.name} "
                    f"({tokens.location}) cannot be mixed: {fact} is {one} and {other}",
                    hint,
                )


def _place(root: str, member: Wanted) -> str:
    """Where a member's set is, seen from here."""
    if "://" in member.location or Path(member.location).is_absolute():
        return member.location
    scheme, separator, key = root.partition("://")
    if not separator:
        # By name and not by asking the disk: the mixture's folder may not be there yet.
        return os.path.normpath(os.path.join(os.path.realpath(root), member.location))
    # Object stores know no `..`, and the first part is the bucket.
    bucket, _, prefix = key.partition("/")
    inside = posixpath.normpath(posixpath.join(prefix, member.location))
    if inside.split("/")[0] == "..":
        raise BadInput(
            f"{member.name}: {member.location} leads out of {scheme}://{bucket}",
            f"give its whole address, {scheme}://...",
        )
    return f"{scheme}://{bucket}/{inside}"


def _exact(number: float) -> Fraction:
    """The decimal that was written, not the binary fraction next to it: a tenth is a tenth."""
    return Fraction(repr(number))


def _wanted(members: Sequence[Wanted], num_tokens: Sequence[int]) -> list[Fraction]:
    """What each member should have, in a common unit."""
    return [
        _exact(member.weight) if member.weight is not None else _exact(member.epochs or 0) * tokens
        for member, tokens in zip(members, num_tokens, strict=True)
    ]


def _require_shares(names: Sequence[str], wanted: Sequence[Fraction], slots: Sequence[int]) -> None:
    """Refuses a mixture in which rounding to slots would misstate somebody's share."""
    total, size = sum(wanted), sum(slots)
    for name, amount, count in zip(names, wanted, slots, strict=True):
        share = amount / total
        if abs(Fraction(count, size) - share) > share * TOLERANCE:
            # Largest remainder is off by less than one slot, and a little for those rounded up.
            enough = math.ceil(1 / TOLERANCE) + 1
            raise BadInput(
                f"{name} cannot have {_percent(share)} of the mixture: rounded to {count} of "
                f"{size} slots it would be {_percent(Fraction(count, size))}; the smallest share "
                f"there can be is {_percent(Fraction(1, size))}",
                f"leave {name} out, or give it at least {_percent(Fraction(enough, size))}, from "
                f"where on every share is met within {_percent(TOLERANCE)} of itself",
            )


def _percent(share: Fraction) -> str:
    return f"{float(100 * share):.3g} %"
