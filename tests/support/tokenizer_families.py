"""Tokenizers built as published ones are, with vocabularies trained here: normalizer, pre-tokenizer
and added tokens are those of each family's tokenizer.json."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split
from tokenizers.trainers import BpeTrainer

END = "<|endoftext|>"
REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PERSONAL = ["|||EMAIL_ADDRESS|||", "|||PHONE_NUMBER|||", "|||IP_ADDRESS|||"]
TOOLS = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"]
TOOLS += ["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
THINKING = ["<tool_response>", "</tool_response>", "<think>", "</think>"]
SPACES = [" " * number for number in range(24, 1, -1)]
FAMILIES = ("gpt2", "llama3", "qwen2.5", "qwen3", "neox", "olmo", "olmo2", "smollm")


def trained(family: str, texts: Iterable[str], vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    if family in ("qwen2.5", "qwen3", "neox", "olmo"):
        tokenizer.normalizer = NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(family)
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(_added(family))
    tokenizer.encode_special_tokens = True
    return tokenizer


def _pre_tokenizer(family: str) -> Any:
    match family:
        case "gpt2" | "neox" | "olmo":
            return ByteLevel(add_prefix_space=False)
        case "smollm":
            return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
        case "olmo2":
            split = Split(Regex(REGEX % r"\p{N}{1,3}"), behavior="removed", invert=True)
        case "llama3":
            split = Split(Regex(REGEX % r"\p{N}{1,3}"), behavior="isolated")
        case _:
            split = Split(Regex(REGEX % r"\p{N}"), behavior="isolated")
    return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])


def _added(family: str) -> list[AddedToken]:
    match family:
        case "neox":
            return [AddedToken(token, special=False) for token in SPACES]
        case "olmo":
            return [AddedToken(token, special=False) for token in SPACES + PERSONAL]
        case "olmo2":
            extra = [f"<|extra_id_{number}|>" for number in range(11)]
            tokens = extra + PERSONAL
        case "qwen2.5":
            tokens = TOOLS
        case "qwen3":
            tokens = TOOLS + THINKING
        case _:
            tokens = []
    return [AddedToken(token, normalized=False, special=False) for token in tokens]
