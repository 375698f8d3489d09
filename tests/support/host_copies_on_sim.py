"""What a process copies from the simulated device to the host, through buffers smaller than it."""

from __future__ import annotations

from typing import Any

import torch

from support.simulated_device import SIM, install


def copy_twice(answers: Any) -> None:
    """Puts the copies, and the number of pinned buffers."""
    with install():
        from headway.train.host_copies import HostCopies

        copies = HostCopies(buffer_bytes=64)
        sources = [
            torch.arange(100, dtype=torch.float32).to("sim"),
            torch.tensor(3.0).to("sim"),
            torch.arange(33).view(3, 11).to("sim").t(),
        ]
        found = []
        for _ in range(2):
            targets = [torch.empty(one.shape, dtype=one.dtype) for one in sources]
            for source, target in zip(sources, targets, strict=True):
                copies.start(source, target)
            copies.finish()
            found.append([target.tolist() for target in targets])
        answers.put((found, len(SIM.pinned)))
