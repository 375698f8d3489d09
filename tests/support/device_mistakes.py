"""Mistakes of device, as they are made when code is only tried on a CPU, where none of them shows.
Each is planted in a copy of src; training on the simulated device must find it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class DeviceMistake:
    file: str
    """In headway/train."""
    old: str
    new: str
    optimizer: str = "adamw"
    nodes: int = 1

    def plant(self, folder: Path) -> Path:
        """A copy of src with the mistake."""
        shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        path = folder / "headway" / "train" / self.file
        content = path.read_text()
        assert content.count(self.old) == 1, f"{self.file}: the code of the mistake has changed"
        path.write_text(content.replace(self.old, self.new))
        return folder


MISTAKES = (
    # Dropout differs from run to run: the device's generator is not seeded.
    DeviceMistake("device.py", "_module(device).manual_seed(seed)", "torch.default_generator"),
    # Part of a micro-batch stays on the host.
    DeviceMistake(
        "feed.py",
        "targets=copied_to(self.device, targets)",
        "targets=torch.from_numpy(targets)",
    ),
    DeviceMistake("objectives.py", "targets.flatten(), ignore", "targets.flatten().cpu(), ignore"),
    # Sums on the host and on the device are put together.
    DeviceMistake("step.py", "own_count.double()", "own_count.double().cpu()"),
    DeviceMistake("gradient_norm.py", ".square().sum()", ".square().sum().cpu()"),
    # Memory for gradients, and an optimizer's moments, are made where torch makes tensors.
    DeviceMistake(
        "gradient_all_reduce.py", "            device=parameters[0].device,\n", "", nodes=2
    ),
    DeviceMistake(
        "optim.py",
        'state["exp_avg_sq"] = torch.zeros_like(parameter)',
        'state["exp_avg_sq"] = torch.zeros(parameter.shape)',
        optimizer="lamb",
    ),
    # What is saved has not arrived yet.
    DeviceMistake("save.py", "snapshot.copies.run()", "snapshot.copies._are_made.set()"),
    # A checkpoint is read into a copy on the host, and the model keeps the weights it had.
    DeviceMistake("state_tensors.py", "local=tensor.detach()", "local=tensor.detach().cpu()"),
    # Figures of the host among those of the device.
    DeviceMistake(
        "activations.py", "values.abs().max(), zeros])", "values.abs().max().cpu(), zeros])"
    ),
)
