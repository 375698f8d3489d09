"""Screens of pages and terminals, as PNG files, with headless Chromium."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from support.waiting import wait_for

Scheme = Literal["light", "dark"]
SCHEMES = {"dark": 0, "light": 1}
"""As Chromium's settings have them."""
CHARACTER = (8.43, 18.7)
"""Width and height of a character in pixels, at 14 pixels a letter."""
SECONDS = 60.0
# DejaVu Sans Mono has no braille: that of DejaVu Sans is made as narrow.
PAGE = """<html><meta charset="utf-8"><style>body {{ margin: 0; background: {background} }}
@font-face {{ font-family: dots; src: local('DejaVu Sans'); unicode-range: U+2800-28FF;
  size-adjust: 82.2% }}
pre {{ margin: 8px; font: 14px/1.33 dots, 'DejaVu Sans Mono', monospace; color: {foreground} }}
{stylesheet}</style><pre>{code}</pre></html>"""


def page_screen(page: Path, picture: Path, size: tuple[int, int], scheme: Scheme = "light") -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    assert browser is not None, "pictures need Chromium"
    subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
            f"--window-size={size[0]},{size[1]}",
            f"--screenshot={picture}",
            page.as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=SECONDS,
    )


def terminal_screen(
    command: Sequence[str], folder: Path, picture: Path, size: tuple[int, int]
) -> None:
    """What a command shows in a terminal of so many columns and rows, once it has ended. It runs in
    tmux: the picture is what a terminal makes of it."""
    columns, rows = size
    session = f"headway-pictures-{picture.stem}"
    tmux = ["tmux", "-L", session]
    subprocess.run(
        [*tmux, "new-session", "-d", "-s", session, "-x", str(columns), "-y", str(rows), "sh"],
        check=True,
    )
    try:
        subprocess.run([*tmux, "set-option", "-g", "remain-on-exit", "on"], check=True)
        subprocess.run([*tmux, "respawn-pane", "-k", "-c", str(folder), *command], check=True)
        wait_for("its end", lambda: _tmux(tmux, "display", "-p", "#{pane_dead}") == "1", SECONDS)
        shown = _tmux(tmux, "capture-pane", "-e", "-p", "-S", "-")
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    _draw(shown, picture, size)


def _tmux(tmux: Sequence[str], *words: str) -> str:
    done = subprocess.run([*tmux, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip("\n")


def _draw(shown: str, picture: Path, size: tuple[int, int]) -> None:
    lines = [line for line in shown.split("\n") if not line.startswith("Pane is dead")]
    console = Console(record=True, width=size[0], file=StringIO(), highlight=False)
    console.print(Text.from_ansi("\n".join(lines).rstrip()), soft_wrap=True)
    html = console.export_html(theme=MONOKAI, code_format=PAGE, inline_styles=False)
    rows = len("\n".join(lines).rstrip().split("\n"))
    width, height = round(size[0] * CHARACTER[0]) + 20, round(rows * CHARACTER[1]) + 20
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch, "screen.html")
        page.write_text(html)
        page_screen(page, picture, (width, height))
