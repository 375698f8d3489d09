"""headway export: a trained model in the HF format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import OnOption, RunStepArgument, TrustCodeOption
from headway.cli.output import say, warn
from headway.cli.output_path import writes_folder


def export(
    run: RunStepArgument = None,
    into: Annotated[
        Path | None, typer.Option("--into", help="A new folder. Default: ./NAME-step-N.")
    ] = None,
    on: OnOption = None,
    trust_code: TrustCodeOption = False,
) -> None:
    """Write a trained model and its tokenizer in the Hugging Face format."""
    from headway.cli.script_refusal import refuse_script
    from headway.cli.target_run import directory_of
    from headway.cli.trust import require_trusted_model
    from headway.errors import needs_train
    from headway.state.checkpoints import steps_saved
    from headway.state.find_run import split_step

    reference, step = split_step(run) if run is not None else (None, None)
    directory = directory_of(reference, on, Path.cwd())
    refuse_script(
        directory,
        "export",
        "its model is in the format in which the script saves it",
        "what the script has saved is in OUTPUT",
    )
    require_trusted_model(directory, "export", trust_code)
    try:
        from headway.train import export as exporting
    except ImportError as error:
        raise needs_train("headway export", error) from None
    with writes_folder(into or Path(), "--into"):
        at_step, into = exporting.export(directory, step, into)
    newest = steps_saved(directory)[-1]
    if step is None and at_step != newest:
        warn(f"the checkpoint of step {newest} is damaged; exporting the newest good one")
    say(f"wrote step {at_step} of {directory.name} to {into}")
    kind = directory.read_spec().run.objective.type
    name = "AutoModelForMaskedLM" if kind == "masked" else "AutoModelForCausalLM"
    say(f'next: transformers.{name}.from_pretrained("{into}")')
