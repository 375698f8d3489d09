"""Text from a trained model."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headway.data.set_format import TOKENIZER
from headway.data.tokenizer import find_tokenizer, role_id
from headway.errors import BadInput
from headway.state.run_directory import RunDirectory
from headway.train.export import files_of, load_trained
from headway.train.objectives import logits_of


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
    """Yields the text piece by piece, prompt first; ends at end-of-text or `max_tokens`.

    The whole context is computed again for every token: slower than a cache of keys and values,
    but it works for any model that maps token ids to logits, the user's own included.
    """
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
    context = resolved.run.data.sequence_length
    random = torch.Generator().manual_seed(seed)
    shown = tokenizer.decode(ids)
    yield shown
    for _ in range(max_tokens):
        with torch.no_grad():
            logits = logits_of(module, torch.tensor([ids[-context:]]))[0, -1]
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


def _draw(logits: torch.Tensor, temperature: float, top_k: int, random: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    best, places = (logits / temperature).topk(min(top_k, len(logits)))
    return int(places[torch.multinomial(best.softmax(-1), 1, generator=random)])
