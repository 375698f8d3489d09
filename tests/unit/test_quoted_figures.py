"""Each figure that README or a concept page quotes is in a result that its section links, or it is
named here: a setting of the code, or somebody else's."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BY_PROGRAMS = {"plan-accuracy"}
"""Written by programs, and compared with what they print by tests of their own."""
PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted((ROOT / "docs" / "concepts").glob("*.md"))
        if page.stem not in BY_PROGRAMS
    ),
]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
RESULT = re.compile(r"\]\(([^)#]*bench/results/[^)#]*)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
UNITS = "s|ms|h|min|minutes|hours|days|%|GB|GiB|MB|MiB|KB|TB|PB|requests/s|tokens/s"
FIGURE = re.compile(rf"(?<![\w.#/-])\$?(\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)( ?(?:{UNITS}))?(?![\w/])")
NOT_MEASURED = {
    "no-sample-is-lost": {"20": "headway.state.heartbeat:EACH_SECONDS"},
    "README": {"0.1": "the version", "3.11": "of Python"},
    "kubernetes-objects": {
        **dict.fromkeys(("1.30", "1.31", "1.33", "1.34"), "versions of Kubernetes"),
        "15": "minutes: default of scarcity.suspend_after",
        "10": "seconds between two marks of a launch: headway.launch.launch_mark",
        "60": "seconds without one: headway.launch.launch_mark",
        "512": "MiB: default of coordinator.resources",
    },
    "lost-machines": {
        "1.5": "headway.member.coordinator.rules:Rules.suspected_seconds",
        "3": "seconds with 64 workers: docs/decisions.md",
        "5": "headway.member.coordinator.rules:Rules.silence_seconds",
        "15": "minutes: headway.member.coordinator.rules:FIRST_STEP_SECONDS",
        "20": "headway.train.hang_rule:MOST_STEPS",
        **dict.fromkeys(("20%", "46%", "3066"), "of spot-traces, which the page links"),
        "54": "days of Llama 3's training",
        "8.9": "GB/s of headway.plan.save_interval: 1.06 GB in 0.12 s",
        "30": "headway.member.coordinator.rules:Rules.enter_seconds",
    },
    "under-faults": {
        "41": "MB: 3.4M parameters of 12 bytes",
        "5": "of torchft's example and torchrun's defaults",
        "2": "see its scripts",
    },
    "one-step": {"0.1": "a dropout"},
}
"""By page: numbers, and what they are. After a colon: where the code has them."""


def result_of(path: Path, anchor: str) -> str:
    """Return the part below a heading, or all of a file without an anchor."""
    text = path.read_text()
    if not anchor:
        return text
    for heading in HEADING.finditer(text):
        plain = re.sub(r"[^\w\- ]", "", heading[1].lower()).strip().replace(" ", "-")
        if plain == anchor:
            return text[heading.start() :].split("\n## ")[0]
    raise AssertionError(f"{path.name} has no heading #{anchor}")


def figures(section: str) -> set[str]:
    """Return those with a unit or a decimal point; of links only the words."""
    prose = re.sub(r"\]\([^)]*\)", "]", BLOCK.sub("", section))
    found = {(number, unit.strip()) for number, unit in FIGURE.findall(prose)}
    return {
        number.replace(",", "") + ("%" if unit == "%" else "")
        for number, unit in found
        if unit or "." in number
    }


def is_among(figure: str, numbers: set[float]) -> bool:
    """Return whether a result rounds to it; a share also to percent."""
    value = float(figure.rstrip("%"))
    half = 0.501 * 10.0 ** -len(figure.rstrip("%").partition(".")[2])
    factors = (1, 100) if figure.endswith("%") else (1,)
    return any(abs(factor * one - value) <= half for factor in factors for one in numbers)


def result_numbers(page: Path, section: str) -> set[float]:
    texts = [result_of(page.parent / path, anchor) for path, anchor in RESULT.findall(section)]
    found = {number for text in texts for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text)}
    return {float(number.replace(",", "")) for number in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_figures_are_in_the_results_that_their_section_links(page: Path) -> None:
    known, missing = NOT_MEASURED.get(page.stem, {}), {}
    text = page.read_text()
    # At scale has its results in its head.
    for section in [text] if page.stem == "at-scale" else re.split(r"(?m)^## ", text):
        numbers = result_numbers(page, section)
        left = [one for one in figures(section) if one not in known and not is_among(one, numbers)]
        if left:
            missing[section.splitlines()[0]] = sorted(left)
    assert not missing


def test_settings_are_those_of_the_code() -> None:
    for number, source in NOT_MEASURED["lost-machines"].items():
        where = re.search(r"([\w.]+):([\w.]+)$", source)
        if where is None:
            continue
        value: object = import_module(where[1])
        for name in where[2].split("."):
            value = getattr(value, name)
        assert isinstance(value, int | float)
        assert float(number) in (value, value / 60), source
