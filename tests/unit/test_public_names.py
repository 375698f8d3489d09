"""What user code imports from `headway` itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headway
from headway import errors
from headway.train import batches

ROOT = Path(__file__).parents[2]


def test_names_are_those_that_training_uses() -> None:
    assert headway.Batch is batches.Batch
    assert headway.Loss is batches.Loss
    assert headway.IGNORED == batches.IGNORED == -100
    assert set(headway.__all__) <= set(dir(headway))
    assert headway.Loss.__doc__
    assert headway.BadInput is errors.BadInput
    assert headway.open.__name__ == "open_run"
    assert all(hasattr(headway, name) for name in headway.__all__)


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'headway' has no attribute 'Lost'"):
        headway.Lost  # type: ignore[attr-defined]  # noqa: B018


def test_torch_is_loaded_on_first_use_only() -> None:
    code = (
        "import sys, headway\n"
        "dir(headway), headway.__version__\n"
        "before = sorted({'torch', 'numpy', 'pydantic', 'typer'} & set(sys.modules))\n"
        "headway.Loss\n"
        "print(before, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] True"


def test_examples_and_guides_import_nothing_deeper() -> None:
    pages = [
        *ROOT.glob("examples/**/*.py"),
        *ROOT.glob("examples/**/*.ipynb"),
        *ROOT.glob("docs/guides/*.md"),
        ROOT / "README.md",
    ]
    deeper = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in pages
        for line in page.read_text().splitlines()
        if line.lstrip(' "').startswith(("from headway.", "import headway."))
    ]
    assert len(pages) > 5
    assert deeper == []
