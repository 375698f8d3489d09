"""A failure in the user's code is shown with the user's frames: of the code folder and of packages
that came with it, not Headway's, torch's or Python's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from headway.launch.hardware import this_machine
from headway.spec.load import load_run
from headway.spec.resolve import Resolved, resolve
from headway.train.evaluate import Evaluator
from headway.train.own_code_error import own_code_error

RUN = """\
version: 1
name: it
model: {call: "mine_failing:build", config: {}}
data: {train: prepared, sequence_length: 8}
batch: {global: 4}
code: {path: src}
"""
MINE = """\
from company_models import layer

def build():
    return layer(3)

def leave():
    raise SystemExit(3)
"""
PACKAGE = """\
import torch

def layer(width):
    return torch.nn.Embedding(width, 2)(torch.tensor([7]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "mine_failing.py").write_text(MINE)
    package = tmp_path / "packages" / "company_models"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE)
    for path in (tmp_path / "src", tmp_path / "packages"):
        monkeypatch.syspath_prepend(path)
    yield tmp_path
    for name in ("mine_failing", "company_models"):
        sys.modules.pop(name, None)


def resolved(folder: Path, packages: bool = True) -> Resolved:
    made = resolve(
        load_run(folder),
        this_machine(),
        nodes=1,
        parameters=None,
        train_set="prepared",
        validation_sets={},
    )
    return made.model_copy(update={"packages": str(folder / "packages") if packages else None})


def raised(work: Callable[[], object]) -> BaseException:
    try:
        work()
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def build() -> Callable[[], object]:
    return importlib.import_module("mine_failing").build


def test_frames_of_the_folder_and_of_its_packages(folder: Path) -> None:
    shown = own_code_error(raised(build()), resolved(folder), step=3, vocabulary=512)
    assert shown is not None
    assert shown.message.splitlines() == [
        "your code failed in step 3: IndexError: index out of range in self",
        "  mine_failing.py:4 in build: return layer(3)",
        "  company_models/__init__.py:4 in layer: "
        "return torch.nn.Embedding(width, 2)(torch.tensor([7]))",
    ]
    assert shown.hint == (
        "an embedding may be too small: token ids go up to 511, positions to 7; "
        "its size is in model.config"
    )


def test_a_package_of_the_image_that_the_run_file_names(folder: Path) -> None:
    """Without a code folder."""
    named = RUN.replace("mine_failing:build", "company_models:layer").replace("code:", "# ")
    (folder / "run.yaml").write_text(named)
    shown = own_code_error(raised(build()), resolved(folder, packages=False), step=None)
    assert shown is not None
    first, *frames = shown.message.splitlines()
    assert first.startswith("your code failed while the run was set up: IndexError")
    assert [frame.split(" in ")[0] for frame in frames] == ["  company_models/__init__.py:4"]


def test_code_that_exits(folder: Path) -> None:
    leave = importlib.import_module("mine_failing").leave
    shown = own_code_error(raised(leave), resolved(folder), step=1)
    assert shown is not None
    assert shown.message.splitlines()[0] == "your code failed in step 1: SystemExit: 3"


def test_an_error_of_ours_is_not_the_users(folder: Path) -> None:
    model = nn.Linear(2, 2)
    ours = raised(lambda: Evaluator.run(None, model, None, None))  # type: ignore[arg-type]
    assert own_code_error(ours, resolved(folder), step=1) is None
    assert own_code_error(raised(lambda: torch.ones(2) @ model), resolved(folder), step=1) is None
