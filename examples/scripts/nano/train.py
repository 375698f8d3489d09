"""A character-level GPT in the manner of nanoGPT: settings are the globals below, a config file and
--key=value replace them, and one loop does the rest.

    python train.py config/tiny.py --out_dir=out
    torchrun --nproc-per-node 2 train.py --out_dir=out

If out_dir has a checkpoint, training continues from it.
"""

import math
import os
import sys
import time
from ast import literal_eval
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from model import GPT
from torch.nn.parallel import DistributedDataParallel as DDP

# where checkpoints go, and how often
out_dir = "out"
save_interval = 20
eval_interval = 100
eval_iters = 4
# data
text = str(Path(__file__).with_name("text.txt"))
batch_size = 12  # sequences a micro-batch and process
block_size = 64
gradient_accumulation_steps = 6  # over all processes
# model
n_layer = 3
n_head = 4
n_embd = 96
# adamw
learning_rate = 2e-3
min_lr = 2e-4
warmup_iters = 20
max_iters = 240
weight_decay = 0.1
grad_clip = 1.0
# system
backend = "nccl" if torch.cuda.is_available() else "gloo"
seed = 1337

settings = [
    k for k, v in globals().items() if not k.startswith("_") and isinstance(v, int | float | str)
]
for argument in sys.argv[1:]:
    if not argument.startswith("--"):
        exec((Path(__file__).parent / argument).read_text())
        continue
    key, _, value = argument.removeprefix("--").partition("=")
    if key not in settings:
        sys.exit(f"no setting {key!r}: there are {', '.join(settings)}")
    globals()[key] = value if isinstance(globals()[key], str) else literal_eval(value)
config = {key: globals()[key] for key in settings}

# torchrun and its like set these; without them this is the only process
ddp = "RANK" in os.environ
rank, world_size, local_rank = 0, 1, 0
if ddp:
    dist.init_process_group(backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    local_rank = int(os.environ["LOCAL_RANK"])
master = rank == 0
device = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
micro_batches = max(1, gradient_accumulation_steps // world_size)
tokens_per_iter = micro_batches * world_size * batch_size * block_size
if master:
    os.makedirs(out_dir, exist_ok=True)
    print(f"{world_size} processes, {tokens_per_iter:,} tokens per iteration", flush=True)

corpus = Path(text).read_text()
chars = sorted(set(corpus))
encode = {char: number for number, char in enumerate(chars)}
data = torch.tensor([encode[char] for char in corpus], dtype=torch.long)
split_at = int(0.9 * len(data))
parts = {"train": data[:split_at], "val": data[split_at:]}


def get_batch(split, generator):
    part = parts[split]
    starts = torch.randint(len(part) - block_size, (batch_size,), generator=generator)
    x = torch.stack([part[i : i + block_size] for i in starts])
    y = torch.stack([part[i + 1 : i + 1 + block_size] for i in starts])
    return x.to(device), y.to(device)


def lr_at(iteration):
    """Linear warmup, then a cosine down to min_lr."""
    if iteration < warmup_iters:
        return learning_rate * (iteration + 1) / warmup_iters
    share = min(1.0, (iteration - warmup_iters) / max(1, max_iters - warmup_iters))
    return min_lr + 0.5 * (1 + math.cos(math.pi * share)) * (learning_rate - min_lr)


torch.manual_seed(seed)
model = GPT(len(chars), block_size, n_layer, n_head, n_embd).to(device)
optimizer = torch.optim.AdamW(
    model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=weight_decay
)
iter_num, best_val_loss = 0, 1e9
checkpoint_path = Path(out_dir) / "ckpt.pt"
if checkpoint_path.exists():
    checkpoint = torch.load(checkpoint_path, map_location=device)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num, best_val_loss = checkpoint["iter_num"], checkpoint["best_val_loss"]
    if master:
        print(f"resuming from {checkpoint_path} at iter {iter_num}", flush=True)
raw_model = model
if ddp:
    model = DDP(model, device_ids=[local_rank] if device != "cpu" else None)


def save():
    """Beside the old one first: whoever dies here leaves a whole checkpoint."""
    state = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}
    new = checkpoint_path.with_suffix(".new")
    torch.save(
        {**state, "iter_num": iter_num, "best_val_loss": best_val_loss, "config": config}, new
    )
    os.replace(new, checkpoint_path)


@torch.no_grad()
def estimate_loss():
    raw_model.eval()
    generator = torch.Generator().manual_seed(seed)
    losses = [raw_model(*get_batch("val", generator))[1].item() for _ in range(eval_iters)]
    raw_model.train()
    return sum(losses) / len(losses)


while iter_num < max_iters:
    t0 = time.time()
    for group in optimizer.param_groups:
        group["lr"] = lr_at(iter_num)
    # by iteration, so that a resumed run does not see the first batches again; each rank its own
    generator = torch.Generator().manual_seed(seed + iter_num * 1000 + rank)
    for micro_step in range(micro_batches):
        last = micro_step == micro_batches - 1
        with model.no_sync() if ddp and not last else nullcontext():
            _, loss = model(*get_batch("train", generator))
            (loss / micro_batches).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if master:
        print(
            f"iter {iter_num}: loss {loss.item():.4f}, time {(time.time() - t0) * 1000:.0f}ms",
            flush=True,
        )
        if iter_num % eval_interval == 0 or iter_num == max_iters:
            val_loss = estimate_loss()
            best_val_loss = min(best_val_loss, val_loss)
            print(f"iter {iter_num}: val loss {val_loss:.4f}", flush=True)
        if iter_num % save_interval == 0 or iter_num == max_iters:
            save()

if ddp:
    dist.barrier()  # rank 0 may still be saving
    dist.destroy_process_group()
