"""headway target rbac: what an administrator applies once for a target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import Output, TargetArgument


def rbac(
    target: TargetArgument,
    output: Annotated[Output, typer.Option("--output", "-o", help="Format.")] = "yaml",
) -> None:
    """Print the service accounts and rights that an administrator creates once for a target.

    Asks no cluster and needs no rights: pipe it into kubectl apply -f -."""
    from headway.cli.target_render import errors_located, print_objects
    from headway.kube.rbac import shared_rights
    from headway.spec.load import load_target

    found = load_target(target, Path.cwd())
    with errors_located(found):
        objects = shared_rights(found.target)
    print_objects(objects, output)
