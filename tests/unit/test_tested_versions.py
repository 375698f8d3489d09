"""The tested range of torch and transformers is the same wherever it is written, and versions
outside of it are refused or warned of."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from headway.cli.preflight import require_tested_versions
from headway.errors import BadInput
from headway.kube.bootstrap import release, satisfies
from headway.kube.wheels import shipped
from headway.spec.tested_versions import TESTED

ROOT = Path(__file__).parents[2]


def pinned(file: str) -> dict[str, str]:
    text = (ROOT / "requirements" / file).read_text()
    return dict(re.findall(r"^(torch|transformers)==(\S+)", text, re.MULTILINE))


def test_the_range_is_that_of_the_extra_and_of_pods() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["train"]
    brought = (ROOT / "requirements" / "wheels.in").read_text().splitlines()
    in_pods = {"torch": shipped()["image"]["torch"]}
    in_pods["transformers"] = shipped()["requires"]["transformers"]
    for name, asked in TESTED.items():
        assert f"{name}{asked}" in extra
        assert {*in_pods[name].split(",")} == {*asked.split(",")}
    assert f"transformers{TESTED['transformers']}" in brought


def test_both_ends_are_locked() -> None:
    """`make test-oldest` runs with the first, all other tiers with the last."""
    oldest, newest = pinned("oldest.txt"), pinned("all.txt")
    for name, asked in TESTED.items():
        lowest, beyond = (release(end.lstrip("<>=")) for end in asked.split(","))
        assert release(oldest[name])[:2] == lowest
        assert satisfies(newest[name], asked)
        assert release(newest[name])[:2] == (beyond[0], beyond[1] - 1)


def test_older_versions_are_refused_and_newer_ones_warned_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    inside = {"torch": "2.15.0+cu132", "transformers": "5.22.2"}
    require_tested_versions(inside.__getitem__)
    assert capsys.readouterr().err == ""
    newer = {**inside, "torch": "2.99.1+cpu"}
    require_tested_versions(newer.__getitem__)
    assert "torch 2.99.1+cpu is newer than those that Headway" in capsys.readouterr().err
    older = {**inside, "transformers": "5.0.0"}
    with pytest.raises(BadInput, match=r"transformers 5\.0\.0 is too old") as caught:
        require_tested_versions(older.__getitem__)
    assert caught.value.hint == f"uv pip install 'transformers{TESTED['transformers']}'"
