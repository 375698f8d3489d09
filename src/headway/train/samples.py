"""Continuations of `evaluation.prompts`, written at each evaluation by the model as it is then.

All prompts are continued together, a token each in one forward pass, so the number of passes is
that of the tokens and not of the prompts. Only the leader's shard group computes; the other workers
go through the same passes without computing, so that all notice together if one is lost or asked to
stop, and none waits long enough to think that training hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from headway.data.tokenizer import find_tokenizer, role_id
from headway.errors import BadInput
from headway.train.next_token import NextToken, draw
from headway.train.objectives import logits_of, require_logits
from headway.train.precision import computing
from headway.train.step import Training
from headway.train.stop_request import StopRequest
from headway.train.undisturbed import undisturbed
from headway.train.world import World

TEMPERATURE, TOP_K = 0.8, 50
"""As `headway generate` has them."""


@dataclass(frozen=True)
class Sample:
    prompt: str
    text: str
    """The continuation alone."""


class Sampler:
    """The prompts of a run, as tokens."""

    def __init__(self, training: Training, stop: StopRequest) -> None:
        run = training.resolved.run
        self.training, self.stop = training, stop
        self.context = run.data.sequence_length
        self.num_new = max(1, min(run.evaluation.sample_tokens, self.context // 2))
        self.prompts = run.evaluation.prompts
        if self.prompts:
            self._encode(training.feed.set.tokenizer_folder)

    def _encode(self, folder: Path) -> None:
        files = find_tokenizer(str(folder), beside=folder)
        self.tokenizer = files.load()
        self.end = role_id(self.tokenizer, files.roles(), "eos_token")
        self.starts = [self._start(prompt) for prompt in self.prompts]

    def _start(self, prompt: str) -> list[int]:
        ids = self.tokenizer.encode(prompt).ids or ([self.end] if self.end is not None else [])
        if not ids:
            raise BadInput(
                f"evaluation.prompts: {prompt!r} has no tokens", "write a prompt with a word"
            )
        return ids[-max(1, self.context - self.num_new) :]

    def require_logits(self, device: torch.device) -> None:
        """COLLECTIVE when the model is sharded. Raises if a model of the user's own cannot continue
        the prompts: before the first step, and not at the first evaluation."""
        model = self.training.resolved.run.model
        if not self.prompts or model is None or model.call is None:
            return
        shortest = min(map(len, self.starts))
        inputs = torch.tensor([ids[:shortest] for ids in self.starts], device=device)
        with self._computing(device):
            logits = logits_of(self.training.model, inputs)
        try:
            require_logits(logits, inputs)
        except BadInput as error:
            raise BadInput(f"evaluation.prompts: {error.message}", error.hint) from None

    def run(self, world: World, on_progress: Callable[[], None]) -> list[Sample]:
        """COLLECTIVE. The samples, on the leader only; none if a worker was asked to stop.
        `on_progress` is called before every pass."""
        if not self.prompts:
            return []
        shortest, longest = min(map(len, self.starts)), max(map(len, self.starts))
        texts = [ids[:shortest] for ids in self.starts]
        # The same at each evaluation, and for a prompt whatever the others are.
        seed = self.training.resolved.run.seed
        randoms = [torch.Generator().manual_seed(seed) for _ in self.prompts]
        takes_part = world.rank < world.shard_size
        with self._computing(world.device):
            predictor = NextToken(self.training.model, self.context)
            # As many passes on every rank, whatever it draws: those of a shard group gather the
            # weights together.
            for _ in range(longest - shortest + self.num_new):
                if world.any(self.stop.asked):  # COLLECTIVE
                    return []
                on_progress()
                if takes_part:
                    self._extend(texts, predictor, randoms)
        return self._samples(texts) if world.is_leader else []

    @contextmanager
    def _computing(self, device: torch.device) -> Iterator[None]:
        training = self.training
        with (
            undisturbed(training.model, device),
            training.copies.in_use(),
            computing(training.resolved.run.precision, device),
        ):
            yield

    def _extend(
        self, texts: list[list[int]], predictor: NextToken, randoms: list[torch.Generator]
    ) -> None:
        """Adds a token to each text: its prompt's, as far as that goes."""
        # Vocabularies are padded to a round size: the rows beyond the tokenizer mean nothing.
        logits = predictor.logits(texts)[:, : self.tokenizer.get_vocab_size()]
        for row, (text, start) in enumerate(zip(texts, self.starts, strict=True)):
            if len(text) < len(start):
                text.append(start[len(text)])
            else:
                text.append(draw(logits[row], TEMPERATURE, TOP_K, randoms[row]))

    def _samples(self, texts: list[list[int]]) -> list[Sample]:
        found = []
        for prompt, start, text in zip(self.prompts, self.starts, texts, strict=True):
            new = text[len(start) : len(start) + self.num_new]
            if self.end in new:
                new = new[: new.index(self.end)]
            known = self.tokenizer.decode(start)
            # The end may be in the middle of a character.
            whole = self.tokenizer.decode([*start, *new]).rstrip("\ufffd")
            found.append(Sample(prompt, whole[len(known) :]))
        return found
