"""What one device does in a step, in operations and bytes, and how long that takes at given
efficiencies.

A step is the sum of what the matrix units do (products with weights, attention), of what the memory
does beside them (everything elementwise, the optimizer), and of the communication that computing
does not hide. A few efficiencies turn each into seconds; `plan.efficiency` has them, fitted to runs
that others published. Those runs are not laid out as Headway's are, so how a step is computed is a
value of its own: `Method`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headway.plan.accelerators import Device, Precision, peak_flops
from headway.plan.workload import CountedModel

Sharding = Literal["none", "ddp", "zero1", "zero2", "zero3"]
NUMBER_BYTES = 2
"""Of activations, and of the weights that products are computed with, in bf16 and fp16."""
HOST_BYTES_PER_SECOND = 20e9
"""Assumed of copies to pinned memory of the host: PCIe 4 has 31 on paper."""
BLOCK_LAUNCH_SECONDS, FUSED_BLOCK_LAUNCH_SECONDS = 1e-3, 3e-4
"""Assumed time of the host to launch the kernels of a block, forward and backward. A device that
computes faster than that waits for it: no published row is so small that it shows."""


@dataclass(frozen=True)
class Method:
    """How a framework computes a step."""

    sharding: Sharding
    """none, ddp: every device holds all. zero1: the optimizer state is divided; zero2: gradients
    too; zero3: weights too (FSDP)."""
    shard_devices: int = 1
    """Devices that hold one copy of what is divided; those beyond them hold further copies."""
    recomputed: float = 0.0
    """Share of the blocks that are computed again in the backward pass."""
    is_fused: bool = False
    """Elementwise work is compiled, or in kernels written by hand."""
    materializes_scores: bool = False
    """Attention has no fused kernel: scores are written to memory, and a causal mask skips
    nothing."""
    gradient_bytes: int = 4
    """Of one number of a gradient on its way between devices."""
    state_bytes: int = 4
    """Of one number of weights, gradients and optimizer state."""
    optimizer_touches: int = 12
    """How often a number of the state is read or written in a step: AdamW reads four and writes
    three; norm, clipping and clearing of the gradients, copies to compute with."""
    overlaps_copies: bool = True
    """Whether shards are all-reduced over the copies while the backward pass still runs."""
    offloads: bool = False
    """Whether the inputs of recomputed blocks wait in the host's memory."""


@dataclass(frozen=True)
class JoinedDevices:
    """The devices of a step."""

    device: Device
    devices_per_node: int
    nodes: int
    network_bytes_per_second: float
    """Of a whole node, one direction. Not read if there is one node."""

    @property
    def num_devices(self) -> int:
        return self.nodes * self.devices_per_node


@dataclass(frozen=True)
class Passes:
    """Forward and backward passes of the device that makes most of them in a step."""

    number: int
    micro: int
    sequence_length: int
    precision: Precision

    @property
    def tokens(self) -> int:
        return self.number * self.micro * self.sequence_length


@dataclass(frozen=True)
class Efficiencies:
    """Shares of a peak that are reached, and how often memory is touched."""

    matmul: Mapping[str, float]
    """By chip: share of the peak in products with weights."""
    attention: float
    """Share of `matmul` that attention reaches."""
    touches: float
    """How often an activation is read or written in a forward and backward pass."""
    fused_touches: float
    """The same where elementwise work is fused."""
    exposed: float
    """Share of the communication that is not hidden, although computing could hide it."""
    link: float
    """Share of a link's bandwidth that collectives reach."""


@dataclass(frozen=True)
class StepParts:
    """Seconds of a step on the device that has most to do."""

    products: float
    """Products of activations with weights, forward and backward."""
    attention: float
    elementwise: float
    """Norms, activation functions, softmax of the logits, sums of gradients: bound by memory."""
    recomputation: float
    """All that is computed a second time."""
    teacher: float
    offloading: float
    launching: float
    """The device waits for the host's next kernel."""
    optimizer: float
    communication: float
    """In all."""
    hidden: float
    """Part of the communication behind computing."""

    @property
    def visible(self) -> float:
        return self.communication - self.hidden

    @property
    def seconds(self) -> float:
        passes = self.products + self.attention + self.elementwise + self.recomputation
        passes += self.teacher + self.offloading + self.launching
        return passes + self.optimizer + self.visible


