"""The command line: one file per command. Heavy imports are in the commands that need them."""

from __future__ import annotations

from typing import Annotated

import typer

from headway import __version__
from headway.cli.command_group import CommandGroup, plain_app
from headway.cli.command_table import PURPOSE

app = plain_app(
    name="headway",
    cls=CommandGroup,
    help=PURPOSE,
    no_args_is_help=True,
    add_completion=True,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass
