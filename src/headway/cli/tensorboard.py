"""headway tensorboard: TensorBoard of one run or several, wherever they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import OnOption, RunsArgument
from headway.cli.output import say, warn
from headway.cli.report import directories_of
from headway.cli.watch import ended_by_signals

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.report.event_files import EventFiles

UPDATE_SECONDS = 5.0
IDLE_FACTOR = 10
"""An update of a long run takes seconds: at most a tenth of the time goes into them."""
HOST = "127.0.0.1"
MOST_POINTS = 20_000
"""Of a curve, kept by TensorBoard: more than is written at once, so that spikes stay."""


def tensorboard(
    runs: RunsArgument = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Port on 127.0.0.1; 0: any. Default: 6006, or the next one.", min=0, max=65535
        ),
    ] = None,
    on: OnOption = None,
) -> None:
    """Show runs in TensorBoard, on this machine only, until Ctrl-C.

    Made from the runs' own logs: works for folders, buckets and targets, for running and ended
    runs, and without `track: [tensorboard]`. Running runs are followed."""
    import tempfile

    from headway.cli.script_refusal import refuse_script
    from headway.clock import SystemClock
    from headway.report.event_files import EventFiles, require_tensorboard

    require_tensorboard()
    directories = directories_of(runs, on)
    for directory in directories:
        refuse_script(
            directory,
            "tensorboard",
            "its metrics are where the script writes them",
            "tensorboard --logdir OUTPUT, if it writes event files there",
        )
    with (
        ended_by_signals(),
        tempfile.TemporaryDirectory(prefix="headway-tensorboard-") as scratch,
    ):
        folders = _folders([directory.name for directory in directories])
        files = [
            EventFiles(directory, Path(scratch, folder))
            for directory, folder in zip(directories, folders, strict=True)
        ]
        for one in files:
            one.update()
        url = _serve(scratch, port)
        say(f"TensorBoard: {url} (Ctrl-C ends it)")
        try:
            _follow(files, SystemClock())
        finally:
            for one in files:
                one.close()


def _folders(names: list[str]) -> list[str]:
    """Two runs in different folders may have one name."""
    return [
        name if names.count(name) == 1 else f"{name}-{names[:at].count(name) + 1}"
        for at, name in enumerate(names)
    ]


def _serve(folder: str, port: int | None) -> str:
    from tensorboard import program

    from headway.errors import BadInput

    flags = ["", "--logdir", folder, "--host", HOST]
    # The fast loader would be a process of its own, for curves that are not thinned out.
    flags += ["--load_fast", "false", "--samples_per_plugin", f"scalars={MOST_POINTS}"]
    flags += [] if port is None else ["--port", str(port)]
    server = program.TensorBoard()
    server.configure(flags)
    try:
        return str(server.launch())
    except program.TensorBoardServerException as error:
        raise BadInput(f"TensorBoard cannot be served: {error.msg}", "add --port 0") from None


def _follow(files: list[EventFiles], clock: Clock) -> None:
    """Until Ctrl-C. A store that fails for a while does not end it."""
    try:
        while True:
            began = clock.monotonic()
            try:
                for one in files:
                    one.update()
            except OSError as error:
                warn(f"reading the run failed, trying again: {error}")
            clock.sleep(max(UPDATE_SECONDS, IDLE_FACTOR * (clock.monotonic() - began)))
    except KeyboardInterrupt:
        say()
