"""Keys that do not go with `command`, and how a command is written."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

from headway.errors import SpecError
from headway.spec.located_yaml import PRESET, Located

ITSELF = "the script decides that itself"
UNSEEN = "Headway does not see into the steps of a script"
EXCLUDED = {
    "model": ITSELF,
    "objective": ITSELF,
    "data": "the script reads its own data",
    "batch": ITSELF,
    "train_for": "the script decides when it is done",
    "optimizer": ITSELF,
    "schedule": ITSELF,
    "precision": ITSELF,
    "seed": ITSELF,
    "shard": ITSELF,
    "elastic": "a script always starts again when its nodes change",
    "memory": ITSELF,
    "checkpoint": "the script saves its own, to $HEADWAY_OUTPUT",
    "evaluation": ITSELF,
    "guard": UNSEEN,
    "track": "the script logs where it wants to",
    "watch": UNSEEN,
}
"""Keys that do not apply to a script, and why. The others say how a run is operated."""
VARIABLES = ("HEADWAY_OUTPUT", "HEADWAY_SCRATCH", "HEADWAY_HEARTBEAT", "HEADWAY_RUN")
"""Variables that are replaced in the arguments of a script: there is no shell."""
PLAIN = re.compile(r"[\w./$@%+=~-][\w./:$@%+=~-]*")
"""Arguments that mean the same in a YAML list with and without quotes."""


def refuse_excluded(located: Located) -> None:
    """Raises if keys are written that do not apply to a script: all of them at once."""
    written = located.value
    if not isinstance(written, dict) or written.get("command") is None:
        return
    problems, of_preset = [], []
    for key, why in EXCLUDED.items():
        if written.get(key) is None:
            continue
        mark = located.mark((key,))
        if mark.file.endswith(PRESET):
            of_preset.append(key)
            continue
        problems.append(
            SpecError(
                f"{key} does not apply to a run with `command`: {why}",
                str(mark),
                "remove it; what the script needs goes into its arguments",
            )
        )
    if of_preset:
        problems.insert(
            0,
            SpecError(
                f"extends brings {', '.join(of_preset)}, which do not apply to a run with "
                "`command`: presets are models to train",
                str(located.mark(("extends",))),
                "remove extends, or command",
            ),
        )
    if problems:
        first, *others = problems
        raise SpecError(first.problem, first.where, first.hint, others)


def as_list(command: str) -> str:
    """A command of a shell as the run file has it."""
    try:
        arguments = shlex.split(command)
    except ValueError:  # a quote that is not closed
        arguments = command.split()
    return written(arguments)


def written(command: Sequence[str]) -> str:
    """As it is written in a run file."""
    shown = (
        one if PLAIN.fullmatch(one) else json.dumps(one, ensure_ascii=False) for one in command
    )
    return f"command: [{', '.join(shown)}]"
