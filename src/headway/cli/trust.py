"""Whether a command may run the code that a run directory names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.cli.output import say
from headway.state.trusted_code import described, named_code, require_trusted_code, trust_code

if TYPE_CHECKING:
    from headway.spec.resolve import Resolved
    from headway.state.run_directory import RunDirectory


def require_trust(
    directory: RunDirectory, resolved: Resolved, command: str, is_trusted: bool
) -> None:
    """Raise unless the user has started this code from here, or trusts it. `is_trusted`: by
    `--trust-code`, which is kept, so that what runs is what was said."""
    named = named_code(resolved)
    if is_trusted and named:
        say(f"trusting the code of {directory.location}: {described(named)}")
        trust_code(resolved)
    else:
        require_trusted_code(directory, resolved, command)


def require_trusted_model(directory: RunDirectory, command: str, is_trusted: bool) -> None:
    """Raise as `require_trust` does, for a command that only builds the run's model."""
    if not directory.has_spec():
        return  # it was never started, and the command says so
    resolved = directory.read_spec()
    if resolved.run.model is not None and resolved.run.model.call is not None:
        require_trust(directory, resolved, command, is_trusted)
