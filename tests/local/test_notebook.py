"""The notebooks in examples/ run from top to bottom, in a fresh Python and an empty folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headway.prove.report import read_report
from support.notebook import run_notebook

pytestmark = pytest.mark.local

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.timeout(240)
@pytest.mark.long("the same calls are in unit/api")
def test_every_cell_runs_and_shows_its_value(tmp_path: Path) -> None:
    shown, said = run_notebook(EXAMPLES / "notebook" / "from-python.ipynb", tmp_path)
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
    assert "step 40/40" in said


UVX = """\
#!/bin/sh
while [ "$1" != headway ]; do shift; done
shift
exec {python} -m headway.cli.main "$@" --devices 1
"""


@pytest.mark.timeout(1200)
@pytest.mark.long("headway prove from end to end takes minutes")
def test_a_proof_in_a_notebook_ends_with_the_four_figures(tmp_path: Path) -> None:
    """`uvx` runs the Headway of this tree, on one worker: a T4 is one device, and an installation
    downloads gigabytes."""
    commands, folder = tmp_path / "bin", tmp_path / "notebook"
    for path in (commands, folder):
        path.mkdir()
    (commands / "pip").write_text("#!/bin/sh\n")
    (commands / "uvx").write_text(UVX.format(python=sys.executable))
    for command in commands.iterdir():
        command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}
    shown, _ = run_notebook(
        EXAMPLES / "gpu-proof" / "gpu-proof.ipynb", folder, environment, seconds=1100
    )
    print(shown)
    report = read_report(folder / "prove" / "prove.json")
    assert report.passed, report
    last = [*shown.values()][-1]
    for figure in ("tokens/s, bare", "killed after step", "seconds a step", "memory of a device"):
        assert figure in last
    numbers = {check.name.partition(":")[0]: check.numbers for check in report.checks}
    assert numbers["speed beside a bare loop"]["other_tokens_per_second"] > 0
    steps = numbers["seconds a step beside its plan"]
    assert ("planned_value" in steps, "measured" in steps) == (False, True), "no plan knows a CPU"
    memory = numbers["memory of a device beside its plan"]
    assert ("planned_value" in memory, "measured" in memory) == (True, False), "it has no GPU"
