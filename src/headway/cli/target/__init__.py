"""headway target: describe clusters to run on, prove that runs work there, and keep them tidy."""

from __future__ import annotations

from collections.abc import Callable

from headway.cli.command_group import ExampleCommand, plain_app
from headway.cli.target.add import add
from headway.cli.target.check import check
from headway.cli.target.cleanup import cleanup
from headway.cli.target.rbac import rbac
from headway.cli.target.storage import prune, storage

HELP = "Write a target for a cluster, check that runs work there, and remove what they left."
app = plain_app(help=HELP, no_args_is_help=True)
EXAMPLES: dict[Callable[..., None], tuple[str, str]] = {
    add: (
        "headway target add lab --image registry.example/headway@sha256:DIGEST",
        "headway target add eks --context eks --namespace ml --dry-run",
    ),
    check: ("headway target check lab", "headway target check lab --wait 15min --json"),
    rbac: ("headway target rbac lab", "headway target rbac lab --output json"),
    cleanup: ("headway target cleanup lab", "headway target cleanup lab --yes"),
    storage: ("headway target storage lab", "headway target storage lab --json"),
    prune: ("headway target prune lab", "headway target prune lab --yes"),
}
for command, examples in EXAMPLES.items():
    app.command(cls=ExampleCommand, epilog="\n".join(examples))(command)
