"""headway init: a folder with a run file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.completion import presets
from headway.cli.output import print_table, say
from headway.cli.output_path import writes_folder

SCHEMA = "run.schema.json"
"""Beside the run file, and named by it: an address within the installed package would differ for
everybody who shares the folder."""
SCRIPT = "script"
"""In the place of a preset: a script, which has none."""
SCRIPT_KEYS = """\
command: [python, train.py]          # your script and its arguments; all files beside it travel
# resources: {accelerators: H100:8, nodes: 2..4}   # on a target: a process per device
# budget: {hours: 24}
"""


def init(
    preset: Annotated[
        str,
        typer.Argument(
            help="tiny, gpt2-small, llama2-7b, ... (see --list); or script, for your own.",
            autocompletion=presets,
        ),
    ] = "",
    folder: Annotated[Path | None, typer.Argument(help="A new or empty folder.")] = None,
    list_: Annotated[
        bool,
        typer.Option(
            "--list",
            help="List the presets with parameters, bytes of state, and what holds it.",
        ),
    ] = False,
) -> None:
    """Create a folder with a run file based on a preset, or with a training script."""
    from headway.errors import BadInput
    from headway.spec.load import near_preset, preset_names

    if list_:
        from headway.cli.preset_needs import preset_rows

        header = ("PRESET", "PARAMETERS", "STATE", "HELD BY")
        print_table(header, [*preset_rows(), (SCRIPT, "-", "-", "a training script of your own")])
        return
    if preset not in (*preset_names(), SCRIPT):
        near = near_preset(preset or "")
        raise BadInput(
            f"no preset is called {preset}" if preset else "name a preset",
            f"did you mean headway init {near}?"
            if near
            else f"presets: {', '.join(preset_names())}; or {SCRIPT}, for a training script",
        )
    if folder is None:
        raise BadInput("name the folder to create", f"headway init {preset} my-run")
    if folder.is_dir() and any(folder.iterdir()):
        raise BadInput(f"{folder} already exists and is not empty", "name a new folder")
    with writes_folder(folder, f"headway init {preset}"):
        _write(preset, folder)
    say(f"created {folder}" + (f" from preset {preset}" if preset != SCRIPT else ""))
    is_ready = preset in ("tiny", SCRIPT)
    say(f"next: cd {folder} && headway run" if is_ready else _next_with_data(folder))


def _write(preset: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.yaml").write_text(_run_file(preset, folder), "utf-8")
    (folder / SCHEMA).write_text(_resource("schema", SCHEMA), "utf-8")
    (folder / "README.md").write_text(_readme(preset), "utf-8")
    (folder / ".gitignore").write_text("prepared/\nruns/\n", "utf-8")
    if preset == "tiny":
        from headway.data.tiny_stories import write_text

        write_text(folder / "data")
    if preset == SCRIPT:
        text = _resource("script_example", "train.py.txt")
        (folder / "train.py").write_text(text, "utf-8")


def _run_file(preset: str, folder: Path) -> str:
    import re

    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:40].strip("-")
    text = f"""\
# yaml-language-server: $schema={SCHEMA}
# What to train. Every key: docs/reference/run-file.md; `headway check` summarises the run.
version: 1
name: {name or preset}
"""
    if preset == SCRIPT:
        return text + SCRIPT_KEYS
    text += f"extends: {preset}\n"
    if preset == "tiny":
        return text + "# Keys written here override the preset, for example: train_for: 500 steps\n"
    tokenizer = {"bert": "google-bert/bert-base-uncased", "llama2": "meta-llama/Llama-2-7b-hf"}
    hub_name = {
        "llama3": "meta-llama/Meta-Llama-3-8B",
        "qwen3": "Qwen/Qwen3-0.6B",
        **tokenizer,
    }.get(preset.split("-")[0], "gpt2")
    return (
        text
        + f"""\
data:
  train:
    sources: [data/*.jsonl]          # .txt or .jsonl: files, folders or globs
    tokenizer: {hub_name}   # a hub name, a folder, or {{train: {{vocab: 8192}}}}
  # validation: {{held-out: {{sources: [held-out/*.jsonl]}}}}
"""
    )


def _resource(folder: str, name: str) -> str:
    from importlib import resources

    return (resources.files("headway.spec") / folder / name).read_text("utf-8")


def _readme(preset: str) -> str:
    if preset == SCRIPT:
        return (
            "`headway run` starts `train.py` here, `headway run --nodes 2` as two processes; the "
            "same command resumes.\n"
            "`headway check` says what is wrong with `run.yaml`, and what holds for a script.\n"
            "`headway status` shows its steps, `headway logs -f` what it prints.\n"
        )
    where = "here" if preset == "tiny" else "here, once data/ holds your text"
    return (
        f"`headway check` validates and summarises `run.yaml`.\n"
        f"`headway run` trains {where}; Ctrl-C saves and stops, the same command resumes.\n"
        '`headway generate --prompt "Once"` and `headway export --into OUT` use what was trained.\n'
    )


def _next_with_data(folder: Path) -> str:
    return (
        f"next: put your text into {folder / 'data'} (.jsonl or .txt), then headway check {folder}"
    )
