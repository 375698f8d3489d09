"""The guide "Bring your data", its commands run as they stand in it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data.tiny_stories import stories
from support.commands import headway
from support.s3 import credentials, s3_server

pytestmark = [
    pytest.mark.local,
    pytest.mark.timeout(600),
    pytest.mark.long("a minute; each format has its unit tests"),
]

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "bring-your-data.md"
BLOCK = re.compile(r"^```(sh|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What the guide says you have."""
    with s3_server(tmp_path / "s3") as port:
        for name, value in credentials(port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        lines = [
            json.dumps({"id": number, "body": story})
            for number, story in enumerate(stories(150_000, seed=1))
        ]
        lines[3] = '{"id": 3, "body": '
        (tmp_path / "articles.jsonl").write_text("\n".join(lines))
        (tmp_path / "s3" / "bucket" / "code").mkdir()
        for number in range(2):
            table = pa.table({"content": list(stories(60_000, seed=number + 2))})
            pq.write_table(table, tmp_path / "s3" / "bucket" / "code" / f"{number}.parquet")
        yield tmp_path


def test_the_walks(folder: Path) -> None:
    ran = []
    for kind, content in BLOCK.findall(GUIDE.read_text()):
        if kind == "yaml":
            if content.startswith("# run.yaml\n"):
                (folder / "run.yaml").write_text(content)
            continue
        for command in content.strip().splitlines():
            words = shlex.split(command)
            assert words[0] == "headway"
            if "--on" in words:  # tests/cluster/test_data_on_target.py has such a command
                continue
            done = headway(*words[1:], folder=folder)
            ran.append((command, done.stdout + done.stderr))
    said = dict(ran)
    prepared = next(words for command, words in ran if "--hold-out" in command)
    assert "articles.jsonl:4: not JSON" in prepared
    assert (folder / "data" / "articles-held-out" / "manifest.json").is_file()
    assert "exact: 20 steps" in said["headway ledger verify mixed"]
    checked = said["headway check"]
    assert re.search(r"^mixture +articles 66\.7%, read \S+ times; code 33\.3%$", checked, re.M)
    for run in ("articles", "articles-in-one", "code", "mixed"):
        state = json.loads(headway("status", run, "--json", folder=folder).stdout)
        assert state["state"] == "finished", run
