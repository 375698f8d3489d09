"""Results that show themselves: as text at a prompt, as a table in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

MOST_SHOWN = 20
"""Newest rows that are shown."""


class Rows(list[dict[str, Any]]):
    """Records of a run, oldest first: a list of mappings."""

    def __repr__(self) -> str:
        return "\n".join([*map(repr, self[-MOST_SHOWN:]), self._count()])

    def _repr_html_(self) -> str:
        shown = self[-MOST_SHOWN:]
        keys = list(dict.fromkeys(key for row in shown for key in row))
        cells = ([str(row.get(key, "")) for key in keys] for row in shown)
        return html_table(keys, cells) + f"<p>{self._count()}</p>"

    def _count(self) -> str:
        newest = f", the newest {MOST_SHOWN} shown" if len(self) > MOST_SHOWN else ""
        return f"{len(self)} rows{newest}"


class GeneratedText(str):
    """Text, with its line breaks in a notebook."""

    def _repr_html_(self) -> str:
        return f'<div style="white-space: pre-wrap">{escape(self)}</div>'


def html_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def html_facts(facts: Iterable[tuple[str, str]]) -> str:
    """A line for each, its name first."""
    style = ' style="text-align: left"'
    rows = (f"<tr><th>{escape(k)}</th><td{style}>{escape(v)}</td></tr>" for k, v in facts)
    return f"<table>{''.join(rows)}</table>"
