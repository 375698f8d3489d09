"""The notebook in examples/ runs from top to bottom, in a fresh Python and an empty folder.

Its cells are executed one after the other, and the value of each is shown as Jupyter would ask for
it. Jupyter itself, a kernel and its protocol are not part of the test.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.local,
    pytest.mark.timeout(240),
    pytest.mark.long("the same calls are in unit/api"),
]

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook" / "from-python.ipynb"
KERNEL = """
import ast, json, sys

names = {}
for source in json.load(sys.stdin):
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        html = getattr(value, "_repr_html_", None)
        print(html() if html else repr(value))
    print("end of cell", flush=True)
"""


def test_every_cell_runs_and_shows_its_value(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell.get("outputs") for cell in cells), "committed without outputs"
    done = subprocess.run(
        [sys.executable, "-c", KERNEL],
        input=json.dumps(sources),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    shown = dict(zip(sources, done.stdout.split("end of cell\n"), strict=False))
    of = {source.splitlines()[-1]: output for source, output in shown.items()}
    assert "<th>model</th>" in of["config.check()"]
    assert "finished" in of["run"]
    assert "40 of 40" in of["run"]
    assert "grad_norm" in of["metrics"]
    assert of["run.samples()"].count("<td>Once</td>") == 2
    assert of['run.generate("Once", max_tokens=20)'].count("Once") >= 1
    assert "<td>from-python</td><td>finished</td>" in of["headway.runs()"]
    assert "evaluated" in of['headway.open("from-python").events()']
    assert "hint: did you mean n_layer?" in of["    print(error)"]
    assert "step 40/40" in done.stderr
