"""Published figures of memory as plan would count them: which state, sharding and kernels a row
means.

What a row does not say is filled in here by its source, once, and not by what a fit makes of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from headway.plan.accelerators import Device, Precision, find_device
from headway.plan.memory_peak import GPU_ALLOCATOR, GPU_SMALL, OUTSIDE_BYTES
from headway.plan.saved_activations import (
    NUMBER_BYTES,
    KeptBytes,
    LayerShape,
    kept_bytes,
    layer_shape,
)
from headway.plan.step_moments import StateBytes, StepShape, highest_moment
from headway.plan.workload import CountedModel
from support.published_rows import Row, read_rows

BF16_STATE = StateBytes(weights=2, gradients=2, optimizer=4, reduce=2)
"""Everything in bf16, as LitGPT's bf16-true and torchtune have it."""
MASTER_STATE = StateBytes(weights=2, gradients=2, optimizer=12, reduce=2)
"""Weights and gradients in half precision, fp32 weights with the optimizer: DeepSpeed, Megatron."""
STATES: Mapping[str, StateBytes] = {
    "litgpt": BF16_STATE,
    "torchtune": BF16_STATE,
    "tinyllama": BF16_STATE,
    "bigscience": MASTER_STATE,
    "qwen": MASTER_STATE,
}
"""By source; others have Headway's."""
WITHOUT_FLASH = ("bigscience", "pai")
BYTES = {"GiB": 2**30, "GB": 10**9, "G": 10**9, "MB": 10**6}
BOARDS = {"96 GB HBM2e": 94.0, "94 GB as printed": 93.0}
"""GiB of boards that are not in the table of devices, about, by the row's own words."""
CHUNKED_LOSS = ("chunked-loss", "mb2-recompute")
"""Rows of torchtune whose loss is computed in pieces; the later one adds to the earlier."""


@dataclass(frozen=True)
class PublishedMemory:
    row: Row
    shape: StepShape
    optimizer_shards: int
    """Devices that divide the optimizer's state alone: ZeRO 1."""
    room: float
    """Bytes that torch sees."""

    @property
    def counted(self) -> float:
        """Bytes of tensors at the peak of a step, on a GPU."""
        moment = highest_moment(self.shape)[1]
        away = moment["optimizer"] * (1 - 1 / self.optimizer_shards)
        return sum(moment.values()) - away

    @property
    def published(self) -> float | None:
        """Bytes on a GPU; None: the row is a verdict."""
        values = self.row.values
        if "value" not in values:
            return None
        gpus = values["num_gpus"] if values["scope"] == "all_gpus" else 1
        return float(values["value"] * BYTES[values["unit"]] / gpus)

    @property
    def predicted(self) -> tuple[float, float, float]:
        """What the row measures: the estimate, its low and its high."""
        measure, counted = self.row.values["measure"], self.counted
        shares = [GPU_SMALL]
        if measure not in ("peak_allocated", "peak_active"):
            shares.append(GPU_ALLOCATOR)
        least = 0.6 if self.row.values.get("compile") else 0.97
        low = counted * (least + sum(share.low for share in shares))
        middle = counted * (1 + sum(share.middle for share in shares))
        high = counted * (1.03 + sum(share.high for share in shares))
        if measure in ("peak_allocated", "peak_active", "peak_reserved"):
            return middle, low, high
        return middle + OUTSIDE_BYTES[1], low + OUTSIDE_BYTES[0], high + OUTSIDE_BYTES[2]

    @property
    def verdict(self) -> str:
        _, low, high = self.predicted
        return "fits" if high <= self.room else "does not fit" if low > self.room else "may not fit"

    @property
    def error(self) -> float:
        assert self.published is not None
        return self.predicted[0] / self.published - 1

    @property
    def is_comparable(self) -> bool:
        """Whether torch alone trained it, and the row says enough."""
        return "weak" not in self.row.values and self.row.values["source"] not in ("bigscience",)

    @property
    def is_fitted(self) -> bool:
        """Whether the shares of GPUs rest on it, too."""
        values = self.row.values
        is_peak = values["measure"] in ("peak_allocated", "peak_active", "peak_reserved")
        return (
            self.row.side == "fit" and is_peak and self.is_comparable and not values.get("compile")
        )

    @property
    def is_right(self) -> bool:
        did_fit = self.row.values["measure"] == "fits"
        return self.verdict == ("fits" if did_fit else "does not fit")

    @property
    def is_unsafe(self) -> bool:
        """It was said to fit and did not, or the other way round."""
        did_fit = self.row.values["measure"] == "fits"
        return self.verdict == ("does not fit" if did_fit else "fits")


def published_memory() -> Iterator[PublishedMemory]:
    """All rows that Headway could run and that say enough, in the order of the file."""
    for row in read_rows("memory"):
        values = row.values
        if "outside" not in values and "sequence_length" in values:
            yield _published(row)


def unusable() -> list[str]:
    used = {published.row.id for published in published_memory()}
    return [row.id for row in read_rows("memory") if row.id not in used]


