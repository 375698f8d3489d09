"""Published throughputs as plan would compute them: which model, devices and method a row means.

What a row does not say is filled in here by its source, once, and not by what a fit makes of it.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headway.plan.accelerators import Device, Precision, find_device
from headway.plan.efficiency import ASSUMED_NETWORK_GBIT, FILE, fitted
from headway.plan.step_work import Efficiencies, JoinedDevices, Method, Passes, Sharding, step_parts
from headway.plan.workload import CountedModel
from support.published_rows import Row, read_rows, tokens_per_second_per_gpu

FUSED = (
    *("llmc", "llmq", "llmq-h100x8", "tinyllama", "bigscience", "dle-bert"),
    *("megatron-2020", "megatron-2021", "megatron-2024"),
)
"""Sources that have kernels of their own for elementwise work: CUDA programs, Megatron's fused
kernels, xformers', those of NVIDIA's BERT of 2022 (in 2021 it fused the norms alone)."""
WITHOUT_FLASH = ("bigscience", "dle-bert", "megatron-2020", "megatron-2021", "esm2")
"""Those whose attention writes its scores to memory: from before fused kernels, or a model class of
transformers that had none then."""
FP32_GRADIENTS = ("titan", "nanogpt", "esm2", "megatron-2024")
"""Those that send gradients in fp32, besides the rows of MPT that say DEFAULT."""
GBIT = 1e9 / 8
DEFAULT_NODE = 8


@dataclass(frozen=True)
class Published:
    row: Row
    model: CountedModel
    passes: Passes
    place: JoinedDevices
    method: Method

    @property
    def family(self) -> str:
        """Sources of the same people and programs."""
        return str(self.row.values["source"]).partition("-")[0]

    @property
    def published(self) -> float:
        """Tokens per second and GPU."""
        return tokens_per_second_per_gpu(self.row)

    def predicted(self, efficiencies: Efficiencies) -> float:
        parts = step_parts(self.model, None, self.passes, self.place, self.method, efficiencies)
        return self.passes.tokens / parts.seconds


def published_times() -> list[Published]:
    """All rows that Headway could run, in the order of the file."""
    return [_published(row) for row in read_rows("throughput") if "outside" not in row.values]


def _published(row: Row) -> Published:
    values = row.values
    gpus, length = values["num_gpus"], values["sequence_length"]
    batch, micro = values.get("global_batch"), values.get("micro_batch")
    if micro is None:
        # Not printed: one pass of all that a device has, or of about 8192 tokens.
        micro = batch // gpus if batch else max(1, 8192 // length)
    number = max(1, round(batch / (micro * gpus))) if batch else 1
    device = _device(values)
    per_node = min(gpus, values.get("gpus_per_node", DEFAULT_NODE))
    place = JoinedDevices(
        device, per_node, -(-gpus // per_node), _network(values, device, per_node)
    )
    precision: Precision = values["precision"]
    return Published(
        row=row,
        model=CountedModel(row.model["type"], row.model["config"], row.size),
        passes=Passes(number, micro, length, precision),
        place=place,
        method=_method(row, place),
    )


def _device(values: Mapping[str, Any]) -> Device:
    device = find_device(values["device"])
    assert device is not None
    if found := re.search(r"at ([\d.]+) TB/s", values.get("device_note", "")):
        device = replace(device, memory_bytes_per_second=float(found[1]) * 1e12)
    return device


def _network(values: Mapping[str, Any], device: Device, per_node: int) -> float:
    words = values.get("interconnect", "")
    if found := re.search(r"(\d+) ?Gb/s per GPU", words):
        return int(found[1]) * per_node * GBIT
    if found := re.search(r"(\d+) ?Gbps", words):
        return int(found[1]) * GBIT
    if words.startswith("g5.12xlarge"):
        return 40 * GBIT
    return ASSUMED_NETWORK_GBIT[device.chip] * per_node * GBIT


def _method(row: Row, place: JoinedDevices) -> Method:
    values, note, source = row.values, row.values.get("note", ""), row.values["source"]
    kinds: dict[str, tuple[Sharding, int]] = {
        "none": ("none", 1),
        "ddp": ("ddp", 1),
        "zero1": ("zero1", place.num_devices),
        "zero2": ("zero2", place.num_devices),
        "zero3": ("zero3", place.num_devices),
        "fsdp": ("zero3", place.num_devices),
        "hsdp": ("zero3", place.devices_per_node),
    }
    sharding, group = kinds[values["sharding"]]
    recomputed = {"none": 0.0, "selective": 0.5, "full": 1.0}[values.get("recompute", "none")]
    is_fp32 = source.startswith(FP32_GRADIENTS) or "DEFAULT" in note
    is_bf16 = bool(re.search(r"(optimizer state in bf16|bf16-true)", note))
    is_lamb = values.get("optimizer") == "LAMB"
    return Method(
        sharding=sharding,
        shard_devices=group,
        recomputed=recomputed,
        is_fused=bool(values.get("compile")) or source in FUSED,
        materializes_scores=source.startswith(WITHOUT_FLASH),
        gradient_bytes=4 if is_fp32 else 2,
        state_bytes=2 if is_bf16 else 4,
        optimizer_touches=20 if is_lamb else 12,
    )


CHIPS = {"GA100": "A100", "GH100": "H100", "GV100": "V100", "AD102": "L40S", "GA102": "A10G"}


def time_section() -> str:
    """For docs/concepts/plan-accuracy.md: what the efficiencies of the package predict."""
    record = json.loads(FILE.read_text("utf-8"))
    return "\n".join(
        [*_predicted_rows(record), "", *_fitted_numbers(record), "", *_left_out(record)]
    )


def _predicted_rows(record: Mapping[str, Any]) -> Iterator[str]:
    efficiencies = fitted().efficiencies
    rows = [one for one in published_times() if one.row.side == "predict"]
    errors = [one.predicted(efficiencies) / one.published - 1 for one in rows]
    median, largest = statistics.median(map(abs, errors)), max(errors, key=abs)
    low, high = record["true_over_predicted"]
    yield (
        f"**{len(rows)} rows predicted: median error {_percent(median, 1)}**, "
        f"{sum(abs(error) <= 0.15 for error in errors)} of them within 15 %, largest "
        f"{_signed(largest, 0)}. In nine of ten the true time of a step is between {low:.2f} and "
        f"{high:.2f} of the predicted one. Tokens per second and GPU:"
    )
    yield ""
    yield "| row, at its source | device | published | predicted | error |"
    yield "|---|---|--:|--:|--:|"
    for one, error in zip(rows, errors, strict=True):
        device = f"{one.place.num_devices} x {one.place.device.name}"
        link = f"[{one.row.id}]({one.row.source['url']}) ({one.row.values['where']})"
        rates = f"{one.published:,.0f} | {one.predicted(efficiencies):,.0f}"
        yield f"| {link} | {device} | {rates} | {_signed(error, 1)} |"


def _fitted_numbers(record: Mapping[str, Any]) -> Iterator[str]:
    shares = (f"{CHIPS[chip]} {_percent(share, 0)}" for chip, share in record["matmul"].items())
    yield (
        f"Fitted to the other {record['num_fitted']} rows: products with weights reach this share "
        f"of the peak: {', '.join(shares)}; attention {_percent(record['attention'], 0)} of that. "
        f"An activation is read or written {record['touches']:.1f} times in a pass, "
        f"{record['fused_touches']:.1f} times if elementwise work is fused or compiled. "
        f"{_percent(record['exposed'], 0)} of the communication that computing could hide is "
        "visible."
    )


def _left_out(record: Mapping[str, Any]) -> Iterator[str]:
    low, high = record["left_out_true_over_predicted"]
    yield (
        "Left out one source at a time: fitted to the rows of all others, its own predicted. Of "
        f"the rows whose chip other sources have too, nine of ten true times are between {low:.2f} "
        f"and {high:.2f} of the predicted ones. **That is the range that `plan` prints**: a run of "
        "yours is of a source that was never fitted to."
    )
    yield ""
    yield "| source | rows | median error | largest | |"
    yield "|---|--:|--:|--:|---|"
    for family, left in record["left_out"].items():
        alone = ", ".join(CHIPS[chip] for chip in left["new_chips"])
        words = f"no other source has {alone}: the middle of the others is taken" if alone else ""
        errors = f"{_percent(left['median_error'], 1)} | {_signed(left['largest'], 0)}"
        yield f"| {family} | {left['rows']} | {errors} | {words} |"


def _percent(share: float, digits: int) -> str:
    return f"{share * 100:.{digits}f} %"


def _signed(share: float, digits: int) -> str:
    return f"{share * 100:+.{digits}f} %"
