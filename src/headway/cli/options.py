"""Arguments that several commands share, so that they mean the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

RunFileArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN_FILE", help="Run file, or the folder it is in. Left out: ./run.yaml."
    ),
]
RunArgument = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="A run's name or folder. Left out: the one of ./run.yaml."),
]
RunStepArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN[@STEP]",
        help="A run's name or folder, and a saved step. Left out: the newest of ./run.yaml's run.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key of the run file: --set optimizer.lr=1e-4"
    ),
]
SequenceLengthOption = Annotated[
    int | None,
    typer.Option(
        help="Tokens of a sample, as in the run file. Left out: 1024, or the windows' own.",
        min=1,
    ),
]
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="TARGET",
        help="The run on this target. Left out: where it was last started.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
