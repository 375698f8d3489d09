"""The columns of a record: of what `check` and the preparation both complain, without NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any

from headway.errors import BadInput
from headway.spec.data_config import RecordConfig


def needed_columns(records: RecordConfig) -> tuple[str, ...]:
    """The columns that every record has to have."""
    if records.ids is not None:
        unmask = records.unmask
        masked = () if unmask is None else (unmask.positions, unmask.ids)
        return (records.ids, *filter(None, [records.mask]), *masked)
    if records.template is not None:
        return template_columns(records.template)
    return (records.messages or records.column,)


def template_columns(template: str) -> tuple[str, ...]:
    """The columns that a template names, without repetition."""
    try:
        fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise BadInput(f"template {template!r}: {error}", "write {{ and }} for braces") from None
    if not fields or "" in fields:
        raise BadInput(f"template {template!r} names no column", 'such as "{question} {answer}"')
    return tuple(dict.fromkeys(fields))


class BadRecord(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def template_pieces(text: str) -> list[tuple[str, str | None]]:
    """Literal texts, each with the column that follows it. `str.format` cannot be used: `{a.b}` and
    `{0}` would not name columns."""
    template_columns(text)  # refuses an invalid template
    pieces = list(Formatter().parse(text))
    for _, name, form, conversion in pieces:
        if form or conversion:
            raise BadInput(
                f"template {text!r}: columns cannot be formatted", f"write just {{{name}}}"
            )
    return [(literal, name) for literal, name, _, _ in pieces]


def named(value: Any) -> Any:
    """Wraps plain text as a record with one column."""
    return {"text": value} if isinstance(value, str) else value


def column_of(value: Any, name: str) -> Any:
    if not isinstance(value, Mapping) or name not in value:
        columns = ", ".join(map(str, value)) if isinstance(value, Mapping) else ""
        raise BadRecord("no column", f"no column `{name}`; there are: {columns or 'none'}")
    return value[name]


def text_of(value: Any, name: str) -> str:
    found = column_of(value, name)
    if not isinstance(found, str):
        raise BadRecord("not text", f"column `{name}` holds {kind_of(found)}, not text")
    return found


def kind_of(value: Any) -> str:
    return "nothing (null)" if value is None else type(value).__name__
