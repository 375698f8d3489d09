"""A run of a model, a tokenizer and a dataset of the hub, and the hub moves on."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.state.ledger import verify_ledger
from headway.state.run_directory import RunDirectory
from support.commands import headway
from support.fake_hub import fake_hub
from support.hub_commits import first_commit

pytestmark = [
    pytest.mark.local,
    pytest.mark.timeout(600),
    pytest.mark.long("three starts; what each library reads is seen in tests/unit/cli"),
]

RUN = """\
version: 1
name: it
model: {from: team/small}
data:
  train: {sources: ["hub:team/corpus"], tokenizer: team/small}
  sequence_length: 16
batch: {global: 4, micro: 4}
train_for: 20 steps
optimizer: {lr: 1e-3}
precision: fp32
threads: 1
track: []
checkpoint: {every: 10 steps}
"""


def test_every_start_reads_what_the_first_one_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    with fake_hub() as hub:
        old = first_commit(hub, tmp_path, 0)

        def on_a_new_machine(number: int) -> None:
            for name, value in hub.environment(tmp_path / f"cache-{number}").items():
                monkeypatch.setenv(name, value)

        on_a_new_machine(0)
        said = headway("run", folder=tmp_path).stderr
        commit = old["models/team/small"][:12]
        assert f"team/small on the hub is at commit {commit}: this run keeps it" in said
        spec = RunDirectory(tmp_path / "runs" / "it").read_spec()
        assert spec.hub_commits == old

        new = first_commit(hub, tmp_path, 1)
        on_a_new_machine(1)
        hub.asked.clear()
        said = headway("run", "--extend", "--set", "train_for=40 steps", folder=tmp_path).stderr
        assert "on the hub is at commit" not in said
        assert "prepared train" not in said, "it has the set"
        directory = RunDirectory(tmp_path / "runs" / "it")
        assert directory.read_spec().hub_commits == old
        assert directory.read_spec().train_set == spec.train_set
        assert [line["step"] for line in directory.steps()] == list(range(1, 41))
        assert verify_ledger(directory.ledger.read()[0]).breach is None
        moved = [path for path in hub.asked if any(one in path for one in new.values())]
        assert moved == []

        said = headway("run", "--set", "name=other", folder=tmp_path).stderr
        assert f"team/small on the hub is at commit {new['models/team/small'][:12]}" in said
        other = RunDirectory(tmp_path / "runs" / "other").read_spec()
        assert other.hub_commits == new
        assert other.train_set != spec.train_set
