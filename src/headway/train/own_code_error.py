"""Errors raised by the user's own code, shown with the user's frames only."""

from __future__ import annotations

import traceback
from pathlib import Path

from headway.errors import RunFailed
from headway.spec.resolve import Resolved

MOST_CHARACTERS = 2000
"""Length of an exception's own text in the message."""
HINT = "to try your functions on a tiny batch: headway check --code"


def own_code_error(error: Exception, resolved: Resolved, step: int | None) -> RunFailed | None:
    """The error to exit with, if the user's code raised it, or called what did. `step`: the one
    being computed; None while the run is being set up."""
    if resolved.run.code is None:
        return None
    folder = Path(resolved.folder, resolved.run.code.path).resolve()
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<")  # generated or frozen code
        and Path(frame.filename).resolve().is_relative_to(folder)
        and "site-packages" not in Path(frame.filename).parts
    ]
    if not frames:
        return None
    where = "while the run was set up" if step is None else f"in step {step}"
    lines = [f"your code failed {where}: {type(error).__name__}: {error}"[:MOST_CHARACTERS]]
    for frame in frames:
        file = Path(frame.filename).resolve().relative_to(folder)
        lines.append(f"  {file}:{frame.lineno} in {frame.name}: {frame.line}")
    return RunFailed("\n".join(lines), HINT)
