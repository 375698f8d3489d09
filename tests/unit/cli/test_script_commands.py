"""Commands on a run that is a script: what they say of it, and which do not apply."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headway as from_python
from headway.clock import SystemClock
from headway.errors import BadInput
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, resolve
from headway.state.run_directory import RunDirectory
from support.in_process import Headway

RUN_FILE = """\
version: 1
name: it
command: [python, train.py, --out, $HEADWAY_OUTPUT]
resources: {nodes: 2..4}
"""


@pytest.fixture
def directory(folder: Path) -> RunDirectory:
    """A run that was started once."""
    (folder / "run.yaml").write_text(RUN_FILE)
    (folder / "train.py").write_text("print('hello')\n")
    directory = RunDirectory.create(folder / "runs" / "it", SystemClock())
    one = Hardware(cores=1, cuda_devices=0)
    nothing = {"train_set": "", "validation_sets": {}}
    directory.write_spec(resolve(load_run(), one, nodes=2, parameters=None, **nothing))
    return directory


@pytest.mark.usefixtures("directory")
def test_check_says_in_two_lines_what_holds_and_what_does_not(headway: Headway) -> None:
    said = headway("check")
    assert said.exit_code == 0
    lines = dict(line.split("  ", 1) for line in said.out.splitlines())
    assert lines["command"].strip() == "python train.py --out '$HEADWAY_OUTPUT'"
    assert "torchrun's variables" in lines["holds"]
    assert "ledger" in lines["does not hold"]
    known = json.loads(headway("check", "--json").out)
    assert known["command"][:2] == ["python", "train.py"]


@pytest.mark.usefixtures("directory")
def test_check_has_no_functions_to_try(headway: Headway) -> None:
    said = headway("check", "--code")
    assert said.exit_code == 2
    assert "--code runs functions of your own" in said.err


@pytest.mark.usefixtures("directory")
def test_the_same_from_python(headway: Headway) -> None:
    assert "does not hold" in repr(from_python.load().check())
    with pytest.raises(BadInput, match="generate does not apply to it"):
        from_python.open("it").generate("Once")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["ledger", "verify"], "a script reads its own"),
        (["export"], "runs/it/output"),
        (["generate", "--prompt", "Once"], "does not know its model"),
        (["fork", "it", "other"], "headway run --set name=other"),
        (["tensorboard"], "tensorboard --logdir "),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
@pytest.mark.usefixtures("directory")
def test_commands_that_need_a_model_say_why_they_do_not_apply(
    headway: Headway, arguments: list[str], why: str
) -> None:
    said = headway(*arguments)
    assert said.exit_code == 2
    assert "does not apply to it, which runs a script" in said.err
    assert why in said.err


@pytest.mark.usefixtures("directory")
def test_a_script_is_refused_as_long_as_it_cannot_run(headway: Headway) -> None:
    said = headway("run")
    assert said.exit_code == 2
    assert "run.yaml:3:1: `command` is not supported yet" in said.err
