"""All problems of a run at once, and what could not be checked here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from headway.errors import SpecError
from headway.preflight.model import model_problems
from headway.preflight.own_code import code_problems
from headway.preflight.prompts import prompt_problems
from headway.preflight.script import script_problems
from headway.preflight.sources import source_problems
from headway.preflight.unchecked import Unchecked
from headway.spec.load import Loaded


@dataclass(frozen=True)
class Preflight:
    problems: list[SpecError]
    unchecked: list[str]

    def raise_problems(self) -> None:
        """Raises all of them as one error."""
        if self.problems:
            first, *others = self.problems
            raise SpecError(first.problem, first.where, first.hint, others)


def preflight(loaded: Loaded, is_here: bool = True) -> Preflight:
    """Of a run file; of a preset only its model, since its data is not known. `is_here`: it is to
    run on this machine."""
    unchecked = Unchecked()
    problems = list(model_problems(loaded, is_here, unchecked))
    if not loaded.is_preset:
        problems += source_problems(loaded, is_here, unchecked)
        problems += code_problems(loaded, is_here, unchecked)
        problems += prompt_problems(loaded, unchecked)
        problems += script_problems(loaded, is_here, unchecked)
        problems += _missing_secrets(loaded) if is_here else ()
    return Preflight(problems, unchecked.notes)


def _missing_secrets(loaded: Loaded) -> Iterator[SpecError]:
    missing = [name for name in loaded.run.secrets if not os.environ.get(name)]
    if missing:
        yield SpecError(
            f"secrets: {', '.join(missing)} not set in the environment",
            str(loaded.located.mark(("secrets",))),
            f"export {missing[0]}=...",
        )
