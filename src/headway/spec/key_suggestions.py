"""What a wrong key was meant to be: near misses, and the names people bring from other tools."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Any, get_args, get_origin

from pydantic import BaseModel

# Names of HF TrainingArguments and its example scripts, torchtitan's config and nanoGPT's, and
# what to write here instead. The target starts with one of our keys (a test holds it to that).
FOREIGN: dict[str, str] = {
    # HF TrainingArguments and example scripts
    "learning_rate": "optimizer.lr",
    "adam_beta1": "optimizer.betas",
    "adam_beta2": "optimizer.betas",
    "adam_epsilon": "optimizer.eps",
    "optim": "optimizer.type",
    "max_steps": "train_for: N steps",
    "num_train_epochs": "train_for: N epochs",
    "per_device_train_batch_size": "batch.micro",
    "per_gpu_train_batch_size": "batch.micro",
    "per_device_eval_batch_size": "batch.micro",
    "train_batch_size": "batch.global",
    "gradient_accumulation_steps": "batch.global (micro-batches follow from it and batch.micro)",
    "warmup_steps": "schedule.warmup: N steps",
    "warmup_ratio": "schedule.warmup: N%",
    "lr_scheduler_type": "schedule.type",
    "lr_scheduler_kwargs": "schedule.min_lr_ratio",
    "fp16": "precision: fp16",
    "bf16": "precision: bf16",
    "mixed_precision": "precision",
    "gradient_checkpointing": "memory.checkpoint_activations",
    "torch_compile": "memory.compile",
    "fsdp": "shard",
    "fsdp_config": "shard",
    "deepspeed": "shard",
    "output_dir": "storage",
    "logging_dir": "storage",
    "run_name": "name",
    "report_to": "track",
    "save_steps": "checkpoint.every: N steps",
    "save_strategy": "checkpoint.every",
    "save_total_limit": "checkpoint.keep.last",
    "eval_steps": "evaluation.every: N steps",
    "eval_strategy": "evaluation.every",
    "evaluation_strategy": "evaluation.every",
    "data_seed": "seed",
    "max_seq_length": "data.sequence_length",
    "model_max_length": "data.sequence_length",
    "model_name_or_path": "model.from",
    "config_name": "model.type",
    "config_overrides": "model.config",
    "tokenizer_name": "data.train.tokenizer",
    "dataset_name": "data.train",
    "train_file": "data.train.sources",
    "validation_file": "data.validation",
    "text_column_name": "data.train.column",
    "mlm_probability": "objective.mask_probability",
    "max_eval_samples": "evaluation.sequences",
    "resume_from_checkpoint": "nothing: the same `headway run` resumes",
    "hub_model_id": "nothing: `headway export` writes the HF format",
    # torchtitan
    "training": "batch, data and train_for",
    "seq_len": "data.sequence_length",
    "local_batch_size": "batch.micro",
    "global_batch_size": "batch.global",
    "steps": "train_for: N steps",
    "dataset": "data.train",
    "dataset_path": "data.train.sources",
    "lr_scheduler": "schedule",
    "decay_ratio": "schedule.decay",
    "decay_type": "schedule.type",
    "min_lr_factor": "schedule.min_lr_ratio",
    "parallelism": "shard and resources",
    "data_parallel_shard_degree": "shard",
    "data_parallel_replicate_degree": "resources.nodes",
    "activation_checkpoint": "memory.checkpoint_activations",
    "mixed_precision_param": "precision",
    "interval": "every",
    "dump_folder": "storage",
    "job": "name and storage",
    "flavor": "extends",
    "enable_wandb": "track",
    "enable_tensorboard": "track: [tensorboard]",
    "validator": "evaluation",
    "max_norm": "optimizer.max_grad_norm",
    # nanoGPT and common words
    "block_size": "data.sequence_length",
    "context_length": "data.sequence_length",
    "batch_size": "batch.global",
    "micro_batch_size": "batch.micro",
    "grad_clip": "optimizer.max_grad_norm",
    "clip_grad_norm": "optimizer.max_grad_norm",
    "gradient_clip_val": "optimizer.max_grad_norm",
    "beta1": "optimizer.betas",
    "beta2": "optimizer.betas",
    "min_lr": "schedule.min_lr_ratio",
    "warmup_iters": "schedule.warmup: N steps",
    "max_iters": "train_for: N steps",
    "lr_decay_iters": "train_for: N steps",
    "decay_lr": "schedule.type",
    "eval_interval": "evaluation.every: N steps",
    "eval_iters": "evaluation.sequences",
    "out_dir": "storage",
    "init_from": "model.from",
    "dtype": "precision",
    "epochs": "train_for: N epochs",
    "num_epochs": "train_for: N epochs",
    "wandb_log": "track",
    "wandb_run_name": "name",
    "gpus": "resources.accelerators",
    "num_nodes": "resources.nodes",
    "nnodes": "resources.nodes",
    "nproc_per_node": "resources.accelerators",
    "scheduler": "schedule",
    # Launchers of scripts: SkyPilot, Kubeflow, docker, SageMaker
    "run": "command: [python, train.py]",
    "script": "command: [python, train.py]",
    "entrypoint": "command: [python, train.py]",
    "entry_point": "command: [python, train.py]",
    "cmd": "command: [python, train.py]",
    "args": "command: [python, train.py, --lr, 1e-3]",
    "arguments": "command: [python, train.py, --lr, 1e-3]",
    "workdir": "code.path",
    "working_dir": "code.path",
    "source_dir": "code.path",
    "setup": "code.requirements",
    "pip": "code.requirements",
    "envs": "secrets (names only), or command: [env, NAME=VALUE, python, train.py]",
    "callbacks": "nothing: own code is objective.call, model.call and evaluation.metrics",
}


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section class inside a field's annotation (`Model | None`, `Annotated[...]`, dict of)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        found = section_of(argument)
        if found is not None:
            return found
    return None


def fields_of(section: type[BaseModel]) -> dict[str, tuple[str, Any]]:
    """Written key -> (attribute, annotation) of a section."""
    return {
        info.alias or attribute: (attribute, info.annotation)
        for attribute, info in section.model_fields.items()
    }


def is_mapping_of_sections(annotation: Any) -> bool:
    """`dict[str, Section]`, or that or None."""
    if get_origin(annotation) is dict:
        return section_of(annotation) is not None
    return isinstance(annotation, UnionType) and any(
        is_mapping_of_sections(argument) for argument in get_args(annotation)
    )


def key_paths(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every dotted key of a section and of the sections inside it (`*` for a free name)."""
    for key, (_, annotation) in fields_of(section).items():
        yield prefix + key
        inner = section_of(annotation)
        if inner is not None:
            star = "*." if is_mapping_of_sections(annotation) else ""
            yield from key_paths(inner, f"{prefix}{key}.{star}")


