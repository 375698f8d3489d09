"""headway generate: text from a trained model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import OnOption, RunStepArgument, TrustCodeOption


def generate(
    run: RunStepArgument = None,
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = "",
    max_tokens: Annotated[int, typer.Option(help="Maximum number of new tokens.", min=1)] = 100,
    temperature: Annotated[
        float, typer.Option(help="0 always takes the most likely token.", min=0)
    ] = 0.8,
    top_k: Annotated[
        int, typer.Option(help="Sample from this many most likely tokens.", min=1)
    ] = 50,
    seed: Annotated[int, typer.Option(help="Random seed: the same seed gives the same text.")] = 0,
    on: OnOption = None,
    trust_code: TrustCodeOption = False,
) -> None:
    """Continue a prompt with a trained model, on a GPU of this machine or its CPU."""
    from headway.cli.script_refusal import refuse_generate
    from headway.cli.target_run import directory_of
    from headway.cli.trust import require_trusted_model
    from headway.errors import needs_train
    from headway.state.find_run import split_step

    reference, step = split_step(run) if run is not None else (None, None)
    directory = directory_of(reference, on, Path.cwd())
    refuse_generate(directory)
    require_trusted_model(directory, "generate", trust_code)
    try:
        from headway.train import generate as generation
    except ImportError as error:
        raise needs_train("headway generate", error) from None
    for piece in generation.generate(
        directory,
        step,
        prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
    ):
        sys.stdout.write(piece)
        sys.stdout.flush()
    print()
