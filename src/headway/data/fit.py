"""Whether a prepared set is one that a run can train on. Asked before workers are started."""

from __future__ import annotations

from headway.data.shards import TokenSet
from headway.errors import BadInput


def require_fit(tokens: TokenSet, objective: str | None, sequence_length: int) -> None:
    """`objective` is None for the user's own, which may do with either layout as it likes."""
    layout = tokens.manifest.layout
    if objective == "masked" and layout != "windows":
        raise BadInput(
            f"{tokens.folder} is one stream of text, and a masked model needs windows",
            f"headway data prepare --windows {sequence_length}, or sources in the run file",
        )
    if objective in ("causal", "distill") and layout != "stream":
        raise BadInput(
            f"{tokens.folder} is cut into windows for masked models, and the objective is "
            f"{objective}",
            "prepare it without --windows, or name its sources in the run file",
        )
    if tokens.num_samples(sequence_length) == 0:
        raise BadInput(
            f"{tokens.folder} has {tokens.manifest.num_tokens} tokens, not enough for one sample "
            f"of {sequence_length}",
            "give more text, or a shorter data.sequence_length",
        )
