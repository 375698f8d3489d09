"""headway data prepare: text into token shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headway.cli.options import AllowUnreadableOption
from headway.cli.output import say
from headway.cli.output_path import writes_folder

if TYPE_CHECKING:
    from headway.data.prepare.job import PrepareJob
    from headway.spec.data_config import UnmaskConfig


def prepare(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders, globs, s3://, gs:// or https:// addresses, hub:NAME?split=train; "
            "with --on also claim:PATH."
        ),
    ],
    into: Annotated[
        str,
        typer.Option(
            "--into",
            help="Where to write the prepared set: a folder, s3:// or gs://. With --on: a name, "
            "claim:PATH, s3:// or gs://.",
        ),
    ],
    tokenizer: Annotated[
        str | None, typer.Option(help="A hub name, or a folder with tokenizer.json.")
    ] = None,
    train_vocab: Annotated[
        int | None,
        typer.Option(help="Train a tokenizer with this many tokens on the text itself.", min=300),
    ] = None,
    column: Annotated[str, typer.Option(help="Column with the text.")] = "text",
    template: Annotated[
        str | None, typer.Option(help='Text from several columns: "{question} {answer}".')
    ] = None,
    messages: Annotated[
        str | None,
        typer.Option(help="Column with conversations: only answers count for the loss."),
    ] = None,
    chat_template: Annotated[
        Literal["zephyr"] | None,
        typer.Option(help="With --messages: built-in chat template for a tokenizer without one."),
    ] = None,
    transform: Annotated[
        str | None, typer.Option(help="Your own function, module:function; see --code.")
    ] = None,
    code: Annotated[Path | None, typer.Option(help="Folder with your own code.")] = None,
    ids: Annotated[
        str | None, typer.Option(help="Column with token ids, used as they are.")
    ] = None,
    mask: Annotated[
        str | None,
        typer.Option(help="With --ids: column that is 1 where a token counts for the loss."),
    ] = None,
    unmask: Annotated[
        str | None,
        typer.Option(
            metavar="POSITIONS,IDS",
            help="With --ids and --windows: columns with what was masked, which is put back.",
        ),
    ] = None,
    windows: Annotated[
        int | None,
        typer.Option(
            help="For masked models: windows of this many tokens, as sequence_length.", min=3
        ),
    ] = None,
    deduplicate: Annotated[
        bool, typer.Option("--deduplicate", help="Leave out exact duplicates of earlier documents.")
    ] = False,
    hold_out: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Hold out this share of the documents for validation, as a set INTO-held-out.",
        ),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Let runs train on the set while it is prepared, in the order of the sources.",
        ),
    ] = False,
    stream_window: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS",
            help="With --stream: mix samples within so many tokens. Default: 64 Mi.",
        ),
    ] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Read public buckets without credentials.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first record that cannot be read.")
    ] = False,
    allow_unreadable: AllowUnreadableOption = False,
    processes: Annotated[
        int | None,
        typer.Option(help="Number of processes that tokenise. Default: one per core.", min=1),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on", metavar="TARGET", help="Prepare in pods of this target, beside the sources."
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            help="With --on: number of pods. Default: prepare.nodes of the target.", min=1
        ),
    ] = None,
) -> None:
    """Turn text into a prepared set that a run file can name as data.train.

    If it is stopped or killed, the same command resumes it. With --on, Ctrl-C only stops watching:
    the same command watches again.
    """
    from headway.errors import BadInput, needs_train
    from headway.spec.data_config import CLAIM
    from headway.spec.quantities import parse_share

    try:
        from headway.cli.run_sets import tokenizer_folder
        from headway.cli.set_preparation import prepare_with_progress
        from headway.data.prepare.job import PrepareJob
        from headway.data.prepare.recipe import RecipeSettings
        from headway.data.tokenizer import TokenizerSource
    except ImportError as error:
        raise needs_train("headway data prepare", error) from None
    if (tokenizer is None) == (train_vocab is None):
        raise BadInput("give exactly one of --tokenizer and --train-vocab", "--tokenizer gpt2")
    if chat_template is not None and tokenizer is None:
        raise BadInput("--chat-template needs --tokenizer", "--tokenizer gpt2")
    try:
        share = None if hold_out is None else parse_share(hold_out)
    except ValueError as error:
        raise BadInput(f"--hold-out: {error}") from None
    if on is None and any(one.startswith(CLAIM) for one in (*sources, into)):
        raise BadInput(f"{CLAIM}PATH is a path on the claim of a target", "add --on TARGET")
    settings = RecipeSettings(
        layout="stream" if windows is None else "windows",
        window_tokens=windows,
        column=column,
        template=template,
        messages=messages,
        transform=transform,
        ids=ids,
        mask=mask,
        unmask=None if unmask is None else _unmask(unmask),
        deduplicate=deduplicate,
        hold_out=share,
        in_sequence=stream,
    )
    if stream_window is not None:
        if not stream:
            raise BadInput("--stream-window needs --stream")
        settings = settings.streamed(_window(stream_window))
    job = PrepareJob(
        sources=_at_commits(sources, into) if on is None else sources,
        tokenizer=TokenizerSource(tokenizer, train_vocab, chat_template),
        into=into,
        beside=Path.cwd(),
        settings=settings,
        code=None if code is None else code.resolve(),
        anonymous=anonymous,
        strict=strict,
        allow_unreadable=allow_unreadable,
        processes=processes,
    )
    if on is not None:
        _prepare_on(job, on, nodes)
        return
    if nodes is not None:
        raise BadInput("--nodes needs --on: here, --processes says how many processes tokenise")
    with writes_folder(into, "--into"):
        prepare_with_progress(job, Path(into).name)
    held_out = ""
    if share is not None:
        other = f"{into}-held-out"
        settings = job.settings.model_copy(update={"side": "held_out"})
        shared = TokenizerSource(load=tokenizer_folder(into))
        prepare_with_progress(
            replace(job, into=other, settings=settings, tokenizer=shared), Path(other).name
        )
        held_out = f", validation: {{held_out: {other}}}"
    say(f"next: data: {{train: {into}{held_out}}} in the run file")


def _at_commits(sources: Sequence[str], into: str) -> list[str]:
    """Those on the hub with their commit, as the preparation in `into` has begun with, if any."""
    from headway.data.hub_commits import fixed_source
    from headway.data.prepare.recipe import read_recipe
    from headway.data.prepare.sources import HUB
    from headway.state.store import Store

    if not any(one.startswith(HUB) for one in sources):
        return list(sources)
    begun = read_recipe(Store(into))
    names = [file.name for file in begun.files] if begun is not None else []
    return [fixed_source(one, names) for one in sources]


def _unmask(text: str) -> UnmaskConfig:
    from headway.errors import BadInput
    from headway.spec.data_config import UnmaskConfig

    positions, _, ids = text.partition(",")
    if not positions or not ids:
        raise BadInput(
            f"--unmask {text}: not of the form POSITIONS,IDS",
            "--unmask masked_lm_positions,masked_lm_ids",
        )
    return UnmaskConfig(positions=positions, ids=ids)


def _prepare_on(job: PrepareJob, on: str, nodes: int | None) -> None:
    from headway.cli.data_on_target import locations, prepare_on
    from headway.cli.run_sets import tokenizer_folder
    from headway.cli.target_run import TargetRun, end_claim_pods
    from headway.data.tokenizer import TokenizerSource
    from headway.errors import BadInput
    from headway.spec.data_config import CLAIM
    from headway.spec.load import load_target

    if job.processes is not None:
        raise BadInput(
            "--on cannot be combined with --processes",
            "--nodes says how many pods there are, and prepare.resources of the target their cpu",
        )
    found = load_target(on, job.beside)
    where = TargetRun("", on, found.target, job.beside)
    name = job.into.removeprefix(CLAIM)
    place = job.into if ":" in job.into else f"sets/{job.into}"
    try:
        here = locations(place, where)[1]
        with writes_folder(here, "--into"):
            # With the commits that it has begun with, if it has.
            job = replace(job, sources=_at_commits(job.sources, here))
            made = prepare_on(job, Path(name).name, place, where, found, nodes)
        held_out = ""
        if job.settings.hold_out is not None:
            settings = job.settings.model_copy(update={"side": "held_out"})
            shared = TokenizerSource(load=tokenizer_folder(made.here))
            other = replace(job, settings=settings, tokenizer=shared)
            second = prepare_on(
                other, f"{Path(name).name}-held-out", f"{place}-held-out", where, found, nodes
            )
            held_out = f", validation: {{held_out: {second.as_named}}}"
        say(f"next: data: {{train: {made.as_named}{held_out}}} in the run file")
    finally:
        end_claim_pods()


def _window(text: str) -> int:
    from pydantic import ValidationError

    from headway.errors import BadInput
    from headway.spec.data_config import StreamConfig

    try:
        return int(StreamConfig.model_validate({"window": text}).window.amount)
    except ValidationError as error:
        words = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise BadInput(f"--stream-window: {words}") from None