def keys_at(path: tuple[str | int, ...], root: type[BaseModel]) -> list[str]:
    """Keys of the section at `path`; names of our own choosing in between are passed over."""
    section: type[BaseModel] | None = root
    for part in path:
        fields = fields_of(section) if section else {}
        if str(part) in fields:
            section = section_of(fields[str(part)][1])
    return list(fields_of(section)) if section else []


def suggestion(key: str, path: tuple[str | int, ...], root: type[BaseModel]) -> str | None:
    """What to write instead of the unknown `key` found inside the section at `path`."""
    siblings = keys_at(path, root)
    folded = key.lower().replace("-", "_")
    if folded in siblings:
        return f"write {folded}"
    if folded in FOREIGN:
        target = FOREIGN[folded]
        here = "".join(f"{part}." for part in path)
        return target if target.startswith("nothing") else f"write {target.removeprefix(here)}"
    elsewhere = [known for known in key_paths(root) if known.rsplit(".", 1)[-1] == folded]
    if elsewhere:
        return f"{key} belongs in {elsewhere[0].rpartition('.')[0] or 'the top level'}"
    near = difflib.get_close_matches(folded, siblings, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    if siblings:
        return f"keys here: {', '.join(siblings)}"
    return None


FOREIGN_VALUES = {
    "float16": "fp16",
    "half": "fp16",
    "16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float": "fp32",
    "32": "fp32",
    "clm": "causal",
    "mlm": "masked",
    "distillation": "distill",
}
"""Values that other tools have for a choice of ours."""


def near_value(given: str, choices: Sequence[str]) -> str | None:
    """Which of the choices was meant, as a question; None if none is like it."""
    folded = given.lower().replace("-mixed", "").removeprefix("torch.")
    meant = FOREIGN_VALUES.get(folded)
    near = [meant] if meant in choices else difflib.get_close_matches(folded, choices, n=1)
    return f"did you mean {near[0]}?" if near else None
