"""Quantities as people write them: `10B tokens`, `10min`, `500 steps`, `5%`, `2..16`, `H100:8`.

Each type is a frozen value with `parse` (from what the file says) and `str` (back to a form that
`parse` accepts). A wrong value raises ValueError whose text says what would have been right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from headway.spec.section import Suggesting

MULTIPLES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
SECONDS = {"s": 1, "sec": 1, "min": 60, "h": 3600, "d": 86400}
NUMBER = r"(\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)"
LARGEST = 10**24
"""Longer than any run; below it decimals keep every digit."""


def ambiguous_m(value: object) -> str | None:
    """The error message for a bare `m` (`10m`, `10m tokens`), else None."""
    match = re.match(rf"^{NUMBER}\s*m(\s|$)", str(value).strip())
    if match is None:
        return None
    return (
        f"{value!r} is ambiguous: minutes or million? Write {match[1]}min or {match[1]}M (with a "
        "unit, as in 10M tokens)"
    )


def scaled(number: str, factor: int) -> int | float:
    """`0.5`, 10**6 -> 500000: an int whenever the result is whole, and then with every digit."""
    value = Decimal(number.replace("_", "")) * factor
    if float(value) <= 0:
        raise ValueError(f"{number} is not a positive number")
    if value > LARGEST:
        raise ValueError(f"{number} is too large")
    return int(value) if value == value.to_integral_value() else float(value)


def plain(amount: int | float) -> str:
    """The shortest exact form: 10000000000 -> `10B`, 500 -> `500`."""
    for letter, factor in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if isinstance(amount, int) and amount % factor == 0:
            return f"{amount // factor}{letter}"
    return str(amount)


def counted(value: Any, units: tuple[str, ...], example: str) -> tuple[int | float, str]:
    """(amount, unit) of text such as `10k steps`; the unit may be singular."""
    if complaint := ambiguous_m(value):
        raise ValueError(complaint)
    match = re.match(rf"^{NUMBER}\s*([kKMBGT]?)\s*([a-z]+)$", str(value).strip())
    if match is None:
        problem = f"{value!r} is not a number with a unit; write for example {example}"
        if re.fullmatch(rf"{NUMBER}[kKMBGT]?", str(value).strip()):
            raise Suggesting(problem, f"write {value} {'steps' if 'steps' in units else units[0]}")
        raise ValueError(problem)
    unit = match[3] if match[3] in units else match[3] + "s"
    if unit not in units:
        raise ValueError(f"{value!r}: {match[3]!r} is not a unit here; write for example {example}")
    return scaled(match[1], MULTIPLES[match[2]]), unit


@dataclass(frozen=True)
class Length:
    """Length of a run."""

    amount: int | float
    unit: Literal["tokens", "steps", "epochs"]

    @classmethod
    def parse(cls, value: Any) -> Length:
        if isinstance(value, Length):
            return value
        amount, unit = counted(value, ("tokens", "steps", "epochs"), "10B tokens or 500 steps")
        if unit != "epochs" and not isinstance(amount, int):
            raise ValueError(f"{value!r} is not a whole number of {unit}")
        return cls(amount, unit)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{plain(self.amount)} {self.unit}"


@dataclass(frozen=True)
class Interval:
    """Interval in steps or in time."""

    amount: int | float
    unit: Literal["steps", "seconds"]

    @classmethod
    def parse(cls, value: Any) -> Interval:
        if isinstance(value, Interval):
            return value
        if complaint := ambiguous_m(value):
            raise ValueError(complaint)
        match = re.match(rf"^{NUMBER}\s*({'|'.join(SECONDS)})$", str(value).strip())
        if match is not None:
            return cls(scaled(match[1], SECONDS[match[2]]), "seconds")
        amount, _ = counted(value, ("steps",), "10min or 500 steps")
        if not isinstance(amount, int):
            raise ValueError(f"{value!r} is not a whole number of steps")
        return cls(amount, "steps")

    def __str__(self) -> str:
        if self.unit == "steps":
            return f"{plain(self.amount)} steps"
        for word, seconds in (("d", 86400), ("h", 3600), ("min", 60)):
            if self.amount % seconds == 0:
                return f"{int(self.amount // seconds)}{word}"
        return f"{self.amount}s"


@dataclass(frozen=True)
class Warmup:
    """A fraction of the run, or a number of steps."""

    amount: int | float
    unit: Literal["share", "steps"]

    @classmethod
    def parse(cls, value: Any) -> Warmup:
        if isinstance(value, Warmup):
            return value
        match = re.match(rf"^{NUMBER}\s*%$", str(value).strip())
        if match is not None:
            share = float(Decimal(match[1].replace("_", "")) / 100)
            if share > 1:
                raise ValueError(f"{value!r} is more than the whole run")
            return cls(share, "share")
        if str(value).strip() in ("0", "0 steps"):
            return cls(0, "steps")
        amount, _ = counted(value, ("steps",), "5% or 2000 steps")
        if not isinstance(amount, int):
            raise ValueError(f"{value!r} is not a whole number of steps")
        return cls(amount, "steps")

    def steps(self, total: int) -> int:
        return int(self.amount) if self.unit == "steps" else round(self.amount * total)

    def __str__(self) -> str:
        if self.unit == "share":
            # In decimals: as floats, 0.07 x 100 is a hair above 7.
            return f"{(Decimal(repr(self.amount)) * 100).normalize():f}%"
        return f"{plain(int(self.amount)) if self.amount else 0} steps"


@dataclass(frozen=True)
class BatchSize:
    """The global batch: sequences, or tokens that are divided by the sequence length."""

    amount: int
    unit: Literal["sequences", "tokens"]

    @classmethod
    def parse(cls, value: Any) -> BatchSize:
        if isinstance(value, BatchSize):
            return value
        if re.match(r"^-?\d+$", str(value).strip()):
            if int(value) < 1:
                raise ValueError(f"a batch needs at least 1 sequence, not {value}")
            return cls(int(value), "sequences")
        amount, unit = counted(value, ("sequences", "tokens"), "512 or 0.5M tokens")
        if not isinstance(amount, int):
            raise ValueError(f"{value!r} is not a whole number of {unit}")
        return cls(amount, unit)  # type: ignore[arg-type]

    def sequences(self, sequence_length: int) -> int:
        """Sequences of the batch; tokens are rounded to the nearest whole sequence, at least 1."""
        if self.unit == "sequences":
            return self.amount
        return max(1, round(self.amount / sequence_length))

    def __str__(self) -> str:
        return str(self.amount) if self.unit == "sequences" else f"{plain(self.amount)} tokens"


@dataclass(frozen=True)
class NodeRange:
    """Number of nodes, `4`, or a range, `2..16`: start with two, grow to sixteen."""

    minimum: int
    maximum: int

    @classmethod
    def parse(cls, value: Any) -> NodeRange:
        if isinstance(value, NodeRange):
            return value
        match = re.match(r"^(\d+)(?:\.\.(\d+))?$", str(value).strip())
        if match is None:
            raise ValueError(f"{value!r} is neither a number of nodes nor a range such as 2..16")
        low, high = int(match[1]), int(match[2] or match[1])
        if not 1 <= low <= high:
            raise ValueError(f"{value!r}: a range must start at 1 or more and not decrease")
        return cls(low, high)

    def __str__(self) -> str:
        low, high = self.minimum, self.maximum
        return str(low) if low == high else f"{low}..{high}"


@dataclass(frozen=True)
class Accelerators:
    """Devices per node: `H100:8`; `cpu:2` is two workers on the CPU. A list is a preference:
    `[H100:8, A100-80:8]`."""

    kind: str
    count: int
    others: tuple[str, ...] = ()
    """Kinds that will do, too, the best first."""

    @classmethod
    def parse(cls, value: Any) -> Accelerators:
        if isinstance(value, Accelerators):
            return value
        text = str(value).strip()
        if not isinstance(value, list) and not text.startswith("["):
            return cls._one(value)
        entries = value if isinstance(value, list) else text.strip("[]").split(",")
        found = [cls._one(entry) for entry in entries]
        kinds = [one.kind for one in found]
        if len({kind.lower() for kind in kinds}) < max(1, len(kinds)):
            raise ValueError(f"{value!r} is no list of different devices, such as [H100:8, L40S:8]")
        if len(found) > 1 and any(one.is_cpu for one in found):
            raise ValueError(f"{value!r}: cpu cannot be one of several")
        if len({one.count for one in found}) > 1:
            raise ValueError(
                f"{value!r}: each kind needs the same number per node, such as [H100:8, L40S:8]"
            )
        return cls(kinds[0], found[0].count, tuple(kinds[1:]))

    @classmethod
    def _one(cls, value: Any) -> Accelerators:
        match = re.match(r"^([A-Za-z][\w.-]*)(?::(\d+))?$", str(value).strip())
        if match is None or int(match[2] or 1) == 0:
            raise ValueError(f"{value!r} is not a device and its number per node, such as H100:8")
        return cls(match[1], int(match[2] or 1))

    @property
    def is_cpu(self) -> bool:
        return self.kind.lower() == "cpu"

    @property
    def choices(self) -> tuple[Accelerators, ...]:
        """Each kind by itself, the best first."""
        return tuple(Accelerators(kind, self.count) for kind in (self.kind, *self.others))

    def __str__(self) -> str:
        if not self.others:
            return f"{self.kind}:{self.count}"
        return f"[{', '.join(map(str, self.choices))}]"


@dataclass(frozen=True)
class Sharding:
    """What one copy of the model is divided over: `none`, `node`, `2 nodes`, `all`; or `auto`."""

    unit: Literal["auto", "none", "node", "nodes", "all"]
    num_nodes: int = 1
    """Nodes of one copy; 0: all that the run has."""

    @classmethod
    def parse(cls, value: Any) -> Sharding:
        if isinstance(value, Sharding):
            return value
        text = str(value).strip()
        if text in ("auto", "none", "node"):
            return cls(text)  # type: ignore[arg-type]
        if text == "all":
            return cls("all", 0)
        match = re.match(r"^(\d+) nodes?$", text)
        if match is None or int(match[1]) < 1:
            raise ValueError(
                f"{value!r} is not one of auto, none, node and all, nor a number of nodes, "
                "such as 2 nodes"
            )
        return cls("node") if int(match[1]) == 1 else cls("nodes", int(match[1]))

    @property
    def is_wide(self) -> bool:
        """Whether a copy is divided over more than one node."""
        return self.num_nodes != 1

    def __str__(self) -> str:
        return f"{self.num_nodes} nodes" if self.unit == "nodes" else self.unit


def _written(kind: type[Any], description: str, *examples: str | int) -> Any:
    """Pydantic annotations of a unit type: parser, serializer, and its JSON Schema."""
    schema: dict[str, Any] = {
        "type": ["string", "integer"] if any(isinstance(e, int) for e in examples) else "string",
        "description": description,
        "examples": list(examples),
    }
    return PlainValidator(kind.parse), PlainSerializer(str), WithJsonSchema(schema)


LengthField = Annotated[
    Length, *_written(Length, "tokens, steps or epochs", "10B tokens", "500 steps", "3 epochs")
]
IntervalField = Annotated[Interval, *_written(Interval, "steps or time", "500 steps", "10min")]
WarmupField = Annotated[Warmup, *_written(Warmup, "fraction or steps", "5%", "2000 steps", 0)]
BatchSizeField = Annotated[
    BatchSize, *_written(BatchSize, "sequences or tokens", 512, "0.5M tokens")
]
ShardField = Annotated[
    Sharding,
    *_written(Sharding, "none, node, a number of nodes, all or auto", "node", "2 nodes", "all"),
]
NodeRangeField = Annotated[NodeRange, *_written(NodeRange, "number or range", 4, "2..16")]
AcceleratorsField = Annotated[
    Accelerators,
    PlainValidator(Accelerators.parse),
    PlainSerializer(str),
    WithJsonSchema(
        {
            "type": ["string", "array"],
            "items": {"type": "string"},
            "description": "device and its number per node; or a list, the best first",
            "examples": ["H100:8", "cpu:2", ["H100:8", "A100-80:8"]],
        }
    ),
]


def parse_share(value: Any) -> float:
    """`1%` or 0.01."""
    match = re.match(rf"^{NUMBER}\s*(%?)$", str(value).strip())
    share = float(Decimal(match[1].replace("_", "")) / (100 if match[2] else 1)) if match else 0
    if not 0 < share < 1:
        raise ValueError(f"{value!r} is not a fraction between 0 and 1, such as 1%")
    return share


ShareField = Annotated[
    float,
    PlainValidator(parse_share),
    WithJsonSchema({"type": ["string", "number"], "description": "a fraction", "examples": ["1%"]}),
]
