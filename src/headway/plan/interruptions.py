"""How often a run loses a node, and what is left of the run then.

Rates are of one node and one hour: the target's own (`interruptions`), else a default that names
where it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.plan.figure import Figure, combined
from headway.plan.workload import Layout
from headway.spec.interruption_rate import InterruptionRate, InterruptionsConfig
from headway.spec.run_file import RunFile

Mode = Literal["live", "restart"]

# 419 unexpected interruptions in 54 days on 16,384 H100s ("The Llama 3 Herd of Models", 2024, table
# 5), by device, since most were of a GPU or its memory. Half and six times as many: other clusters
# are younger, older or not watched over by the same people.
_LLAMA_3 = 419 / (54 * 24 * 16384)
DEVICE_FAILURES_PER_HOUR = Figure(
    _LLAMA_3,
    _LLAMA_3 / 2,
    _LLAMA_3 * 6,
    "published",
    "419 interruptions in 54 days of 16,384 H100s (Llama 3, 2024)",
)
CPU_FAILURES_PER_HOUR = Figure(
    8 * _LLAMA_3,
    _LLAMA_3,
    48 * _LLAMA_3,
    "assumed",
    "as often as a node of 8 H100s (Llama 3, 2024)",
)
# 600 preemptions in 3,066 node-hours: github.com/skypilot-org/spot-traces at 221da1a, the traces
# preemption/4-node/aws-08-03-2023, of four p3.2xlarge in each of three zones for two weeks. From 75
# in 1,250 hours (us-east-2a) to 195 in 420 (us-east-1f). No cloud publishes a rate by the hour.
SPOT_PREEMPTIONS_PER_HOUR = Figure(
    600 / 3066,
    75 / 1250,
    195 / 420,
    "assumed",
    "600 preemptions in 3,066 hours of V100 spot nodes (AWS, August 2023, skypilot-org/spot-traces)"
    "; set it: interruptions in the target",
)

OUTAGE_HOURS = Figure(
    30 * 24,
    7 * 24,
    180 * 24,
    "assumed",
    "everything at once (power, network, storage, a mistake): assumed once in 30 days",
)


@dataclass(frozen=True)
class Placement:
    """How many nodes can be lost, of which kind, and what is left then."""

    mode: Mode
    nodes: int
    ranks_per_node: int
    copy_ranks: int
    """Workers that one copy of the model is sharded over."""
    spot_nodes: int
    trains_with_fewer: bool
    """Whether the others train on until the lost node is replaced."""
    on_gpu: bool
    on_pods: bool
    """Whether nodes are pods of a cluster; else processes of this machine."""

    @property
    def copies(self) -> int:
        """Copies of the model that are lost one by one: in a live run each holds the state."""
        return self.nodes * self.ranks_per_node // self.copy_ranks if self.mode == "live" else 1

    @property
    def rewinds(self) -> bool:
        """Whether the run goes back to its newest checkpoint when it loses a node."""
        return self.copies == 1

    @property
    def writers(self) -> int:
        """Workers that write a checkpoint together: of a live run those of one copy."""
        return self.copy_ranks if self.mode == "live" else self.nodes * self.ranks_per_node

    @property
    def writing_nodes(self) -> int:
        return -(-self.writers // self.ranks_per_node)


def placement(
    run: RunFile, layout: Layout, *, nodes: int, ranks_per_node: int, on_gpu: bool, on_pods: bool
) -> Placement:
    """`on_pods`: False for a run on this machine, whose nodes are processes."""
    copy_ranks = layout.shard_devices
    is_wide = run.shard.is_wide or copy_ranks > ranks_per_node
    is_live = not is_wide and not on_gpu and run.command is None
    if run.elastic == "auto":
        is_live = is_live and (nodes * ranks_per_node > copy_ranks or on_pods)
    else:
        is_live = is_live and run.elastic == "live"
    # With `shard: all` any number of nodes holds a copy.
    copy_nodes = 1 if run.shard.num_nodes == 0 else -(-copy_ranks // ranks_per_node)
    wanted, on_demand = run.resources.nodes, run.resources.on_demand_nodes
    least = max(copy_nodes, wanted.minimum if wanted.minimum < wanted.maximum else 1)
    return Placement(
        mode="live" if is_live else "restart",
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        copy_ranks=copy_ranks,
        spot_nodes=max(0, nodes - on_demand) if on_pods and on_demand is not None else 0,
        trains_with_fewer=nodes > least,
        on_gpu=on_gpu,
        on_pods=on_pods,
    )


def losses_per_hour(place: Placement, given: InterruptionsConfig | None = None) -> Figure:
    """Of all nodes of the run. `given`: the target's own rates."""
    given = given or InterruptionsConfig()
    failures = CPU_FAILURES_PER_HOUR
    if place.on_gpu:
        of_one = DEVICE_FAILURES_PER_HOUR
        failures = of_one.times(place.ranks_per_node, of_one.reason)
    counts = {"spot ": place.spot_nodes, "": place.nodes - place.spot_nodes}
    rates = {
        "spot ": _rate(given.spot, SPOT_PREEMPTIONS_PER_HOUR),
        "": _rate(given.on_demand, failures),
    }
    of_kinds = {kind: rate for kind, rate in rates.items() if counts[kind]}
    return combined(
        lambda **each: sum(counts[kind] * rate for kind, rate in each.items()),
        of_kinds,
        "; ".join(f"{_nodes(counts[kind], kind)}, {of_kinds[kind].reason}" for kind in of_kinds),
    )


def _rate(given: InterruptionRate | None, default: Figure) -> Figure:
    if given is None:
        return default
    return Figure.exact(given.per_hour, "interruptions of the target", "given")


def _nodes(count: int, kind: str) -> str:
    return f"{count} {kind}node{'s' if count > 1 else ''}"


def rewinds_per_hour(place: Placement, losses: Figure) -> Figure:
    """Losses after which the run goes back to a checkpoint."""
    inputs = {"outage": OUTAGE_HOURS}
    words = f"a lost node costs no step: {place.copies} copies hold the state"
    if place.rewinds:
        inputs["losses"] = losses
        words = losses.reason
    return combined(
        lambda outage, losses=0.0: losses + 1 / outage,
        inputs,
        f"{words}; {OUTAGE_HOURS.reason}",
    )
