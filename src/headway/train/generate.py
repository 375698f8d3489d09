"""Text from a trained model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from headway.data.set_format import TOKENIZER
from headway.data.tokenizer import find_tokenizer, role_id
from headway.errors import BadInput
from headway.state.run_directory import RunDirectory
from headway.train.device import device_with_room
from headway.train.export import files_of, load_trained
from headway.train.objectives import logits_of

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
        logits = predictor.logits(ids)
        # Vocabularies are padded to a round size: the rows beyond the tokenizer mean nothing.
        token = _draw(logits[: tokenizer.get_vocab_size()], temperature, top_k, random)
        if token == end:
            return
        ids.append(token)
        text = tokenizer.decode(ids)
        # A character may need several tokens: hold back until it is whole.
        if not text.endswith("\ufffd"):
            yield text[len(shown) :]
            shown = text


class NextToken:
    """Logits of the token after a text that grows.

    Models of transformers keep the keys and values of what they have read, as long as the text fits
    the context. Beyond it every position moves with each token, and for other models nothing is
    known of their state: then the whole context is computed again.
    """

    def __init__(self, module: Any, context: int) -> None:
        self._module, self._context = module, context
        self._device = next(module.parameters()).device
        self._cache: Any = None
        self._num_cached = 0
        self._keeps_cache = hasattr(module, "can_generate") and module.can_generate()

    @torch.no_grad()
    def logits(self, ids: list[int]) -> torch.Tensor:
        """On the CPU. `ids` begin with those of the call before."""
        if not self._keeps_cache or len(ids) > self._context:
            return self._last(logits_of(self._module, self._tensor(ids[-self._context :])))
        output = self._module(
            self._tensor(ids[self._num_cached :]), past_key_values=self._cache, use_cache=True
        )
        self._cache = getattr(output, "past_key_values", None)
        self._keeps_cache, self._num_cached = self._cache is not None, len(ids)
        return self._last(output.logits)

    def _tensor(self, ids: list[int]) -> torch.Tensor:
        return torch.tensor([ids], device=self._device)

    def _last(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[0, -1].float().cpu()


def _on_device(module: nn.Module) -> nn.Module:
    num_bytes = sum(tensor.nbytes for tensor in module.parameters())
    return module.to(device_with_room(int(num_bytes / ROOM)))


def _draw(logits: torch.Tensor, temperature: float, top_k: int, random: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    best, places = (logits / temperature).topk(min(top_k, len(logits)))
    return int(places[torch.multinomial(best.softmax(-1), 1, generator=random)])
