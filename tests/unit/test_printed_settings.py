"""Each `--set` that a page prints has an effect: `headway check` says something else with it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from headway.spec.run_file import RunFile
from headway.spec.target_file import Target
from support.in_process import Headway, Said
from unit.test_guides import BLOCK, PAGES, ROOT, mentioned_commands, typed_commands

OF_A_RUN = {"run", "check", "plan"}
"""Commands whose --set is of the run file in the folder."""
ALONE = re.compile(r"`(--set [^`\n]+)`")
TO_FILL_IN = re.compile(r"=N\b|KEY=VALUE|\.\.\.|a\.b=c")
LARGE = """\
{name}:
  kube: {{namespace: ml}}
  image: registry/headway@sha256:{digest}
  storage: {{claim: team}}
  secret: tokens
  spot_label: {{spot: "true"}}
  prices: {{cpu: 1, A100-80GB: 20, A100-40GB: 10}}
  pod: {{resources: {{cpu: 90, memory: 1000Gi}}}}
"""


def settings_of(page: Path) -> list[list[str]]:
    """The words of commands with settings of a run file; a sentence may show settings alone."""
    alone = ALONE.findall(BLOCK.sub("", page.read_text()))
    typed = [*typed_commands(page), *mentioned_commands(page)]
    lines = dict.fromkeys([*typed, *(f"headway run {one}" for one in alone)])
    found = [shlex.split(line) for line in lines if "--set" in line and not TO_FILL_IN.search(line)]
    return [words for words in found if words[1] in OF_A_RUN and not is_of_target(words)]


def is_of_target(words: list[str]) -> bool:
    keys = {words[place + 1].partition("=")[0].split(".")[0] for place in places(words)}
    return keys <= Target.model_fields.keys() - RunFile.model_fields.keys()


def places(words: list[str]) -> list[int]:
    return [place for place, word in enumerate(words) if word == "--set"]


PRINTED = [
    pytest.param(page, words, id=f"{page.parent.name}-{page.stem}-{number}")
    for page in PAGES
    for number, words in enumerate(settings_of(page))
]


def test_they_are_found() -> None:
    assert len(PRINTED) > 15
    assert any("extends=llama2-70b" in words for _, words in (one.values for one in PRINTED))


@pytest.mark.parametrize(("page", "words"), PRINTED)
def test_each_setting_changes_what_check_says(
    headway: Headway, folder: Path, monkeypatch: pytest.MonkeyPatch, page: Path, words: list[str]
) -> None:
    if "examples" in page.parts:
        shutil.copytree(ROOT / "examples", folder / "examples")
        at = folder / page.parent.relative_to(ROOT)
    else:
        assert headway("init", "tiny", "my-run").exit_code == 0
        at = folder / "my-run"
    monkeypatch.chdir(at)
    monkeypatch.setenv("HF_TOKEN", "a token")
    vocabulary = {f"w{number}": number for number in range(512)}
    (at / "tokenizer").mkdir()
    (at / "tokenizer/tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    target = words[words.index("--on") + 1] if "--on" in words else "lab"
    (at / "targets.yaml").write_text(LARGE.format(name=target, digest="0" * 64))
    files = [word for word in words if word.endswith(".yaml")]
    if not files and not (at / "run.yaml").exists():  # a sentence, about any of its run files
        files = [min(path.name for path in at.glob("*.yaml") if path.name != "targets.yaml")]

    def check(settings: list[str]) -> Said:
        given = [part for one in settings for part in ("--set", one)]
        # An address, where the reader fills one in.
        given = [word.replace("STORAGE/", "s3://bucket/") for word in given]
        return headway("check", *files, "--on", target, "--json", *given)

    settings = [words[place + 1] for place in places(words)]
    with_all = check(settings)
    # No processor computes in fp16; tests/unit/test_tutorials.py has the machines of a tutorial.
    assert with_all.exit_code == 0 or "fp16 needs a GPU" in with_all.err, with_all.err
    for one in settings:
        without = check([other for other in settings if other != one])
        assert without != with_all, f"--set {one} changes nothing"
