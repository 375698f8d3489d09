"""headway data: text into token shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.output import say

app = typer.Typer(help="Prepare data for training.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command("prepare")
def prepare(
    sources: Annotated[list[str], typer.Argument(help="Files, folders or globs: .txt, .jsonl.")],
    into: Annotated[Path, typer.Option("--into", help="Folder of the prepared set: a new one.")],
    tokenizer: Annotated[
        str | None, typer.Option(help="A hub name, or a folder with tokenizer.json.")
    ] = None,
    train_vocab: Annotated[
        int | None, typer.Option(help="Train a tokenizer of this size on the text itself.", min=300)
    ] = None,
    column: Annotated[str, typer.Option(help="jsonl: the field that holds the text.")] = "text",
    windows: Annotated[
        int | None,
        typer.Option(
            help="For masked models: windows of so many tokens, as sequence_length.", min=3
        ),
    ] = None,
) -> None:
    """Turn text into a prepared set that a run file can name as data.train."""
    from headway.cli.progress import PrepareProgress
    from headway.clock import SystemClock
    from headway.errors import BadInput, needs_train

    try:
        from headway.data import prepare as preparing
        from headway.data.sources import find_files
    except ImportError as error:
        raise needs_train("headway data prepare", error) from None
    if (tokenizer is None) == (train_vocab is None):
        raise BadInput("give exactly one of --tokenizer and --train-vocab", "--tokenizer gpt2")
    files = find_files(sources, Path.cwd())
    with PrepareProgress(into.name, sum(file.stat().st_size for file in files)) as progress:
        manifest = preparing.prepare(
            sources,
            column,
            preparing.TokenizerSource(load=tokenizer, train_vocab=train_vocab),
            into,
            Path.cwd(),
            "stream" if windows is None else "windows",
            windows,
            progress.show,
            SystemClock(),
        )
        progress.finished(manifest.num_documents, manifest.num_tokens, into)
    say(f"next: data: {{train: {into}}} in the run file")
