"""A compiled run without a compiler, in one sentence."""

from __future__ import annotations

from headway.errors import RunFailed

SIGN = "No working C++ compiler found"
"""In torch's words."""


def missing_compiler(error: BaseException) -> RunFailed | None:
    """The error to exit with, if `error` is that."""
    if SIGN not in str(error):
        return None
    return RunFailed(
        "memory.compile needs a C++ compiler, and there is none here",
        "here: apt-get install g++; on a target: headway image build --push REGISTRY/NAME --on "
        "TARGET, whose image has it",
    )
