"""headway target: describes clusters to run on, and proves that runs work there."""

from __future__ import annotations

from collections.abc import Callable

from headway.cli.command_group import ExampleCommand, plain_app
from headway.cli.target.add import add
from headway.cli.target.check import check

HELP = "Find out what a cluster has, write a target for it, and check that runs work there."
app = plain_app(help=HELP, no_args_is_help=True)
EXAMPLES: dict[Callable[..., None], tuple[str, str]] = {
    add: (
        "headway target add lab --image registry.example/headway@sha256:DIGEST",
        "headway target add eks --context eks --namespace ml --dry-run",
    ),
    check: ("headway target check lab", "headway target check lab --wait 15min --json"),
}
for command, examples in EXAMPLES.items():
    app.command(cls=ExampleCommand, epilog="\n".join(examples))(command)
