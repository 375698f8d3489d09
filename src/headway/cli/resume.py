"""headway resume: go on with a run, from its directory alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import OnOption, RunArgument


def resume(
    run: RunArgument = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            help="So many nodes; here this machine plays them. Left out: as before.",
            min=1,
        ),
    ] = None,
    on: OnOption = None,
) -> None:
    """Go on with a run as it was started, from its newest good checkpoint."""
    from headway.cli.run import start
    from headway.cli.target_run import target_run
    from headway.spec.load import Loaded
    from headway.spec.located import Located
    from headway.state.find import find_run

    if (there := target_run(run, on, Path.cwd())) is not None:
        from headway.cli.launching import resume_on

        resume_on(there, nodes)
        return
    directory = find_run(run, Path.cwd())
    resolved = directory.read_spec()
    # The run is the one in the directory, whatever the run file says by now.
    loaded = Loaded(resolved.run, Path(resolved.folder), Located({}))
    start(loaded, nodes, False, directory.location, else_nodes=resolved.nodes)
