"""What differs in the user's code from the last start of a run: results may change with it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from headway.cli.output import say
from headway.spec.load import RUN_FILE, TARGET_FILE
from headway.state.code_folder import CodeFolder
from headway.state.file_listing import Listing, read_listing
from headway.state.run_directory import RunDirectory

MOST_NAMED = 10
NOT_CODE = (RUN_FILE, TARGET_FILE, "run.schema.json", "report.html")
"""Files that commands of ours write, or that say how a script is run and not what it does."""


def note_code(location: str, code: CodeFolder | None) -> None:
    """Before a start of the run at `location`: says which files differ from those of the last one,
    and keeps the list of what they are now as `code/DIGEST.json`."""
    if code is None:
        return
    directory, listing = RunDirectory(location), code.listing
    if RunDirectory.exists(location) and directory.has_spec():
        before = directory.read_spec().code_digest
        if before is not None and before != listing.digest:
            known = _kept(directory, before)
            named = changed_files(known, listing) if known is not None else f"it was {before}"
            say(f"code changed since the last start: {named}")
    directory.store.write(_file(listing.digest), listing.content)


def is_code_changed(
    directory: RunDirectory, code: CodeFolder | None, run_file: str | None = None
) -> bool:
    """Whether it has other files than at the last start, NOT_CODE and the run file left aside."""
    before = directory.read_spec().code_digest
    if code is None or before is None or before == code.listing.digest:
        return False
    known = _kept(directory, before)
    if known is None:
        return True
    not_code = {*NOT_CODE}
    if run_file is not None:
        not_code.add(os.path.relpath(os.path.realpath(run_file), os.path.realpath(code.path)))
    old, new = (
        {one.name: one for one in listing.files if one.name not in not_code}
        for listing in (known, code.listing)
    )
    return old != new


def changed_files(before: Listing, after: Listing) -> str:
    names = list(_changes(before, after))
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f", and {more} more" if more > 0 else "")


def _changes(before: Listing, after: Listing) -> Iterator[str]:
    old, new = ({one.name: one for one in listing.files} for listing in (before, after))
    yield from (f"changed {name}" for name in new if name in old and new[name] != old[name])
    yield from (f"added {name}" for name in new if name not in old)
    yield from (f"removed {name}" for name in old if name not in new)


def _kept(directory: RunDirectory, digest: str) -> Listing | None:
    try:
        return read_listing(directory.store.read(_file(digest)), digest)
    except FileNotFoundError:
        return None


def _file(digest: str) -> str:
    return f"code/{digest}.json"