def step_parts(
    model: CountedModel,
    teacher: CountedModel | None,
    passes: Passes,
    place: JoinedDevices,
    method: Method,
    efficiencies: Efficiencies,
) -> StepParts:
    rates = _Rates(place.device, passes, method, efficiencies)
    products, attention, elementwise = rates.of(model)
    forward = rates.forward_of_blocks(model)
    parameters, memory = model.size.parameters, place.device.memory_bytes_per_second
    # A pass adds its gradients, in the precision of the products, to those of the passes before.
    accumulated = (NUMBER_BYTES + 2 * method.state_bytes) * parameters * passes.number / memory
    recomputation = method.recomputed * forward
    taught = rates.forward(teacher) if teacher is not None else 0.0
    offloaded = 2 * NUMBER_BYTES * model.size.num_layers * model.size.hidden * passes.tokens
    offloading = method.recomputed * offloaded / HOST_BYTES_PER_SECOND if method.offloads else 0.0
    computing = products + attention + elementwise + accumulated + recomputation + taught
    launching = _launch_seconds(model, teacher, passes, method)
    waiting = max(0.0, launching - computing)
    computing += offloading + waiting
    state = parameters * method.state_bytes * method.optimizer_touches
    if method.sharding not in ("none", "ddp"):
        state //= method.shard_devices
    communication, hideable = _communication(parameters, passes.number, place, method, efficiencies)
    if method.sharding in ("zero2", "zero3"):
        window = computing
    else:  # gradients are complete only in the last backward pass
        window = computing * 2 / 3 / passes.number
    return StepParts(
        products=products,
        attention=attention,
        elementwise=elementwise + accumulated,
        recomputation=recomputation,
        teacher=taught,
        offloading=offloading,
        launching=waiting,
        optimizer=state / memory,
        communication=communication,
        hidden=(1 - efficiencies.exposed) * min(hideable, window),
    )


class _Rates:
    """Seconds that a model's parts take on a device."""

    def __init__(
        self, device: Device, passes: Passes, method: Method, efficiencies: Efficiencies
    ) -> None:
        peak = peak_flops(device, passes.precision)
        assert peak is not None, f"{device.name} has no peak in {passes.precision}"
        self.passes, self.method = passes, method
        self.products = peak * efficiencies.matmul[device.chip]
        self.attention = self.products * efficiencies.attention
        touches = efficiencies.fused_touches if method.is_fused else efficiencies.touches
        self.elementwise = device.memory_bytes_per_second / (touches * NUMBER_BYTES)

    def of(self, model: CountedModel) -> tuple[float, float, float]:
        """Products, attention, elementwise work: forward and backward."""
        tokens = self.passes.tokens
        forward, backward = self._attention(model)
        numbers = self._block_numbers(model) + _logit_numbers(model)
        return (
            6 * model.size.matmul_parameters * tokens / self.products,
            (forward + backward) * tokens / self.attention,
            numbers * tokens / self.elementwise,
        )

    def forward_of_blocks(self, model: CountedModel) -> float:
        tokens = self.passes.tokens
        products = 2 * block_weights(model) / self.products
        attention = self._attention(model)[0] / self.attention
        return tokens * (products + attention + self._block_numbers(model) / self.elementwise / 3)

    def forward(self, model: CountedModel) -> float:
        head = 2 * (model.size.matmul_parameters - block_weights(model)) / self.products
        logits = _logit_numbers(model) / self.elementwise / 3
        return self.forward_of_blocks(model) + self.passes.tokens * (head + logits)

    def _attention(self, model: CountedModel) -> tuple[float, float]:
        """Operations of a token, forward and backward: the two products of `flops_per_token`, and
        twice that backward. A fused kernel computes one of them again instead of keeping scores,
        and of a causal mask it computes the half that is there."""
        length = self.passes.sequence_length
        forward = 4.0 * model.size.num_layers * model.size.attention_width * length
        if self.method.materializes_scores:
            return forward, 2 * forward
        forward *= 1.0 if model.type == "bert" else 0.5
        return forward, 2.5 * forward

    def _block_numbers(self, model: CountedModel) -> float:
        """Numbers of a token that blocks compute with elementwise: as many as their matrices have
        columns, which their weights count."""
        numbers = block_weights(model) / model.size.hidden
        if self.method.materializes_scores:
            scores = num_heads(model) * self.passes.sequence_length
            numbers += model.size.num_layers * scores
        return numbers


