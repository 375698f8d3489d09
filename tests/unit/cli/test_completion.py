"""Tab completes commands, runs of this folder, presets and keys, from local files alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.in_process import Headway

Complete = Callable[[str], list[str]]


@pytest.fixture
def complete(headway: Headway, monkeypatch: pytest.MonkeyPatch) -> Complete:
    def words(line: str) -> list[str]:
        monkeypatch.setenv("_HEADWAY_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        return headway().out.split()

    return words


def make_run(folder: Path, name: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "run.json").write_text("{}")


def test_commands_but_no_internal_ones(complete: Complete) -> None:
    assert complete("headway s") == ["status", "stop", "scale"]
    assert complete("headway coo") == []
    assert complete("headway data s") == ["show", "sample"]


def test_options(complete: Complete) -> None:
    assert "--extend" in complete("headway run --e")


def test_runs_of_this_folder(folder: Path, complete: Complete) -> None:
    for name in ("first", "second", "fifth"):
        make_run(folder / "runs", name)
    assert complete("headway status fi") == ["fifth", "first"]
    assert complete("headway delete first s") == ["second"]
    assert complete("headway generate sec") == ["second"]


def test_runs_are_looked_for_where_the_run_file_says(folder: Path, complete: Complete) -> None:
    (folder / "run.yaml").write_text("storage: elsewhere\n")
    make_run(folder / "elsewhere", "other")
    assert complete("headway status ") == ["other"]


def test_a_bucket_is_not_asked(folder: Path, complete: Complete) -> None:
    (folder / "run.yaml").write_text("storage: s3://bucket/runs\n")
    assert complete("headway status ") == []


def test_a_broken_run_file_does_not_matter(folder: Path, complete: Complete) -> None:
    (folder / "run.yaml").write_text("storage: [\n")
    make_run(folder / "runs", "first")
    assert complete("headway status ") == ["first"]


def test_presets(complete: Complete) -> None:
    assert complete("headway init gpt2-s") == ["gpt2-small"]


def test_plan_takes_a_run_or_a_preset(folder: Path, complete: Complete) -> None:
    make_run(folder / "runs", "gpt2-mine")
    assert complete("headway plan gpt2-m") == ["gpt2-mine", "gpt2-medium"]
    assert complete("headway plan scr") == []


def test_keys_for_set(complete: Complete) -> None:
    assert complete("headway run --set optimizer.l") == ["optimizer.lr="]
    assert "data.train.tokenizer.train.vocab=" in complete("headway check --set data.tr")


def test_it_loads_neither_torch_nor_a_client_of_kubernetes(folder: Path) -> None:
    code = (
        "import os, sys\n"
        "os.environ |= {'_HEADWAY_COMPLETE': 'complete_bash', 'COMP_CWORD': '2',\n"
        "               'COMP_WORDS': 'headway status '}\n"
        "sys.argv = ['headway']\n"
        "from headway.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "heavy = ('torch', 'numpy', 'fsspec', 'httpx', 'headway.kube', 'headway.spec.load')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
