"""The commands of the table, as the library of the command line wants them.

A command's module is imported when it is called, so completion stays fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from headway.cli.command_table import COMMANDS, INTERNAL, CommandEntry, help_text


class ExampleCommand(TyperCommand):
    """A command whose epilog is its examples, one on each line."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class CommandGroup(TyperGroup):
    """The commands of the table, listed in their groups."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": None})
        self.commands: Any = _Imported({entry.name: entry for entry in COMMANDS})

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(f"{help_text()}\n")

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        from typer._click.shell_completion import CompletionItem

        names = [
            CompletionItem(entry.name, help=entry.summary)
            for entry in COMMANDS
            if entry.group != INTERNAL and entry.name.startswith(incomplete)
        ]
        return names or super(TyperGroup, self).shell_complete(ctx, incomplete)


class _Imported(Mapping[str, Any]):
    """Commands by name, each imported when it is asked for."""

    def __init__(self, entries: Mapping[str, CommandEntry]) -> None:
        self._entries = entries

    def __getitem__(self, name: str) -> Any:
        return _command(self._entries[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _command(entry: CommandEntry) -> Any:
    module, _, name = entry.code.partition(":")
    found = getattr(import_module(f"headway.cli.{module}"), name)
    if isinstance(found, typer.Typer):
        group = typer.main.get_command(found)
        group.name = entry.name
        return group
    app = plain_app()
    app.command(
        entry.name,
        cls=ExampleCommand,
        epilog="\n".join(entry.examples),
        hidden=entry.group == INTERNAL,
    )(found)
    return typer.main.get_command(app)


def plain_app(**settings: Any) -> typer.Typer:
    """Its help is plain: readable in any terminal, and 150 ms sooner."""
    return typer.Typer(
        **{"add_completion": False, **settings},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
