"""Errors raised by the user's own code, shown with the user's frames only."""

from __future__ import annotations

import traceback
from pathlib import Path

from headway.errors import RunFailed
from headway.spec.resolve import Resolved
from headway.spec.run_file import RunFile
from headway.train import evaluate
from headway.train.user_frames import user_code

MOST_CHARACTERS = 2000
"""Length of an exception's own text in the message."""
HINT = "to try your functions on a tiny batch: headway check --code"


def own_code_error(
    error: BaseException, resolved: Resolved, step: int | None, vocabulary: int | None = None
) -> RunFailed | None:
    """The error to exit with, if the user's code raised it, or called what did. `step`: the one
    being computed; None while the run is being set up. `vocabulary`: number of tokens."""
    packages = Path(resolved.packages) if resolved.packages is not None else None
    code = user_code(resolved.run, Path(resolved.folder), packages)
    frames = code.frames(error)
    if not frames:
        return None
    said = f"{type(error).__name__}: {error}"[:MOST_CHARACTERS]
    lines = [f"your code failed {_when(error, step)}: {said}"]
    for frame in frames:
        lines.append(
            f"  {code.short_name(frame.filename)}:{frame.lineno} in {frame.name}: {frame.line}"
        )
    return RunFailed("\n".join(lines), id_hint(error, resolved.run, vocabulary) or HINT)


def _when(error: BaseException, step: int | None) -> str:
    if step is None:
        return "while the run was set up"
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    is_evaluating = evaluate.__file__ in files
    return f"in the evaluation after step {step - 1}" if is_evaluating else f"in step {step}"


def id_hint(error: BaseException, run: RunFile, vocabulary: int | None) -> str | None:
    """torch's own words, on the CPU and on CUDA, name neither the embedding nor the id."""
    if not any(words in str(error) for words in ("index out of range in self", "device-side")):
        return None
    tokens = "" if vocabulary is None else f"token ids go up to {vocabulary - 1}, "
    return (
        f"an embedding may be too small: {tokens}positions to {run.data.sequence_length - 1}; "
        "its size is in model.config"
    )
