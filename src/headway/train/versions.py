"""`python -m headway.train.versions`: versions of what workers compute with, as a line of JSON."""

from __future__ import annotations

import json

import torch
import transformers


def versions() -> dict[str, str]:
    found = {"torch": torch.__version__, "transformers": transformers.__version__}
    if torch.cuda.is_available():
        found["CUDA"] = str(torch.version.cuda)
        found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        found["devices that torch sees"] = ", ".join(names)
    return found


if __name__ == "__main__":
    print(json.dumps(versions()))
