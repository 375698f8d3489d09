"""headway ledger: the proof that every sample was consumed once."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from headway.cli.command_group import ExampleCommand, plain_app
from headway.cli.options import JsonOption, OnOption, RunArgument
from headway.cli.output import print_json, warn

app = plain_app(help="Prove which samples a run consumed.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command(
    "verify",
    cls=ExampleCommand,
    epilog="headway ledger verify\nheadway ledger verify my-run --json",
)
def verify(run: RunArgument = None, on: OnOption = None, json_: JsonOption = False) -> None:
    """Prove from the ledger alone that every sample was consumed once, in order."""
    from headway.cli.script_refusal import refuse_script
    from headway.cli.target_run import directory_of
    from headway.errors import CheckFailed
    from headway.state.checkpoints import steps_saved
    from headway.state.ledger import verify_ledger

    directory = directory_of(run, on, Path.cwd())
    refuse_script(
        directory,
        "ledger verify",
        "Headway records the samples that it feeds to a model, and a script reads its own",
        "headway status shows its steps, if it writes a heartbeat",
    )
    records, count = directory.ledger.read()[0], directory.ledger.num_damaged
    damaged = f"{count} damaged lines of it are left out" if count else None
    forked = directory.record().get("forked_from")
    base = forked["step"] if forked else 0
    verdict = verify_ledger(records, base)
    newest = max(steps_saved(directory), default=0)
    if verdict.breach is None and newest > base + verdict.steps:
        end = f"its end: step {newest} is saved, and the ledger stops at {base + verdict.steps}"
        verdict = replace(verdict, breach=end)
    if json_:
        print_json({"run": directory.name, **asdict(verdict)})
    elif verdict.breach is None:
        stretch = "the order" if verdict.epochs is None else f"{verdict.epochs:.3f} epochs"
        generations = f"{verdict.generations} generation{'' if verdict.generations == 1 else 's'}"
        print(
            f"exact: {verdict.steps} steps consumed {verdict.samples} samples, each position of "
            f"{stretch} once and in order\n"
            f"{generations}, {verdict.redone} steps repeated, "
            f"{verdict.not_learned} consumed but not learned"
        )
        if damaged is not None:
            warn(damaged)
    if verdict.breach is not None:
        raise CheckFailed(f"the ledger of {directory.name} is broken at {verdict.breach}", damaged)
