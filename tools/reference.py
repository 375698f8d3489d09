"""`make generate`: reference pages and JSON Schemas from the code. `--check` fails on drift."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from headway.cli.preset_needs import SHOWN, preset_parameters
from headway.errors import Exit
from headway.plan.device_refusals import NODE_DEVICES, fewest_devices
from headway.plan.memory_need import COPY_BYTES, STATE_BYTES, state_bytes
from headway.spec.key_suggestions import fields_of, is_mapping_of_sections, section_of
from headway.spec.load import load_run, preset_names, preset_text
from headway.spec.run_file import RunFile
from headway.spec.section import Section
from headway.spec.target_file import Target, TargetFile
from tools.trap_page import PAGE, WrongTraps, trap_page

ROOT = Path(__file__).parents[1]
DOCS = "docs/reference"
SCHEMAS = "src/headway/spec/schema"
"""Within the package: `headway init` writes one beside the run file."""
NOTE = "<!-- Made from the code by `make generate`; edits here are lost. -->"


def main() -> int:
    _describe(Section)
    TargetFile.model_rebuild(force=True)
    try:
        traps = trap_page(ROOT, NOTE.replace("the code", "traps.toml and the markers of tests"))
    except WrongTraps as error:
        print(error)
        return Exit.CHECK_FAILED
    pages = {
        f"{DOCS}/run-file.md": _page("The run file", RunFile, _RUN_INTRODUCTION),
        f"{DOCS}/targets-file.md": _page("The target file", Target, _TARGET_INTRODUCTION),
        f"{DOCS}/presets.md": _presets(),
        f"{DOCS}/commands.md": _commands(),
        PAGE: traps,
        f"{SCHEMAS}/run.schema.json": _schema(RunFile),
        f"{SCHEMAS}/targets.schema.json": _schema(TargetFile),
    }
    stale = [name for name, text in pages.items() if _read(ROOT / name) != text]
    if "--check" in sys.argv:
        for name in stale:
            print(f"{name} is not what the code says: make generate")
        return Exit.CHECK_FAILED if stale else Exit.DONE
    for name in stale:
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(pages[name], "utf-8")
        print(f"wrote {name}")
    return Exit.DONE


def _describe(root: type[BaseModel]) -> None:
    """Gives every field below the docstring under it as its description. Only here: reading the
    source takes 0.2 s, and no command needs it."""
    texts = {section: _texts(section) for section in _below(root)}
    for section in sorted(texts, key=_place):
        for name, info in section.model_fields.items():
            found = (texts[base][name] for base in section.__mro__ if name in texts.get(base, ()))
            info.description = next(found, None)
        section.model_rebuild(force=True)  # after those that it is made of


def _below(root: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for section in root.__subclasses__():
        yield section
        yield from _below(section)


def _place(section: type[BaseModel]) -> tuple[str, int]:
    """Module and line: the parts of a section are defined before it."""
    return section.__module__, inspect.getsourcelines(section)[1]


def _texts(section: type[BaseModel]) -> dict[str, str]:
    """Docstrings of the fields of this class."""
    (found,) = ast.parse(dedent(inspect.getsource(section))).body
    assert isinstance(found, ast.ClassDef)
    texts = {}
    for field, under in pairwise(found.body):
        match field, under:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                texts[name] = inspect.cleandoc(text)
    return texts


def _read(path: Path) -> str | None:
    return path.read_text("utf-8") if path.is_file() else None


_RUN_INTRODUCTION = """\
`run.yaml` says what to train. Unknown keys are refused with file, line and column. A key can be set
for one start with `--set a.b=c`. Relative paths start at the folder of the file that is run.

`headway init` writes the [JSON Schema](../../src/headway/spec/schema/run.schema.json) of its keys
beside the run file, and as its first line `# yaml-language-server: $schema=run.schema.json`:
editors complete and check keys, offline and for everybody who shares the folder.
"""
_TARGET_INTRODUCTION = """\
`targets.yaml` says where runs can go: a mapping of names to the keys below. It is read beside the
run file, then in the user's config folder (`~/.config/headway`). `headway run --on NAME` runs there
([Your first cluster run](../guides/first-cluster-run.md)); with `--dry-run` it shows what would be
made ([Objects on Kubernetes](../concepts/kubernetes-objects.md)).
"""


_MEANT_FOR = f"""\
Each one says for which devices it is meant: the smallest number of them in a node (1, 2, 4 or 8)
that holds its state, and leaves a quarter of their memory for activations. State is weights,
gradients and optimizer state, counted exactly: {STATE_BYTES} bytes a parameter, divided by the
number of devices (`shard`); on one device {COPY_BYTES} more, for a copy of the weights in bf16.
Activations are not counted: a smaller `batch.micro` needs less. A distillation also holds the
weights of its teacher. More devices make a run faster.

