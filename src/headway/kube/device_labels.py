"""Node labels by which machines with a kind of accelerator are found. Pure.

Nothing in this file has run on a GPU. AWS names and memory are those of Karpenter's own list of
instance types; the others were read in public manifests. What could not be found there is left out.
A target can give labels of its own (`accelerators`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.kube.names import Object
from headway.plan.accelerators import find_device, folded_name

Alternative = list[Object]
"""Expressions that a machine fulfils all of."""
LabelOverrides = Mapping[str, Sequence[Mapping[str, str]]]
"""Of a target: labels of machines by kind; each mapping is an alternative."""

PRODUCT = "nvidia.com/gpu.product"
"""Set by NVIDIA's GPU feature discovery, a part of its GPU operator. A GPU that is partitioned or
shared has another value."""
GKE = "cloud.google.com/gke-accelerator"
AWS_PREFIXES = ("karpenter.k8s.aws", "eks.amazonaws.com")
"""Of labels that Karpenter and EKS Auto Mode set."""
ANY_KIND = "gpu"


@dataclass(frozen=True)
class BoardLabels:
    """Values of the labels of machines with one kind of board."""

    products: tuple[str, ...]
    gke: tuple[str, ...] = ()
    aws_name: str | None = None
    aws_memory_mib: int | None = None
    """Where boards of one name differ in memory, or are sold in parts."""


BOARDS: Mapping[str, BoardLabels] = {
    "V100-16GB": BoardLabels(("Tesla-V100-SXM2-16GB",), ("nvidia-tesla-v100",), "v100", 16384),
    "V100-32GB": BoardLabels(
        ("Tesla-V100-SXM2-32GB", "Tesla-V100-SXM3-32GB"), aws_name="v100", aws_memory_mib=32768
    ),
    "V100-PCIe-16GB": BoardLabels(("Tesla-V100-PCIE-16GB",)),
    "V100-PCIe-32GB": BoardLabels(("Tesla-V100-PCIE-32GB",)),
    "T4": BoardLabels(("Tesla-T4",), ("nvidia-tesla-t4",), "t4"),
    "A10G": BoardLabels(("NVIDIA-A10G",), aws_name="a10g"),
    # AWS' g6f machines have an eighth to a half of one.
    "L4": BoardLabels(("NVIDIA-L4",), ("nvidia-l4",), "l4", 22888),
    "L40S": BoardLabels(("NVIDIA-L40S",), aws_name="l40s"),
    "A100-40GB": BoardLabels(
        # Drivers before 2021 report it without the vendor.
        ("NVIDIA-A100-SXM4-40GB", "A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"),
        ("nvidia-tesla-a100",),
        "a100",
        40960,
    ),
    "A100-80GB": BoardLabels(
        ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"), ("nvidia-a100-80gb",), "a100", 81920
    ),
    "H100": BoardLabels(
        ("NVIDIA-H100-80GB-HBM3",), ("nvidia-h100-80gb", "nvidia-h100-mega-80gb"), "h100"
    ),
    "H100-PCIe": BoardLabels(("NVIDIA-H100-PCIe",)),
    "H100-NVL": BoardLabels(("NVIDIA-H100-NVL",)),
    "H200": BoardLabels(("NVIDIA-H200",), ("nvidia-h200-141gb",), "h200"),
    "H200-NVL": BoardLabels(("NVIDIA-H200-NVL",)),
    "B200": BoardLabels(("NVIDIA-B200",), ("nvidia-b200",), "b200"),
}


def device_alternatives(kind: str, overrides: LabelOverrides) -> list[Alternative] | None:
    """What a machine must be labelled with to have this kind; one alternative is enough. None if
    nothing is known of the kind."""
    given = _overridden(kind, overrides)
    if given is not None:
        return [
            [_one_of(key, [value]) for key, value in labels.items()] for labels in given or [{}]
        ]
    if kind.casefold() == ANY_KIND:
        return [[]]
    boards = _boards(kind)
    return _alternatives(boards) if boards else None


def _overridden(kind: str, overrides: LabelOverrides) -> Sequence[Mapping[str, str]] | None:
    """`A100-80` and `A100-80GB` are the same, `A100` is not; `H100-SXM` is the board that is also
    called `H100`."""
    return next((labels for name, labels in overrides.items() if _key(name) == _key(kind)), None)


def _key(kind: str) -> str:
    device = find_device(kind) if _is_one_board(kind) else None
    return folded_name(device.name if device is not None else kind)


def _boards(kind: str) -> list[BoardLabels]:
    """A name alone, such as H100, means every board of that name."""
    if _is_one_board(kind):
        exact = {folded_name(name): board for name, board in BOARDS.items()}
        board = exact.get(_key(kind))
        return [board] if board is not None else []
    name = folded_name(kind)
    return [board for board_name, board in BOARDS.items() if _family(board_name) == name]


def _is_one_board(kind: str) -> bool:
    return "-" in folded_name(kind)


def _family(board_name: str) -> str:
    return folded_name(board_name).split("-")[0]


def _alternatives(boards: Sequence[BoardLabels]) -> list[Alternative]:
    """Karpenter provisions for the first that it can fulfil, so its own labels come first."""
    names = sorted({board.aws_name for board in boards if board.aws_name is not None})
    memory = sorted({board.aws_memory_mib for board in boards if board.aws_memory_mib is not None})
    found: list[Alternative] = []
    for prefix in AWS_PREFIXES if names else ():
        expressions = [_one_of(f"{prefix}/instance-gpu-name", names)]
        if memory:
            expressions.append(
                _one_of(f"{prefix}/instance-gpu-memory", [str(mib) for mib in memory])
            )
        found.append(expressions)
    if gke := [value for board in boards for value in board.gke]:
        found.append([_one_of(GKE, gke)])
    found.append([_one_of(PRODUCT, [value for board in boards for value in board.products])])
    return found


def _one_of(key: str, values: Sequence[str]) -> Object:
    return {"key": key, "operator": "In", "values": list(values)}
