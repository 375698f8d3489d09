"""Published figures of other people's runs, and which of them may be fitted to.

The figures are the TOML files in bench/published; the head of throughput.toml explains the keys.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headway.plan.model_size import ModelSize, flops_per_token, model_size

FOLDER = Path(__file__).parents[2] / "bench" / "published"
Side = Literal["fit", "predict"]


@dataclass(frozen=True)
class Row:
    """One published figure with its source and its model."""

    id: str
    values: Mapping[str, Any]
    """Keys of the row, as in the file."""
    source: Mapping[str, Any]
    model: Mapping[str, Any]

    @property
    def side(self) -> Side:
        """Whether the row may be fitted to, or is there to be predicted."""
        number = int(hashlib.sha256(self.id.encode()).hexdigest(), 16)
        return "fit" if number % 2 == 0 else "predict"

    @property
    def size(self) -> ModelSize:
        size = model_size(self.model["type"], self.model["config"])
        assert size is not None, f"{self.id}: plan cannot count {self.model['type']}"
        return size


def read_rows(name: Literal["throughput", "memory"]) -> list[Row]:
    sources, models = _read("sources"), _read("models")
    return [
        Row(row["id"], row, sources[row["source"]], models[row["model"]])
        for row in _read(name)["row"]
    ]


def tokens_per_second_per_gpu(row: Row) -> float:
    """The throughput of a row, whatever it was measured in."""
    values = row.values
    value, gpus, length = values["value"], values["num_gpus"], values["sequence_length"]
    match values["measure"]:
        case "tokens_per_second_per_gpu":
            rate = value
        case "tokens_per_second":
            rate = value / gpus
        case "sequences_per_second":
            rate = value * length / gpus
        case "seconds_per_step":
            rate = values["global_batch"] * length / value / gpus
        case "seconds_per_micro_batch":
            rate = values["micro_batch"] * length / value
        case "model_tflops_per_gpu":
            rate = value * 1e12 / flops_per_token(row.size, length)
        case "megatron_hardware_tflops_per_gpu":
            rate = value * 1e12 / _megatron_flops_per_token(row.size, row.model, length)
        case other:
            raise AssertionError(f"{row.id}: measure {other!r}")
    return float(rate)


def _megatron_flops_per_token(size: ModelSize, model: Mapping[str, Any], length: int) -> float:
    """Narayanan et al. 2021, formula 3, over batch x length. The blocks are passed four times (the
    forward pass again for recomputation), the head three times."""
    layers, hidden, vocabulary = size.num_layers, size.hidden, model["config"]["vocab_size"]
    inner = 1 + length / (6 * hidden) + vocabulary / (16 * layers * hidden)
    return float(96 * layers * hidden**2 * inner)


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))
