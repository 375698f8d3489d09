"""Text from a trained model."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from headway.data.set_format import TOKENIZER
from headway.data.tokenizer import find_tokenizer, role_id
from headway.errors import BadInput
from headway.state.run_directory import RunDirectory
from headway.train.device import device_with_room
from headway.train.export import files_of, load_trained
from headway.train.next_token import NextToken, draw

ROOM = 0.8
"""Part of a device's free memory that the weights may take: the rest is for keys and values."""


def generate(
    directory: RunDirectory,
    step: int | None,
    prompt: str,
    *,
    max_tokens: int,
    temperature: float,
    top_k: int,
    seed: int,
) -> Iterator[str]:
    """Yields the text piece by piece, prompt first; ends at end-of-text or `max_tokens`."""
    resolved = directory.read_spec()
    if resolved.run.objective.type == "masked":
        raise BadInput("a masked model fills gaps and does not continue text")
    module, _ = load_trained(directory, step)
    with files_of(directory, TOKENIZER) as folder:
        files = find_tokenizer(str(folder), beside=folder)
        tokenizer = files.load()
        end = role_id(tokenizer, files.roles(), "eos_token")
    ids = tokenizer.encode(prompt).ids or ([end] if end is not None else [])
    if not ids:
        raise BadInput("the prompt has no tokens", 'for example --prompt "Once"')
    predictor = NextToken(_on_device(module), resolved.run.data.sequence_length)
    random = torch.Generator().manual_seed(seed)
    shown = tokenizer.decode(ids)
    yield shown
    for _ in range(max_tokens):
        logits = predictor.logits([ids])[0]
        # Vocabularies are padded to a round size: the rows beyond the tokenizer mean nothing.
        token = draw(logits[: tokenizer.get_vocab_size()], temperature, top_k, random)
        if token == end:
            return
        ids.append(token)
        text = tokenizer.decode(ids)
        # A character may need several tokens: hold back until it is whole.
        if not text.endswith("\ufffd"):
            yield text[len(shown) :]
            shown = text


def _on_device(module: nn.Module) -> nn.Module:
    num_bytes = sum(tensor.nbytes for tensor in module.parameters())
    return module.to(device_with_room(int(num_bytes / ROOM)))
