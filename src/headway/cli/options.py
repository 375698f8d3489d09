"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from headway.cli.completion import local_runs, run_file_keys

Output = Literal["yaml", "json"]
"""Formats of Kubernetes objects."""

RunFileArgument = Annotated[
    str | None,
    typer.Argument(metavar="RUN_FILE", help="Run file, or its folder. Default: ./run.yaml."),
]
RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="Name or folder of a run. Default: that of ./run.yaml.",
        autocompletion=local_runs,
    ),
]
RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN",
        help="Names or folders of runs. Default: that of ./run.yaml.",
        autocompletion=local_runs,
    ),
]
RunStepArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN[@STEP]",
        help="Name or folder of a run, and a saved step. Default: run of ./run.yaml, newest step.",
        autocompletion=local_runs,
    ),
]
TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="Name of a target in targets.yaml.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the run file: --set optimizer.lr=1e-4",
        autocompletion=run_file_keys,
    ),
]
SequenceLengthOption = Annotated[
    int | None,
    typer.Option(
        help="Tokens per sample, as in the run file. Default: 1024, or the length of the windows.",
        min=1,
    ),
]
AllowUnreadableOption = Annotated[
    bool,
    typer.Option(
        "--allow-unreadable",
        help="Accept damaged files, and sources most of whose records have no text.",
    ),
]
TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Also of a run that another machine trains, as far as is known here: if that still "
        "lives, it saves nothing any more.",
    ),
]
TrustCodeOption = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        help="Run the code that the run directory names, which others may have written. Says first "
        "which code that is. Without this option, only code that you started on this machine runs.",
    ),
]
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="TARGET",
        help="Target the run is on. Default: where it was last started.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
