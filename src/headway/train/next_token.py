"""The next token of texts, by a model."""

from __future__ import annotations

from typing import Any

import torch

from headway.train.objectives import logits_of


class NextToken:
    """Logits of the token after each of several texts of one length, which grow together.

    Models of transformers keep the keys and values of what they have read, as long as the texts fit
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
    def logits(self, texts: list[list[int]]) -> torch.Tensor:
        """On the CPU, a row for each text. `texts` begin with those of the call before."""
        length = len(texts[0])
        if not self._keeps_cache or length > self._context:
            return _last(logits_of(self._module, self._newest(texts, -self._context)))
        output = self._module(
            self._newest(texts, self._num_cached), past_key_values=self._cache, use_cache=True
        )
        self._cache = getattr(output, "past_key_values", None)
        self._keeps_cache, self._num_cached = self._cache is not None, length
        return _last(output.logits)

    def _newest(self, texts: list[list[int]], first: int) -> torch.Tensor:
        return torch.tensor([ids[first:] for ids in texts], device=self._device)


def _last(logits: torch.Tensor) -> torch.Tensor:
    return logits[:, -1].float().cpu()  # SYNC


def draw(logits: torch.Tensor, temperature: float, top_k: int, random: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    best, places = (logits / temperature).topk(min(top_k, len(logits)))
    shares = best.softmax(-1)
    if shares.isnan().any():  # the weights are not finite: nothing to draw from
        return int(places[0])
    return int(places[torch.multinomial(shares, 1, generator=random)])
