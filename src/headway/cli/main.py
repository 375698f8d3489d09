"""The command line: one file per command. Heavy imports are in the commands that need them."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

if os.getpid() == 1:
    # The first process of a pod has no default handler: without this one, a pod that is told to
    # stop during the imports below would be killed only minutes later.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))

import typer

from headway import __version__
from headway.cli import (
    check,
    coordinator,
    data,
    delete,
    events,
    export,
    fork,
    generate,
    init,
    keep,
    ledger,
    list_runs,
    logs,
    node,
    prove,
    report,
    resume,
    run,
    scale,
    serve,
    status,
    stop,
)
from headway.errors import HeadwayError

app = typer.Typer(
    name="headway",
    help="Train language models from one run file, on this machine or on Kubernetes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: readable in any terminal, and 150 ms sooner
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("init")(init.init)
app.command("check")(check.check)
app.command("run")(run.run)
app.command("stop")(stop.stop)
app.command("scale")(scale.scale)
app.command("resume")(resume.resume)
app.command("fork")(fork.fork)
app.command("delete")(delete.delete)
app.command("status")(status.status)
app.command("logs")(logs.logs)
app.command("events")(events.events)
app.command("list")(list_runs.list_runs)
app.command("report")(report.report)
app.command("generate")(generate.generate)
app.command("export")(export.export)
app.command("prove")(prove.prove)
app.command("coordinator")(coordinator.coordinator)
app.command("node")(node.node)
app.command("keep")(keep.keep)
app.command("serve")(serve.serve)
app.add_typer(ledger.app, name="ledger")
app.add_typer(data.app, name="data")


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


def main() -> None:
    try:
        app()
    except HeadwayError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(int(error.exit_code))
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell reports a program that Ctrl-C ended


if __name__ == "__main__":
    main()