def _published(row: Row) -> PublishedMemory:
    values, source = row.values, row.values["source"]
    model = CountedModel(row.model["type"], row.model["config"], row.size)
    shape, length = layer_shape(model), values["sequence_length"]
    # Of the boards that are not named only their 32 GB are known.
    device = find_device(values["device"]) or find_device("V100-32GB")
    assert device is not None
    precision: Precision = values["precision"]
    number = NUMBER_BYTES[precision]
    # Published runs of GPT have no dropout unless they say so.
    shape = replace(shape, dropout=replace(shape.dropout, outputs=False, embeddings=False))
    is_recomputed = values.get("recompute") == "full"
    sharding, gpus = values.get("sharding"), values["num_gpus"]
    micro, batch = values["micro_batch"], values.get("global_batch")
    step = StepShape(
        model=shape,
        parameters=row.size.parameters,
        kept=_kept(row, shape, device, precision, length),
        number=number,
        tokens=micro * length,
        shards=gpus if sharding in ("fsdp", "zero3") else 1,
        recomputed=shape.layers if is_recomputed else 0,
        has_gradients=sharding == "ddp" or bool(batch and batch > micro * gpus),
        on_gpu=True,
        state=STATES.get(source, StateBytes()),
        # In pieces, the logits are in memory a few at a time.
        logits_bytes=2 if row.id.endswith(CHUNKED_LOSS) else 12,
    )
    known = BOARDS.get(values.get("device_note", ""))
    room = (known or device.torch_gib) * 2**30
    return PublishedMemory(row, step, gpus if sharding == "zero1" else 1, room)


def _kept(
    row: Row, shape: LayerShape, device: Device, precision: Precision, length: int
) -> KeptBytes:
    kept = kept_bytes(shape, length, precision, device)
    c = NUMBER_BYTES[precision]
    if row.values.get("recompute") == "selective":
        # torchtitan's, by operator: the input, attention's output, and every second product: the
        # queries, the values, the gate and the layer's output.
        numbers = 2 * shape.hidden + 2 * shape.width + shape.key_width + shape.inner
        kept = replace(kept, layer=c * numbers + 4 * shape.heads)
    if row.values["source"] in WITHOUT_FLASH:
        # Scores, probabilities and a mask of dropout, written out.
        kept = replace(kept, layer=kept.layer + (2 * c + 1) * shape.heads * length)
    return kept


def fitted_shares(*measures: str) -> list[float]:
    """Published over counted bytes, less one, of the rows that may be fitted to."""
    return [
        row.published / row.counted - 1
        for row in published_memory()
        if row.is_fitted and row.row.values["measure"] in measures and row.published is not None
    ]


def accuracy_section() -> str:
    """Of docs/concepts/plan-accuracy.md."""
    rows = list(published_memory())
    figures = [row for row in rows if row.published is not None]
    torch_alone = [row for row in figures if row.is_comparable]
    predicted = [abs(row.error) for row in torch_alone if not row.is_fitted]
    verdicts = [row for row in rows if row.published is None]
    right = [row for row in verdicts if row.is_right]
    unsafe = [row for row in verdicts if row.is_unsafe]
    cautious = len(verdicts) - len(right) - len(unsafe)
    said = [abs(row.error) for row in torch_alone]
    lines = [
        f"**{len(verdicts)} published verdicts** (a run that fitted, or ran out of memory): "
        f"{len(right)} right, {cautious} too careful (`may not fit` of one that did), "
        f"{len(unsafe)} unsafe.",
        "",
        f"**{len(torch_alone)} published peaks** of programs that train as Headway does, by "
        f"torch alone and with the setting printed: median error "
        f"{statistics.median(said):.1%}, largest {max(said):.0%}; the {len(predicted)} of them "
        f"that nothing was fitted to: {statistics.median(predicted):.1%}, largest "
        f"{max(predicted):.0%}.",
        "",
        _all_rows(figures),
        "",
        "| row, at its source | GPUs | published | predicted | range | error | |",
        "|---|---|--:|--:|--:|--:|---|",
        *(_line(row) for row in [*torch_alone, *(r for r in figures if not r.is_comparable)]),
        "",
        "| row, at its source | GPUs | published | predicted | range | torch sees |",
        "|---|---|---|---|--:|--:|",
        *(_verdict_line(row) for row in verdicts),
        "",
        f"Not comparable: {', '.join(name.removeprefix('memory-') for name in unusable())}.",
    ]
    return "\n".join(lines)


def _all_rows(figures: list[PublishedMemory]) -> str:
    """The same without a choice of rows."""
    strong = [row for row in figures if "weak" not in row.row.values]
    above = [row for row in figures if row.published and row.published > row.predicted[2]]
    apart = [row for row in strong if not row.is_comparable]
    return (
        f"The {len(apart)} rows of BigScience (Megatron with DeepSpeed) were set apart after their "
        "errors were seen; that buffers of those programs are the cause is likely, and not shown. "
        f"With them, {len(strong)} rows: median error "
        f"{statistics.median(abs(row.error) for row in strong):.1%}, largest "
        f"{max(abs(row.error) for row in strong):.0%}. Of all {len(figures)} rows with a peak, "
        f"weak ones too, {len(above)} are above the upper end of their range, all of them "
        "DeepSpeed's. GiB on a GPU:"
    )


def _named(row: PublishedMemory) -> str:
    name, url = row.row.id.removeprefix("memory-"), row.row.source["url"]
    values = row.row.values
    return f"[{name}]({url}) ({values['where']}) | {values['num_gpus']} x {values['device']}"


def _range(row: PublishedMemory) -> str:
    _, low, high = row.predicted
    return f"{low / 2**30:.1f} to {high / 2**30:.1f}"


def _line(row: PublishedMemory) -> str:
    assert row.published is not None
    note = "fitted to" if row.is_fitted else "compiled" if row.row.values.get("compile") else ""
    if not row.is_comparable:
        note = "weak" if "weak" in row.row.values else "Megatron with DeepSpeed"
    return (
        f"| {_named(row)} | {row.published / 2**30:.1f} | {row.predicted[0] / 2**30:.1f} | "
        f"{_range(row)} | {row.error:+.1%} | {note} |"
    )


def _verdict_line(row: PublishedMemory) -> str:
    said = row.row.values["measure"].replace("_", " ")
    return f"| {_named(row)} | {said} | {row.verdict} | {_range(row)} | {row.room / 2**30:.1f} |"
