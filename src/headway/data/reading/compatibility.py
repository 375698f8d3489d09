"""Checks that a run can train on a prepared set, before workers are started."""

from __future__ import annotations

from headway.data.reading.sample_set import SampleSet
from headway.errors import BadInput


def require_fit(samples: SampleSet, objective: str | None, sequence_length: int) -> None:
    """Refuses a set that does not fit. `objective` is None for a user-defined one, which may use
    either layout."""
    require_layout(samples, objective, sequence_length)
    if samples.num_samples(sequence_length) == 0:
        # Without a sample, all tokens are in the tail.
        raise BadInput(
            f"{samples.location} has {samples.tail_tokens(sequence_length)} tokens, too few for "
            f"one sample of {sequence_length}",
            "use more text or a shorter data.sequence_length",
        )


def require_layout(samples: SampleSet, objective: str | None, sequence_length: int) -> None:
    """The same, as far as it is known before there are any samples."""
    if objective == "masked" and samples.layout != "windows":
        raise BadInput(
            f"{samples.location} is a stream of text, but the objective masked needs windows",
            f"prepare it with --windows {sequence_length}, or give its sources in the run file",
        )
    if objective in ("causal", "distill") and samples.layout != "stream":
        raise BadInput(
            f"{samples.location} is prepared as windows for masked models, but the objective is "
            f"{objective}",
            "prepare it without --windows, or give its sources in the run file",
        )
