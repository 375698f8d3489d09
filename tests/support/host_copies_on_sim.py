"""What a process copies from the simulated device to the host, through buffers smaller than it."""

from __future__ import annotations

import threading
from typing import Any

import torch

from support.simulated_device import SIM, counted_syncs, install


def copy_twice(answers: Any) -> None:
    """Puts the copies, what the host waited for before the thread that makes them ran, whether
    somebody who waits for them got past that, and the number of pinned buffers."""
    with install():
        from headway.train.host_copies import HostCopies

        copies = HostCopies(buffer_bytes=64)
        sources = [
            torch.arange(100, dtype=torch.float32).to("sim"),
            torch.tensor(3.0).to("sim"),
            torch.arange(33).view(3, 11).to("sim").t(),
        ]
        found, early, syncs = [], [], []
        for _ in range(2):
            targets = [torch.empty(one.shape, dtype=one.dtype) for one in sources]
            with counted_syncs() as counted:
                for source, target in zip(sources, targets, strict=True):
                    copies.add(source, target)
                syncs += counted
            waiter = threading.Thread(target=copies.wait)
            waiter.start()
            waiter.join(0.05)
            early.append(not waiter.is_alive())
            thread = threading.Thread(target=copies.run)
            thread.start()
            waiter.join()
            found.append([target.tolist() for target in targets])
            thread.join()
        answers.put((found, syncs, early, len(SIM.pinned)))
