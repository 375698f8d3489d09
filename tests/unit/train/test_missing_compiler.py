"""memory.compile without g++."""

from __future__ import annotations

from inspect import currentframe

from torch._inductor.exc import InductorError, InvalidCxxCompiler

from headway.train.missing_compiler import missing_compiler


def test_one_sentence_with_the_fix() -> None:
    """torch raises it inside of another one."""
    found = missing_compiler(InductorError(InvalidCxxCompiler(), currentframe()))
    assert found is not None
    assert found.message == "memory.compile needs a C++ compiler, and there is none here"
    assert missing_compiler(RuntimeError("another")) is None
