"""headway data tokenizer: a tokenizer of one's own text, without a set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.output import hint, say, short_count, warn

if TYPE_CHECKING:
    from headway.data.making.report import Progress


def tokenizer(
    sources: Annotated[
        list[str],
        typer.Argument(help="What it is trained on, named as for headway data prepare."),
    ],
    vocab: Annotated[int, typer.Option(help="How many tokens it is to have.", min=300)],
    into: Annotated[str, typer.Option("--into", help="The folder it goes to, on this machine.")],
    masked: Annotated[
        bool,
        typer.Option("--masked", help="For masked models: with [CLS], [SEP], [MASK] and [PAD]."),
    ] = False,
    column: Annotated[str, typer.Option(help="The column that holds the text.")] = "text",
    template: Annotated[
        str | None, typer.Option(help='Text out of several columns: "{question} {answer}".')
    ] = None,
    transform: Annotated[
        str | None, typer.Option(help="Your own function, module:function; see --code.")
    ] = None,
    code: Annotated[Path | None, typer.Option(help="Folder of your own code.")] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Public buckets: ask without credentials.")
    ] = False,
) -> None:
    """Train a tokenizer on text and save it: for several sets, or for a set made in parts."""
    from headway.cli.progress import MovingLine
    from headway.clock import SystemClock
    from headway.errors import BadInput, needs_train

    try:
        from headway.data.making.recipe import Settings
        from headway.data.making.train_tokenizer_on import train_into
    except ImportError as error:
        raise needs_train("headway data tokenizer", error) from None
    if "://" in into:
        raise BadInput(
            f"--into {into}: a tokenizer is loaded from a folder on this machine",
            "--into my-tokenizer; each set takes a copy with it",
        )
    if template is not None and transform is not None:
        raise BadInput("give one of --template and --transform, not both")
    line = MovingLine()
    try:
        made = train_into(
            sources,
            Path.cwd(),
            Settings(
                layout="windows" if masked else "stream",
                column=column,
                template=template,
                transform=transform,
            ),
            vocab,
            Path(into),
            lambda progress: line.show(_words(progress)),
            SystemClock(),
            code=None if code is None else code.resolve(),
            anonymous=anonymous,
        )
    finally:
        line.close()
    say(f"trained a tokenizer of {made.vocab_size} tokens, in {into}")
    if made.vocab_size < vocab:
        warn(f"it has fewer than {vocab} tokens: there is too little text for more")
    windows = " --windows 128" if masked else ""
    hint(f"headway data prepare SOURCES --tokenizer {into}{windows} --into SET")


def _words(progress: Progress) -> str:
    share = "" if progress.share is None else f" {progress.share:4.0%}"
    speed = progress.bytes / 1e6 / max(progress.seconds, 1e-3)
    return (
        f"training a tokenizer:{share}  {short_count(progress.documents)} documents  "
        f"{speed:.1f} MB/s"
    )
