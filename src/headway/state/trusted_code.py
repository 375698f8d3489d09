"""Which code the spec of a stored run may name: what this user has started, or has agreed to.

A run directory may be in storage that others can write. Whoever writes `spec.json` there would
decide what runs on the machine of everybody who exports or resumes the run. So each start keeps a
digest of the code that its run names in the user's cache, which others cannot write.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from headway.errors import BadInput
from headway.spec.own_calls import own_calls
from headway.spec.resolve import Resolved
from headway.state.run_directory import SPEC, RunDirectory
from headway.state.user_cache import cache_root

FOLDER = "trusted-code"


def named_code(resolved: Resolved) -> dict[str, Any]:
    """Everything in the spec that decides which code runs, by its key; empty if nothing does."""
    run, folder = resolved.run, Path(resolved.folder)
    found: dict[str, Any] = {".".join(map(str, key)): call for key, call in own_calls(run)}
    if "model.call" in found and run.model is not None:
        found["model.config"] = run.model.config  # its arguments
    if "objective.teacher.call" in found and run.objective.teacher is not None:
        found["objective.teacher.config"] = run.objective.teacher.config
    if run.command is not None:
        found["command"] = run.command
    if run.code is not None:
        found["code.path"] = str(folder / run.code.path)
        if run.code.requirements is not None:
            found["code.requirements"] = str(folder / run.code.requirements)
    if resolved.packages is not None:
        found["packages"] = resolved.packages
    return found


def trust_code(resolved: Resolved) -> None:
    """Keep the digest of the code that the run names."""
    if named := named_code(resolved):
        keep_digest(_text(named))


def is_trusted(resolved: Resolved) -> bool:
    named = named_code(resolved)
    return not named or is_kept(_text(named))


def require_trusted_code(directory: RunDirectory, resolved: Resolved, command: str) -> None:
    """Raise if the spec names code, and neither a start by this user nor `--trust-code` kept its
    digest."""
    if not is_trusted(resolved):
        raise BadInput(
            f"{directory.store.location(SPEC)} names code that you have not started from here: "
            f"{described(named_code(resolved))}",
            "if you trust everybody who can write there: "
            f"headway {command} {directory.as_typed} --trust-code",
        )


def described(named: dict[str, Any]) -> str:
    return "; ".join(f"{key}: {_shown(value)}" for key, value in named.items() if value != {})


def keep_digest(text: str) -> None:
    with suppress(OSError):  # without a cache, later commands ask for --trust-code
        _file(text).parent.mkdir(parents=True, exist_ok=True)
        _file(text).touch()


def is_kept(text: str) -> bool:
    return _file(text).is_file()


def _file(text: str) -> Path:
    # Cryptographic: somebody else chooses what is compared.
    return cache_root() / FOLDER / hashlib.sha256(text.encode()).hexdigest()


def _text(named: dict[str, Any]) -> str:
    return json.dumps(named, sort_keys=True)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
