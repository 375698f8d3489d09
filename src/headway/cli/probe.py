"""headway probe: what the coordinator's pod of `headway target check` runs."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def probe(
    task: Annotated[str | None, typer.Argument(help="One task; left out: serves all.")] = None,
    content: Annotated[str, typer.Argument(help="What it needs, as JSON.")] = "{}",
) -> None:
    """Try storage, names and rights for headway target check (used in pods that it creates)."""
    from headway import __version__
    from headway.kube import probe as program
    from headway.kube.names import HTTP_PORT, SESSION_PORT
    from headway.kube.versions import require_launchers_version
    from headway.launch.probe_tasks import alone, tasks

    require_launchers_version()
    if task is not None:
        print(json.dumps(tasks()[task](json.loads(content))))
        return
    program.listening(SESSION_PORT)
    program.serve(HTTP_PORT, tasks(), alone, f"headway/{__version__}")
