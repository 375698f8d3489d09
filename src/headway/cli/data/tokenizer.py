"""headway data tokenizer: trains a tokenizer, without preparing a set."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.output import hint, say, short_count, warn
from headway.cli.output_path import writes_folder
from headway.state.store import Store

if TYPE_CHECKING:
    from headway.data.prepare.progress import PrepareProgress


def tokenizer(
    sources: Annotated[
        list[str],
        typer.Argument(help="Text to train on, as for headway data prepare."),
    ],
    vocab: Annotated[int, typer.Option(help="Number of tokens in its vocabulary.", min=300)],
    into: Annotated[str, typer.Option("--into", help="Folder to write it to, on this machine.")],
    masked: Annotated[
        bool,
        typer.Option("--masked", help="For masked models: with [CLS], [SEP], [MASK] and [PAD]."),
    ] = False,
    column: Annotated[str, typer.Option(help="Column with the text.")] = "text",
    template: Annotated[
        str | None, typer.Option(help='Text from several columns: "{question} {answer}".')
    ] = None,
    transform: Annotated[
        str | None, typer.Option(help="Your own function, module:function; see --code.")
    ] = None,
    code: Annotated[Path | None, typer.Option(help="Folder with your own code.")] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Read public buckets without credentials.")
    ] = False,
) -> None:
    """Train a tokenizer on text, to be shared by several sets."""
    from headway.cli.progress import MovingLine
    from headway.clock import SystemClock
    from headway.errors import BadInput, needs_train

    try:
        from headway.data.prepare.recipe import RecipeSettings
        from headway.data.prepare.set_tokenizer import train_tokenizer_into
    except ImportError as error:
        raise needs_train("headway data tokenizer", error) from None
    if "://" in into:
        raise BadInput(
            f"--into {into}: a tokenizer is loaded from a folder on this machine",
            "--into my-tokenizer; each set takes a copy with it",
        )
    if template is not None and transform is not None:
        raise BadInput("--template and --transform cannot be combined")
    with writes_folder(into, "--into"):
        line = MovingLine()
        try:
            made = train_tokenizer_into(
                sources,
                Path.cwd(),
                RecipeSettings(
                    layout="windows" if masked else "stream",
                    column=column,
                    template=template,
                    transform=transform,
                ),
                vocab,
                Store(into),
                lambda progress: line.show(_progress_text(progress)),
                SystemClock(),
                code=None if code is None else code.resolve(),
                anonymous=anonymous,
            )
        finally:
            line.close()
    say(f"trained a tokenizer of {made.vocab_size} tokens, in {into}")
    if made.vocab_size < vocab:
        warn(f"it has fewer than {vocab} tokens: the text is too short for more")
    read = {"--column": None if column == "text" else column, "--template": template}
    read |= {"--transform": transform, "--code": None if code is None else str(code)}
    options = [word for key, value in read.items() if value is not None for word in (key, value)]
    options += ["--anonymous"] if anonymous else []
    options += ["--windows", "128"] if masked else []
    words = [*sources, "--tokenizer", into, *options, "--into", "prepared/set"]
    hint(f"headway data prepare {shlex.join(words)}")


def _progress_text(progress: PrepareProgress) -> str:
    share = "" if progress.share is None else f" {progress.share:4.0%}"
    speed = progress.bytes / 1e6 / max(progress.seconds, 1e-3)
    return (
        f"training a tokenizer:{share}  {short_count(progress.documents)} documents  "
        f"{speed:.1f} MB/s"
    )
