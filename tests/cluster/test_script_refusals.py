"""What a script lacks on a target is named by the command that launches it, and nothing is left."""

from __future__ import annotations

import pytest

from support.lab import Lab
from support.stolen_time import Stopwatch

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.long("three launches that are refused, of 20 s each"),
]

LIMIT_SECONDS = 30.0
"""From the start of the command; pods that must start first have the time of that as well."""
POD_SECONDS = 30.0


def refusal(lab: Lab, command: str, more: str = "", limit: float = LIMIT_SECONDS) -> str:
    (lab.folder / "run.yaml").write_text(f"version: 1\nname: it\ncommand: {command}\n{more}")
    (lab.folder / "train.py").write_text("import no_such_package\n")
    watch = Stopwatch()
    said = lab.headway("run", "--on", "lab", expect=None).stderr
    print(f"{watch.seconds:.1f} s: {said}")
    assert watch.seconds < limit, said
    assert not lab.headway("list", "--on", "lab").stdout, "its objects are deleted"
    return said


def test_a_script_that_is_not_in_the_code_folder(lab: Lab) -> None:
    assert "there is no file lost.py" in refusal(lab, "[python, lost.py]")


def test_a_secret_that_is_not_there(lab: Lab) -> None:
    secrets = "secrets: [MY_TOKEN]\n"
    assert "the run needs MY_TOKEN" in refusal(lab, "[python, train.py]", secrets)
    lab.change_target(secret="mine")
    said = refusal(lab, "[python, train.py]", secrets, LIMIT_SECONDS + POD_SECONDS)
    assert 'secret "mine" not found' in said
    lab.make_secret("mine", {"OTHER": "x"})
    said = refusal(lab, "[python, train.py]", secrets, LIMIT_SECONDS + POD_SECONDS)
    assert "MY_TOKEN" in said


def test_a_program_that_is_not_in_the_image(lab: Lab) -> None:
    said = refusal(lab, "[no-such-program]", limit=LIMIT_SECONDS + POD_SECONDS)
    assert "no-such-program" in said
    assert "No such file or directory" in said
