"""Runs the cells of a notebook one after the other, and shows the value of each as Jupyter would
ask for it. Jupyter itself, a kernel and its protocol are not part of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

KERNEL = """
import ast, json, re, subprocess, sys

names = {}
for source in json.load(sys.stdin):
    # As IPython does: a line that begins with ! is one for the shell, and its failure is shown.
    source = re.sub(r"^!(.*)$", lambda line: f"__shell__({line[1]!r})", source, flags=re.M)
    names["__shell__"] = lambda line: print(subprocess.run(
        line, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout)
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        html = getattr(value, "_repr_html_", None)
        print(html() if html else repr(value))
    print("end of cell", flush=True)
"""


def run_notebook(
    notebook: Path,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    seconds: float = 200,
) -> tuple[dict[str, str], str]:
    """Return the output of each cell, keyed by its source, and the stderr of all of them."""
    cells = json.loads(notebook.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell.get("outputs") for cell in cells), "committed without outputs"
    done = subprocess.run(
        [sys.executable, "-c", KERNEL],
        input=json.dumps(sources),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout.split("end of cell\n")
    return dict(zip(sources, shown, strict=False)), done.stderr
