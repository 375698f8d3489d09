"""An image classifier, trained with DistributedDataParallel on pictures that are made up here.

    python train.py --out out
    torchrun --nproc-per-node 2 train.py --out s3://bucket/stripes

Each picture shows stripes under noise; its class is their direction. Every epoch ends with a
checkpoint in --out, a folder or a URL that fsspec can write to. A start continues from the newest
one. At the end the model alone is written to --out/model.pt.
"""

import argparse
import io
import math
import os
import time
from pathlib import Path

import fsspec
import torch
import torch.distributed as dist
import yaml
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLASSES = 8
SIZE = 32


def stripes(count: int, seed: int) -> TensorDataset:
    """Pictures of 3 x SIZE x SIZE with the number of their direction."""
    chance = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=chance)
    angles = (labels * math.pi / CLASSES).view(-1, 1, 1)
    phases = torch.rand(count, 1, 1, generator=chance) * 2 * math.pi
    widths = torch.rand(count, 1, 1, generator=chance) * 0.3 + 0.5
    row, column = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    waves = torch.sin((row * angles.sin() + column * angles.cos()) * widths + phases)
    colours = torch.rand(count, 3, 1, 1, generator=chance)
    noise = torch.randn(count, 3, SIZE, SIZE, generator=chance)
    return TensorDataset(waves.unsqueeze(1) * colours + noise, labels)


def build_model(width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for channels_in, channels in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
        layers += [
            nn.Conv2d(channels_in, channels, kernel_size=3, padding=1),
            nn.GroupNorm(4, channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, CLASSES)
    )


class Output:
    """A folder or a bucket, in which a file is there as a whole or not at all."""

    def __init__(self, place: str) -> None:
        self.files, self.root = fsspec.core.url_to_fs(place)
        self.files.makedirs(self.root, exist_ok=True)
        self.is_local = "file" in self.files.protocol

    def save(self, state: object, name: str) -> None:
        data = io.BytesIO()
        torch.save(state, data)
        path = f"{self.root}/{name}"
        if not self.is_local:
            self.files.pipe_file(path, data.getvalue())  # an object appears once it is complete
            return
        with open(f"{path}.new", "wb") as file:
            file.write(data.getvalue())
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)

    def load(self, path: str) -> dict:
        return torch.load(io.BytesIO(self.files.cat_file(path)))

    def newest_checkpoint(self) -> str | None:
        self.files.invalidate_cache()
        return max(self.files.glob(f"{self.root}/epoch-*.pt"), default=None)


def start_group() -> torch.device:
    """Of all processes, by torchrun's variables; without them a group of one."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    for name, value in {**alone, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}.items():
        os.environ.setdefault(name, value)
    has_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_gpu else "gloo")
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")


def agreed(value: object) -> object:
    """What the first process says, so that all continue from the same checkpoint."""
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]


def accuracy(model: nn.Module, pictures: DataLoader, device: torch.device) -> float:
    right = torch.zeros(2, device=device)
    model.eval()
    with torch.no_grad():
        for images, labels in pictures:
            found = model(images.to(device)).argmax(1)
            right += torch.tensor([(found == labels.to(device)).sum(), len(labels)], device=device)
    model.train()
    dist.all_reduce(right)
    return float(right[0] / right[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, help="folder or URL for checkpoints and the model")
    parser.add_argument("--config", default=str(Path(__file__).with_name("config.yaml")))
    parser.add_argument("--epochs", type=int, help="instead of the number in the config")
    arguments = parser.parse_args()
    config = yaml.safe_load(Path(arguments.config).read_text())
    epochs = arguments.epochs or config["epochs"]

    device = start_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    out = Output(arguments.out)

    torch.manual_seed(config["seed"])
    model = build_model(config["width"]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    begin = 0
    if newest := agreed(out.newest_checkpoint() if rank == 0 else None):
        state = out.load(str(newest))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        begin = state["epoch"] + 1
        if rank == 0:
            print(f"continuing from {newest}", flush=True)
    replicated = DistributedDataParallel(
        model, device_ids=[device.index] if device.type == "cuda" else None
    )

    # The batch of a step is the same size on any number of processes, up to rounding.
    batch = max(1, config["batch"] // world)
    pictures = stripes(config["pictures"], seed=1)
    sampler: DistributedSampler = DistributedSampler(pictures, seed=config["seed"], drop_last=True)
    training = DataLoader(pictures, batch, sampler=sampler)
    held_out = stripes(config["held_out"], seed=2)
    testing = DataLoader(held_out, batch, sampler=DistributedSampler(held_out, shuffle=False))

    for epoch in range(begin, epochs):
        sampler.set_epoch(epoch)
        for step, (images, labels) in enumerate(training):
            began = time.monotonic()
            optimizer.zero_grad()
            loss = F.cross_entropy(replicated(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            if rank == 0:
                seconds = time.monotonic() - began
                print(
                    f"epoch {epoch} step {step} loss {loss.item():.4f} {seconds:.3f} s", flush=True
                )
        schedule.step()
        share = accuracy(model, testing, device)
        if rank == 0:
            print(f"epoch {epoch} accuracy {share:.3f}", flush=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            out.save(
                {**state, "schedule": schedule.state_dict(), "epoch": epoch},
                f"epoch-{epoch:04d}.pt",
            )

    if rank == 0:
        out.save(model.state_dict(), "model.pt")
        print(f"the model is in {arguments.out}/model.pt", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
