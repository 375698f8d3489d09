"""Each part of examples/gpu-proof installs the wheel that it is given, proves, and ends with the
file to send, also if a check has failed. Nothing is installed here, and `headway` is not run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.prove.report import CheckResult, ProofReport
from support.notebook import run_notebook

KIT = Path(__file__).parents[2] / "examples" / "gpu-proof"
WHEEL = "https://example.com/a wheel.whl"
REPORT = ProofReport(
    headway="0.1.0",
    started="2026-11-19T14:00:00.000Z",
    seconds=200.0,
    device="Tesla T4",
    num_devices=1,
    is_rehearsal=False,
    tolerance=1e-3,
    machine={},
    checks=[CheckResult(name="a run beside its plan", outcome="failed", figure="out of memory")],
)
UVX = """\
#!/bin/sh
printf '%s\\n' "$@" > "$TYPED"
echo 'passed: one worker learns'
mkdir prove && cp "$REPORT" prove/prove.json
exit 4
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "uvx").write_text(UVX)
    (commands / "pip").write_text("#!/bin/sh\n")
    for command in commands.iterdir():
        command.chmod(0o755)
    (tmp_path / "report.json").write_text(REPORT.model_dump_json(indent=2) + "\n")
    (tmp_path / "sky_workdir").mkdir()
    return {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "HEADWAY_WHEEL": WHEEL,
        "TYPED": str(tmp_path / "typed"),
        "REPORT": str(tmp_path / "report.json"),
    }


def loaded(name: str) -> Any:
    return yaml.safe_load((KIT / name).read_text())


def run_script(script: str, folder: Path, environment: Mapping[str, str]) -> str:
    """As a Job, SkyPilot or a runner would: its output, and the exit code of a failed check."""
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 4, done
    return done.stdout


def require_wheel_installed(folder: Path) -> None:
    typed = (folder / "typed").read_text().splitlines()
    assert typed[typed.index("--from") + 1] == f"headway[train] @ {WHEEL}"
    assert typed[-2:] == ["headway", "prove"]


def command_in_readme(begins: str) -> str:
    lines = (KIT / "README.md").read_text().splitlines()
    return next(line for line in lines if line.startswith(begins))


def test_the_notebook_shows_what_is_in_its_file(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    shown, _ = run_notebook(KIT / "gpu-proof.ipynb", tmp_path, environment)
    require_wheel_installed(tmp_path)
    assert "failed: a run beside its plan: out of memory" in [*shown.values()][-1]


def test_the_log_of_the_job_ends_with_the_file(tmp_path: Path, environment: dict[str, str]) -> None:
    (container,) = loaded("job.yaml")["spec"]["template"]["spec"]["containers"]
    assert container["env"][0] == {"name": "HEADWAY_WHEEL", "value": "ADDRESS_OF_THE_WHEEL"}
    assert "s|ADDRESS_OF_THE_WHEEL|$HEADWAY_WHEEL|" in command_in_readme("sed ")
    assert container["command"][:2] == ["sh", "-c"]
    done = subprocess.run(
        container["command"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 4, done
    require_wheel_installed(tmp_path)
    cut = command_in_readme("kubectl logs job").partition("| ")[2].partition(" > ")[0]
    found = subprocess.run(cut, shell=True, input=done.stdout, capture_output=True, text=True)
    assert json.loads(found.stdout) == json.loads(REPORT.model_dump_json())


def test_the_machine_of_skypilot_has_the_file(tmp_path: Path, environment: dict[str, str]) -> None:
    task = loaded("skypilot.yaml")
    assert task["resources"]["accelerators"] == "T4:1"
    assert list(task["envs"]) == ["HEADWAY_WHEEL"]
    subprocess.run(["bash", "-e", "-c", task["setup"]], env=environment, check=True)
    run_script(task["run"], tmp_path / "sky_workdir", environment)
    require_wheel_installed(tmp_path)
    path = command_in_readme("scp ").split()[1].removeprefix("gpu-proof:")
    assert json.loads((tmp_path / path).read_text())["device"] == "Tesla T4"


def test_the_workflow_uploads_the_file(tmp_path: Path, environment: dict[str, str]) -> None:
    workflow = loaded("workflow.yml")
    assert "workflow_dispatch" in workflow[True], "YAML reads the key `on` as true"
    proof, upload = workflow["jobs"]["prove"]["steps"][-2:]
    assert proof["env"] == {"HEADWAY_WHEEL": "${{ inputs.wheel }}"}
    run_script(proof["run"], tmp_path, environment)
    require_wheel_installed(tmp_path)
    assert upload["if"] == "always()"
    assert (tmp_path / upload["with"]["path"]).is_file()
