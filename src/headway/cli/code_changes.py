"""Has the user's code changed since the last start of a run? Its results may change with it."""

from __future__ import annotations

import os

from headway.cli.output import say
from headway.spec.load import RUN_FILE, TARGET_FILE, Loaded
from headway.state.code_folder import CodeFolder
from headway.state.file_listing import Listing
from headway.state.run_directory import RunDirectory

SHOWN_DIGITS = 12
NOT_CODE = (RUN_FILE, TARGET_FILE, "run.schema.json", "report.html")
"""Files that commands of ours write, or that say how a script is run and not what it does."""


def tell_code_change(location: str, code: CodeFolder | None) -> None:
    """Say, before a start of the run at `location`, if its code is not that of the last start."""
    directory = RunDirectory(location)
    if code is None or not (RunDirectory.exists(location) and directory.has_spec()):
        return
    before, now = directory.read_spec().code_digest, code.listing.digest
    if before is not None and before != now:
        say(f"code changed since the last start: {before[:SHOWN_DIGITS]} -> {now[:SHOWN_DIGITS]}")


def script_digest(loaded: Loaded, code: CodeFolder | None) -> str | None:
    """Return the digest of the files that decide what a script does: all of its code folder but
    NOT_CODE and the run file. None if the run has no script."""
    if loaded.run.command is None or code is None:
        return None
    run_file = os.path.relpath(os.path.realpath(loaded.file), os.path.realpath(code.path))
    not_code = {*NOT_CODE, run_file}
    return Listing(tuple(one for one in code.listing.files if one.name not in not_code)).digest
