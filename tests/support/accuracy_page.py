"""docs/concepts/plan-accuracy.md: how near plan comes, in sections that programs write."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "plan-accuracy.md"


def written_section(name: str) -> str:
    """What the page has between the marks of a section."""
    begin, end = _marks(name)
    return PAGE.read_text("utf-8").partition(begin)[2].partition(end)[0].strip()


def write_section(name: str, content: str) -> None:
    begin, end = _marks(name)
    text = PAGE.read_text("utf-8")
    before, found, rest = text.partition(begin)
    assert found, f"{PAGE} has no section {name}"
    after = rest.partition(end)[2]
    PAGE.write_text(f"{before}{begin}\n{content.strip()}\n{end}{after}")


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- begin {name} -->", f"<!-- end {name} -->"
