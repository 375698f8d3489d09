"""headway target: describes clusters to run on."""

from __future__ import annotations

from collections.abc import Callable

from headway.cli.command_group import ExampleCommand, plain_app
from headway.cli.target.add import add

HELP = "Find out what a cluster has, and write a target for it."
app = plain_app(help=HELP, no_args_is_help=True)
EXAMPLES: dict[Callable[..., None], tuple[str, str]] = {
    add: (
        "headway target add lab --image registry.example/headway@sha256:DIGEST",
        "headway target add eks --context eks --namespace ml --dry-run",
    ),
}


@app.callback(help=HELP)
def target() -> None:
    """With a callback, one command is a group as well."""


for command, examples in EXAMPLES.items():
    app.command(cls=ExampleCommand, epilog="\n".join(examples))(command)
