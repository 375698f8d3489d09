"""headway data: prepares text for training, and inspects it."""

from __future__ import annotations

import typer

from headway.cli.data.join import join
from headway.cli.data.mix import mix
from headway.cli.data.prepare import prepare
from headway.cli.data.sample import sample
from headway.cli.data.show import show
from headway.cli.data.tokenizer import tokenizer
from headway.cli.data.verify import verify

app = typer.Typer(help="Prepare data for training, and inspect it.", no_args_is_help=True)

for command in (prepare, join, mix, tokenizer, show, sample, verify):
    app.command()(command)
