"""What the documentation tells people to type works: links, commands, target files."""

from __future__ import annotations

import re
import shlex
from itertools import dropwhile
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import typer
import yaml
from typer._click.exceptions import MissingParameter, UsageError

from headway.cli.app import app
from headway.spec.load import load_run, load_targets
from support.in_process import Headway

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
"""Also within a list."""
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
TARGET_NAME = re.compile(r"(lab|eks|gke)(-\w+)?")
COMPLETE = {"image", "storage", "pod"}
"""Keys of a target that runs can be launched on; others show a few keys of one."""
RUN = """\
version: 1
name: it
model: {type: gpt2, config: {n_layer: 2, vocab_size: 512}}
data: {train: "s3://data/wiki", sequence_length: 128}
batch: {global: 64, micro: 4}
"""


def blocks(page: Path, *kinds: str) -> list[str]:
    return [dedent(text) for kind, text in BLOCK.findall(page.read_text()) if kind in kinds]


# --- links


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    prose = BLOCK.sub("", page.read_text())
    plain = [re.sub(r"[^\w\- ]", "", title.lower()) for title in HEADING.findall(prose)]
    return {title.strip().replace(" ", "-") for title in plain}


@pytest.mark.trap(36)
def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for path, anchor in LINK.findall(BLOCK.sub("", page.read_text())):
            there = page.parent / path if path else page
            if not there.exists() or (anchor and anchor not in anchors(there)):
                broken.append(f"{page.relative_to(ROOT)}: {path}#{anchor}")
    assert not broken


# --- versions


FLOATING = re.compile(
    r"[\w/.-]+(:latest|@(latest|main|master|HEAD))\b|/(main|master)/[\w./-]+\.\w+"
    r"|revision[=:] ?[\"']?(main|master|latest)\b"
)
SHOWN = [
    ROOT / "README.md",
    *(ROOT / "docs").rglob("*.md"),
    *(path for folder in ("examples", "docker") for path in (ROOT / folder).rglob("*")),
    *(ROOT / ".github").rglob("*.yml"),
]


@pytest.mark.trap(37)
def test_no_page_image_or_example_names_a_version_that_moves() -> None:
    texts = {path: path.read_bytes().decode(errors="replace") for path in SHOWN if path.is_file()}
    assert len(texts) > 50
    found = {str(path): FLOATING.search(text) for path, text in texts.items()}
    assert {path: match[0] for path, match in found.items() if match} == {}


# --- commands


def typed_commands(page: Path) -> list[str]:
    """After a prompt, or in a block of commands; a line that ends with a backslash goes on."""
    found = []
    for kind, text in BLOCK.findall(page.read_text()):
        for line in text.replace("\\\n", " ").splitlines():
            if line.startswith("$ ") or kind == "sh":
                found += parts_of(line.strip().removeprefix("$ "))
    return found


def mentioned_commands(page: Path) -> list[str]:
    """In a sentence, where N is any number."""
    prose = BLOCK.sub("", page.read_text())
    found = re.findall(r"`(headway [a-z][^`\n]*)`", prose)
    return [part.replace(" N", " 1") for line in found for part in parts_of(line)]


def parts_of(line: str) -> list[str]:
    """Return the commands of Headway in a line of a shell."""
    words = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
    words.whitespace_split, words.commenters = True, "#"
    parts: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set("|&;>"):
            parts.append([])
        else:
            parts[-1].append(word)
    named = [[*dropwhile(lambda word: re.match(r"\w+=", word), part)] for part in parts]
    return [shlex.join(part) for part in named if part[:1] == ["headway"]]


def problem_of(line: str, is_whole: bool = True) -> str:
    """Return what headway would say to such a command line before it does anything.
    `is_whole`: False for one in a sentence, which may leave out what a command needs."""
    if "..." in line or line.startswith("headway help"):
        return ""
    words, command, above = shlex.split(line)[1:], typer.main.get_command(app), None
    try:
        while not {"-h", "--help", "--version"} & {*words}:
            context = command.make_context(command.name, words, parent=above)
            if not hasattr(command, "get_command"):
                break
            _, inner, words = command.resolve_command(
                context, [*context._protected_args, *context.args]
            )
            command, above = inner, context
    except UsageError as error:
        told = error.format_message()
        is_short = isinstance(error, MissingParameter) or "requires an argument" in told
        return "" if is_short and not is_whole else told or "a command is missing"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_are_understood(page: Path) -> None:
    wrong = {line: problem_of(line) for line in typed_commands(page)}
    wrong |= {line: problem_of(line, is_whole=False) for line in mentioned_commands(page)}
    assert not {line: words for line, words in wrong.items() if words}


def test_a_value_that_a_command_refuses_is_found() -> None:
    assert "valid integer" in problem_of("headway scale gpt2 --nodes 3..6")
    assert "No such option" in problem_of("headway status --nope")
    assert "No such command" in problem_of("headway verify gpt2")
    assert problem_of("headway scale", is_whole=False) == "" != problem_of("headway scale")


# --- target files


def target_files() -> list[Any]:
    """Blocks with the names of targets and their keys."""
    found = []
    for guide in GUIDES:
        for text in blocks(guide, "yaml"):
            content = next(yaml.safe_load_all(text))
            if all(TARGET_NAME.fullmatch(name) for name in content):
                found.append(pytest.param(text, id=f"{guide.stem}-{len(found)}"))
            else:
                assert "\n  kube:" not in text, "a target of a name that is not looked for here"
    return found


@pytest.mark.parametrize("text", target_files())
def test_target_files_are_valid(folder: Path, headway: Headway, text: str) -> None:
    (folder / "run.yaml").write_text(RUN)
    text = text.replace("sha256:...", "sha256:" + "0" * 64)
    (folder / "targets.yaml").write_text(text)
    for name, target in yaml.safe_load(text).items():
        assert load_targets(folder)[name]
        if not target.keys() >= COMPLETE:
            continue
        for command in (["check"], ["run", "--dry-run"]):
            said = headway(*command, "--on", name)
            assert said.exit_code == 0, said.err
        if "coordinator" in target.get("service_account", {}):
            assert headway("target", "rbac", name).exit_code == 0


# --- examples


EXAMPLES = [
    path for path in sorted((ROOT / "examples").rglob("*.yaml")) if "version:" in path.read_text()
]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_texts_of_the_examples_are_there(path: Path) -> None:
    data = load_run(path, []).run.data
    sets = [*([data.train] if data.train else []), *data.validation.values()]
    for source in (source for one in sets for source in one.sources or ()):
        is_elsewhere = source.startswith(("hub:", "claim:"))
        assert is_elsewhere or (path.parent / source).exists(), source
