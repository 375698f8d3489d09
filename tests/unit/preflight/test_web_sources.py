"""`check` refuses addresses that no web server could answer, where they are written."""

from __future__ import annotations

from pathlib import Path

from headway.preflight.preflight import preflight
from headway.spec.load import load_run

RUN = """\
version: 1
model: {type: gpt2}
batch: {global: 8}
data:
  sequence_length: 64
  train:
    tokenizer: gpt2
    sources:
      - https://example.org/a.jsonl.gz
      - https://example.org/*.jsonl
      - https://example.org/text
"""


def test_a_pattern_and_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    found = preflight(load_run(tmp_path / "run.yaml"))
    problems = [one for one in found.problems if "example.org" in one.problem]
    assert [one.position[1] for one in problems] == [10, 11]
    assert "web servers do not list their files" in problems[0].problem
    assert "unsupported suffix" in problems[1].problem
