"""A target for a context of the kubeconfig, from what its cluster answers. `headway target add` and
`headway run --on CONTEXT` write one; a command that only reads says what `headway run` would add.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.output import say
from headway.errors import BadInput, NotFound
from headway.spec.load import TARGET_FILE, LoadedTarget, config_folder, load_target, load_targets

if TYPE_CHECKING:
    from headway.kube.target_choice import Wishes
    from headway.spec.target_file import Target
    from headway.spec.target_text import TargetLine

Ask = Callable[[str, str | None], str]
"""Puts a question to the user, with the default answer if there is one."""
DEFAULT_NAMESPACE = "default"
"""Namespace of a context that names none, as for kubectl."""
LONGEST_NAME = 40

_proposed: dict[tuple[str, Path], LoadedTarget] = {}
"""Targets that were not written: a command asks the cluster once, and says once what it found."""


def user_targets() -> Path:
    """Return the file that new targets are added to."""
    return config_folder() / TARGET_FILE


def target_to_run_on(on: str, folder: Path) -> str:
    """Return the name of target `on`. If `on` is a context without a target, add one: on a
    terminal the user is asked for what the cluster does not say."""
    from headway.spec.target_text import append_target

    name, is_known = _target_name(on, folder)
    if is_known:
        return name
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    block = _block_for(on, name, folder, _prompted if is_terminal else None)
    append_target(user_targets(), name, block)
    say(block)
    say(f"added target {name} to {user_targets()}")
    return name


def named_target(on: str, folder: Path) -> LoadedTarget:
    """Return target `on`. If `on` is a context without a target, return the one that `headway run`
    would add, and write nothing."""
    from headway.spec.located_yaml import read_yaml
    from headway.spec.target_text import read_targets

    if (on, folder) in _proposed:
        return _proposed[on, folder]
    name, is_known = _target_name(on, folder)
    if is_known:
        return load_target(name, folder)
    block, shown = _block_for(on, name, folder, None), f"new target {name}"
    target = read_targets(block, shown).root[name]
    found = LoadedTarget(name, target, read_yaml(block, shown))
    say(f"{on} is a context of your kubeconfig without a target")
    say(f"headway run --on {shlex.quote(on)} would add this to {user_targets()}:")
    say(block)
    _proposed[on, folder] = _proposed[name, folder] = found
    return found


def _target_name(on: str, folder: Path) -> tuple[str, bool]:
    """Return the name of the target that `on` stands for, and whether it exists."""
    targets = load_targets(folder)
    if on in targets:
        return on, True
    contexts = _contexts()
    if on not in contexts:
        try:
            return load_target(on, folder).name, True
        except NotFound as error:
            if contexts:
                known = f"contexts of your kubeconfig: {', '.join(sorted(contexts))}"
                error.hint = f"{error.hint}; {known}" if targets else known
            raise
    name = name_for(on)
    if name and name not in targets:
        return name, False
    if name and targets[name].kube.context == on:
        return name, True
    taken = f": target {name} is for another one" if name else ""
    raise BadInput(
        f"context {on} needs a target with another name{taken}",
        shlex.join(["headway", "target", "add", "NAME", "--context", on]),
    )


def name_for(context: str) -> str:
    """Return a name for the target of a context: the context itself, or the last part of one like
    `arn:aws:eks:eu-west-1:123:cluster/lab` or `gke_project_zone_lab`."""
    parts = [part.strip("-") for part in re.split(r"[^a-z0-9-]+", context.lower())]
    last = next(filter(None, reversed(parts)), "")
    return last[:LONGEST_NAME].rstrip("-")


def _contexts() -> Sequence[str]:
    from lightkube.core.exceptions import ConfigError

    from headway.kube.kubeconfig import user_config

    with suppress(ConfigError):
        return user_config().contexts
    return ()


def _block_for(context: str, name: str, folder: Path, ask: Ask | None) -> str:
    from headway.kube.target_choice import Wishes

    where = context_and_namespace(name, context, None, ask)
    wishes = Wishes(name, *where, typed={"--context": context})
    heading = f"written by headway run --on {shlex.quote(context)}; edit as you like"
    return new_block(wishes, load_targets(folder), heading, ask=ask)


def new_block(
    wishes: Wishes,
    targets: Mapping[str, Target],
    heading: str,
    more: Sequence[TargetLine] = (),
    ask: Ask | None = None,
) -> str:
    """Look at the cluster, and return the entry of a new target. Without `ask`, what cannot be
    decided raises BadInput with a command for each choice."""
    from headway.clock import SystemClock
    from headway.kube.client import KubeClient
    from headway.kube.cluster_facts import cluster_facts
    from headway.kube.target_choice import open_questions, target_lines
    from headway.launch.cluster_look import cluster_answers
    from headway.spec.target_text import target_block

    kube = KubeClient.from_kubeconfig(wishes.context, wishes.namespace, say)
    facts = cluster_facts(cluster_answers(kube, SystemClock()))
    context = wishes.context
    others = {name: one for name, one in targets.items() if one.kube.context in (context, None)}
    while ask is not None and (questions := open_questions(facts, wishes, others)):
        question = questions[0]
        what, first = question.flag.removeprefix("--"), question.values[0]
        say(question.problem)
        if question.is_example:
            answer = ask(f"{what}, such as {first}", None)
        else:
            answer = ask(what, first)
        wishes = wishes.with_flag(question.flag, answer)
    lines = [*target_lines(facts, wishes, others), *more]
    return target_block(wishes.name, lines, heading)


def _prompted(question: str, default: str | None) -> str:
    import typer

    return str(typer.prompt(question, default=default, err=True))


def context_and_namespace(
    name: str, context: str | None, namespace: str | None, ask: Ask | None = None
) -> tuple[str | None, str]:
    """Return both, as the kubeconfig has them. Without one, as in a pod, the connection says what
    is missing."""
    from lightkube.core.exceptions import ConfigError

    from headway.kube.kubeconfig import user_config

    try:
        config = user_config()
    except ConfigError:
        return context, namespace or DEFAULT_NAMESPACE
    chosen = context or config.current_context
    if chosen is None and len(config.contexts) == 1:
        chosen = config.contexts[0]
    if chosen is None or chosen not in config.contexts:
        missing = f"has no context {chosen}" if chosen else "has no current context"
        command = ["headway", "target", "add", name, "--context"]
        commands = [shlex.join([*command, one]) for one in config.contexts]
        raise BadInput(f"your kubeconfig {missing}", "\nhint: ".join(commands) or None)
    namespace = namespace or config.named("context", chosen).get("namespace")
    if namespace is None and ask is not None:
        namespace = ask(f"namespace of context {chosen}", DEFAULT_NAMESPACE)
    return chosen, namespace or DEFAULT_NAMESPACE