These are counts. See [GPUs](../guides/gpus.md) and [status](../status.md).
"""


def _page(title: str, root: type[BaseModel], introduction: str) -> str:
    lines = [NOTE, f"# {title}", "", introduction]
    for heading, section in _sections(root, ""):
        lines += [f"## {heading or 'Top level'}", "", " ".join((section.__doc__ or "").split()), ""]
        lines += ["| key | value | default | what it does |", "|---|---|---|---|"]
        lines += [_row(section, key) for key in fields_of(section)]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _sections(root: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield prefix, root
    for key, (_, annotation) in fields_of(root).items():
        inner = section_of(annotation)
        if inner is not None:
            name = f"{key}.NAME" if is_mapping_of_sections(annotation) else key
            yield from _sections(inner, f"{prefix}.{name}" if prefix else name)


def _row(section: type[BaseModel], key: str) -> str:
    attribute, annotation = fields_of(section)[key]
    info = section.model_fields[attribute]
    text = " ".join((info.description or "").split())
    schema = section.model_json_schema(by_alias=True)["properties"][key]
    cells = (f"`{key}`", _value(schema, annotation), _default(info), text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _value(schema: dict[str, Any], annotation: Any) -> str:
    if section_of(annotation) is not None:
        return "mapping of names" if is_mapping_of_sections(annotation) else "section"
    if "examples" in schema and schema.get("description"):
        return ", ".join(f"`{_example(example)}`" for example in schema["examples"])
    if "anyOf" in schema:
        parts = [_value(part, None) for part in schema["anyOf"] if part.get("type") != "null"]
        return ", ".join(parts)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {_value(schema.get('items', {}), None)}"
    words = {"object": "mapping", "integer": "whole number", "boolean": "`true`, `false`"}
    kind = schema.get("type", "any")
    return words.get(kind, "text" if kind == "string" else str(kind))


def _example(value: Any) -> str:
    return f"[{', '.join(value)}]" if isinstance(value, list) else str(value)


def _default(info: Any) -> str:
    default = info.default
    if default is PydanticUndefined:
        return "required"
    if default is None or default in ({}, []):
        return ""
    if isinstance(default, BaseModel):
        return "its defaults"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, list | tuple):
        return f"`[{', '.join(str(item) for item in default)}]`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _presets() -> str:
    lines = [
        NOTE,
        "# Presets",
        "",
        "`extends: NAME` starts from one; `headway init NAME DIR` too.",
        "",
        _MEANT_FOR,
    ]
    for name in preset_names():
        lines += [f"## {name}", "", *meant_for(name), ""]
        lines += ["```yaml", preset_text(name).rstrip(), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def meant_for(preset: str) -> list[str]:
    """Devices that hold the state of a preset, and why."""
    run = load_run(preset).run
    parameters = preset_parameters(run)
    if run.precision == "fp32":
        megabytes = state_bytes(parameters, run.precision) / 1e6
        return [f"Meant for a CPU: {parameters:,} parameters take {megabytes:.0f} MB."]
    rows = [["devices of a node"], ["GiB of state on each"]]
    for device in SHOWN.values():
        number = fewest_devices(device, parameters, run.precision)
        share = state_bytes(parameters, run.precision, number or NODE_DEVICES[-1]) / 2**30
        rows[0].append("none" if number is None else str(number))
        rows[1].append(f"{share:.1f}" if number else f"{share:.1f} on each of {NODE_DEVICES[-1]}")
    header = ["meant for", *SHOWN]
    return [
        f"{parameters:,} parameters.",
        "",
        *(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)),
    ]


def _commands() -> str:
    """The help of every command."""
    import typer
    from typer.testing import CliRunner

    from headway.cli.app import app

    lines = [NOTE, "# Commands", "", _EXIT_CODES]
    group: Any = typer.main.get_command(app)
    names = [[]] + [
        [name, *inner]
        for name, command in group.commands.items()
        for inner in ([[]] + [[sub] for sub in getattr(command, "commands", {})])
    ]
    for name in names:
        text = CliRunner().invoke(app, [*name, "--help"], terminal_width=100).stdout
        lines += [f"## {' '.join(['headway', *name])}", "", "```text", text.strip(), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


_EXIT_CODES = """\
Data goes to stdout, words to stderr. Commands that print facts write nothing, and
take `--json`.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the run failed |
| 2 | bad input: a file, a flag or a value |
| 3 | not found |
| 4 | a check found a problem |
| 5 | still running |
| 6 | stopped as asked, and resumable |
| 130 | interrupted with Ctrl-C; a run on a target continues |
"""


def _schema(root: type[BaseModel]) -> str:
    schema = root.model_json_schema(by_alias=True)
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    sys.exit(main())