def block_weights(model: CountedModel) -> int:
    """Weights of the matrices of all blocks: the rest is the head."""
    head = model.config["vocab_size"] * model.size.hidden
    if model.type == "bert":
        head += model.size.hidden**2
    return model.size.matmul_parameters - int(head)


def num_heads(model: CountedModel) -> int:
    return int(model.config.get("num_attention_heads") or model.config["n_head"])


def _logit_numbers(model: CountedModel) -> float:
    """Logits are fp32: each counts as two numbers."""
    return 2.0 * int(model.config["vocab_size"])


def _launch_seconds(
    model: CountedModel, teacher: CountedModel | None, passes: Passes, method: Method
) -> float:
    block = FUSED_BLOCK_LAUNCH_SECONDS if method.is_fused else BLOCK_LAUNCH_SECONDS
    blocks = model.size.num_layers * (1 + method.recomputed / 3)
    if teacher is not None:
        blocks += teacher.size.num_layers / 3
    return blocks * block * passes.number


def _communication(
    parameters: int,
    num_passes: int,
    place: JoinedDevices,
    method: Method,
    efficiencies: Efficiencies,
) -> tuple[float, float]:
    """Seconds of a step's collectives, and how many of them computing may hide."""
    if place.num_devices == 1 or method.sharding == "none":
        return 0.0, 0.0
    weights, gradients = NUMBER_BYTES * parameters, method.gradient_bytes * parameters
    group = method.shard_devices
    match method.sharding:
        case "zero3":  # weights for each direction of each pass
            moved = num_passes * (2 * weights + gradients)
        case "zero2":
            moved = num_passes * (weights + gradients)
        case "zero1":
            moved = weights + gradients
        case _:
            moved, group = 2 * gradients, place.num_devices
    seconds = _collective_seconds(moved, group, place, efficiencies.link)
    copies = place.num_devices // group
    if copies == 1:
        return seconds, seconds
    # Each device all-reduces its shard with the same shard of the other copies.
    shards = 2 * gradients / group
    nodes_of_group = max(1, group // place.devices_per_node)
    inside = shards * (copies - 1) / copies / place.device.link_bytes_per_second
    between = 0.0
    if place.nodes > nodes_of_group:
        from_node = 2 * gradients / nodes_of_group
        share = 1 - nodes_of_group / place.nodes
        between = from_node * share / place.network_bytes_per_second
    all_reduce = (between or inside) / efficiencies.link
    return seconds + all_reduce, seconds + (all_reduce if method.overlaps_copies else 0.0)


def _collective_seconds(moved: float, group: int, place: JoinedDevices, link: float) -> float:
    """Of all-gathers and reduce-scatters of so many bytes over `group` devices: each device
    receives what the others have, each node what the other nodes have."""
    inside = moved * (group - 1) / group / place.device.link_bytes_per_second
    nodes = -(-group // place.devices_per_node)
    between = 0.0
    if nodes > 1:
        between = moved * (nodes - 1) / nodes / place.network_bytes_per_second
    return max(inside, between) / link
