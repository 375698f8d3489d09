"""headway target add: looks at a cluster, and writes a target for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.output import hint, say
from headway.errors import BadInput

if TYPE_CHECKING:
    from headway.spec.target_file import Target
    from headway.spec.target_text import TargetLine


def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new target.")],
    context: Annotated[
        str | None,
        typer.Option(help="Context of the kubeconfig. Default: the current one."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Default: that of the context.")
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            help="Image of the workers, by digest. Default: that of a target of this context."
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL|claim:NAME",
            help="s3://, gs:// or a claim. Default: the one claim that many machines can write.",
        ),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(help="Type of the machines, such as p5.48xlarge, hgx-h100 or cpu."),
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Kueue's LocalQueue.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Another key of the target: --set coordinator.resources.memory=1Gi",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the target, and write nothing.")
    ] = False,
) -> None:
    """Look at a cluster, and write a target for it into ~/.config/headway/targets.yaml.

    Reads only: claims, labels of spot machines and of accelerators, queues, pod security. Each line
    of the target says where its value is from; what the cluster is not asked for is commented out.
    What cannot be decided ends with exit code 2 and a command for each choice."""
    from headway.cli.new_target import context_and_namespace, new_block, user_targets
    from headway.kube.target_choice import Wishes
    from headway.spec.load import load_targets
    from headway.spec.target_text import append_target, with_target

    targets, file = load_targets(Path.cwd()), user_targets()
    _require_new(name, targets)
    typed = {
        "--context": context,
        "--namespace": namespace,
        "--image": image,
        "--storage": storage,
        "--machine": machine,
        "--queue": queue,
    }
    flags = {flag: value for flag, value in typed.items() if value is not None}
    where = context_and_namespace(name, context, namespace)
    wishes = Wishes(name, *where, image, storage, machine, queue, flags, tuple(set_ or ()))
    more = [line for one in set_ or () for line in _lines_of(one)]
    block = new_block(wishes, targets, "written by headway target add; edit as you like", more)
    if dry_run:
        with_target("", name, block, file)
        print(block, end="")
        return
    append_target(file, name, block)
    print(block, end="")
    say()
    say(f"added target {name} to {file}")
    hint(f"headway target check {name}", f"headway run --on {name}")


def _require_new(name: str, targets: Mapping[str, Target]) -> None:
    if name in targets:
        raise BadInput(
            f"there is a target {name} already",
            "take another name, or remove that target from its targets.yaml first",
        )


def _lines_of(setting: str) -> list[TargetLine]:
    """Of `--set a.b=c`, whose value is YAML; a section becomes a line for each key."""
    from headway.spec.located_yaml import read_yaml
    from headway.spec.target_text import TargetLine

    key, equals, value = setting.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path) or not value.strip():
        raise BadInput(f"--set {setting}: write --set key.inner=value")
    lines: list[TargetLine] = []

    def expand(path: tuple[str, ...], found: Any) -> None:
        if isinstance(found, dict) and found:
            for inner, below in found.items():
                expand((*path, str(inner)), below)
        else:
            lines.append(TargetLine(path, found, "--set"))

    expand(path, read_yaml(value, f"--set {key}", key.strip()).value)
    return lines
