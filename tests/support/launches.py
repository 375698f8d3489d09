"""The collectives that a process launches, in their order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Launches(TorchDispatchMode):
    """A log of c10d's operators, of any group, while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.bytes: Counter[str] = Counter()
        """By operator: the larger of what goes in and what comes out."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            name = func.__name__.split(".")[0].strip("_")
            self.log.append(name)
            sizes = [one.nbytes for one in tree_leaves(args) if isinstance(one, torch.Tensor)]
            self.bytes[name] += max(sizes, default=0)
        return func(*args, **(kwargs or {}))
