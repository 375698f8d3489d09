"""transformers' Trainer teaches a small GPT-2 to add: "17+25=42".

    python train.py --output_dir out
    torchrun --nproc-per-node 2 train.py --output_dir out

Trainer writes a folder checkpoint-STEP every 20 steps. A checkpoint that was interrupted looks like
any other to it, so a file is put into each one that is complete, and a start continues from the
newest that has it.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

SYMBOLS = "0123456789+= "
LENGTH = 12
COMPLETE = "complete"


class Sums(Dataset):
    """Every sum of two numbers below 100, as the numbers of its characters."""

    def __len__(self) -> int:
        return 100 * 100

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        first, second = divmod(index, 100)
        words = f"{first}+{second}={first + second}"
        ids = torch.tensor([SYMBOLS.index(symbol) for symbol in words.ljust(LENGTH)])
        # Only what follows the "=" is learned.
        labels = ids.masked_fill(torch.arange(LENGTH) <= words.index("="), -100)
        return {"input_ids": ids, "labels": labels}


class MarkComplete(TrainerCallback):
    """Called when this process has written its part of a checkpoint."""

    def on_save(self, args, state, control, **kwargs):
        if dist.is_initialized():
            dist.barrier()  # the others have theirs, too
        if state.is_world_process_zero:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE).touch()


def newest_checkpoint(folder: Path) -> str | None:
    found = [path.parent for path in folder.glob(f"checkpoint-*/{COMPLETE}")]
    return str(max(found, key=lambda one: int(one.name.split("-")[1]))) if found else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--max_steps", type=int, default=200)
    parser.add_argument("--save_steps", type=int, default=20)
    arguments = parser.parse_args()

    training = TrainingArguments(
        output_dir=str(arguments.output_dir),
        max_steps=arguments.max_steps,
        save_steps=arguments.save_steps,
        save_total_limit=3,
        per_device_train_batch_size=32,
        use_cpu=not torch.cuda.is_available(),  # else it does not form a group of CPU processes
        learning_rate=2e-3,
        warmup_steps=20,
        logging_steps=1,
        disable_tqdm=True,
        report_to="none",
        seed=1,
    )
    shape = GPT2Config(
        vocab_size=len(SYMBOLS), n_positions=LENGTH, n_layer=3, n_head=4, n_embd=64, use_cache=False
    )
    trainer = Trainer(
        GPT2LMHeadModel(shape), training, train_dataset=Sums(), callbacks=[MarkComplete()]
    )
    # True would fail at the first start, when there is none.
    newest = newest_checkpoint(arguments.output_dir)
    if newest and trainer.is_world_process_zero():
        print(f"continuing from {newest}", flush=True)
    trainer.train(resume_from_checkpoint=newest)
    trainer.save_model(str(arguments.output_dir / "model"))


if __name__ == "__main__":
    main()
