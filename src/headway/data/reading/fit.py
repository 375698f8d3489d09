"""Whether a prepared set is one that a run can train on. Asked before workers are started."""

from __future__ import annotations

from headway.data.reading.sets import SampleSet
from headway.errors import BadInput


def require_fit(samples: SampleSet, objective: str | None, sequence_length: int) -> None:
    """`objective` is None for the user's own, which may do with either layout as it likes."""
    if objective == "masked" and samples.layout != "windows":
        raise BadInput(
            f"{samples.location} is one stream of text, and a masked model needs windows",
            f"headway data prepare --windows {sequence_length}, or sources in the run file",
        )
    if objective in ("causal", "distill") and samples.layout != "stream":
        raise BadInput(
            f"{samples.location} is cut into windows for masked models, and the objective is "
            f"{objective}",
            "prepare it without --windows, or name its sources in the run file",
        )
    if samples.num_samples(sequence_length) == 0:
        # Without a sample all tokens are the tail.
        raise BadInput(
            f"{samples.location} has {samples.tail_tokens(sequence_length)} tokens, not enough for "
            f"one sample of {sequence_length}",
            "give more text, or a shorter data.sequence_length",
        )
