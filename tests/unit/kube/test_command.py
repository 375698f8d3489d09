"""headway run --on TARGET --dry-run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.errors import Exit
from headway.kube.manifests import NOT_SHOWN

Headway = Callable[..., Any]
DRY = ("run", "--on", "lab", "--dry-run")


def test_yaml_and_json_are_the_same_objects(headway: Headway) -> None:
    shown = headway(*DRY)
    listed = headway(*DRY, "-o", "json")
    assert (shown.exit_code, listed.exit_code) == (0, 0)
    items = json.loads(listed.out)["items"]
    assert list(yaml.safe_load_all(shown.out)) == items
    assert headway(*DRY, "--output", "yaml").out == shown.out
    assert len(items) == 10


def test_nothing_is_written(headway: Headway, folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    assert headway(*DRY).exit_code == 0
    assert sorted(folder.rglob("*")) == before


def test_no_secret_and_nothing_of_the_environment_is_printed(
    headway: Headway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (folder / "targets.yaml").open("a") as targets:
        targets.write("  secret: mine\n")
    planted = {
        "HF_TOKEN": "hf_planted-value-1",
        "AWS_SECRET_ACCESS_KEY": "planted-value-2",
        "HEADWAY_KEY": "planted-value-3",
        "HTTPS_PROXY": "http://planted-value-4",
    }
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    shown = headway(*DRY, "--set", "secrets=[HF_TOKEN]")
    assert shown.exit_code == 0, shown.err
    assert "planted-value" not in shown.out + shown.err
    assert str(folder) not in shown.out
    (secret,) = (one for one in yaml.safe_load_all(shown.out) if one["kind"] == "Secret")
    assert secret["data"] == {"key": NOT_SHOWN}


def test_data_that_is_not_prepared_is_not_prepared_now(headway: Headway, folder: Path) -> None:
    (folder / "a.txt").write_text("some text\n")
    data = "data.train={sources: [a.txt], tokenizer: {train: {vocab: 300}}, hold_out: 1%}"
    shown = headway(*DRY, "--set", data)
    assert shown.exit_code == 0, shown.err
    assert '"train_set": "/headway/storage/sets/<digest of data.train>"' in shown.out
    assert (
        "data.train: its digest is known once it is prepared; until then it is shown as "
        "<digest of data.train>\n"
    ) in shown.err
    assert "<digest of data.validation.held_out>" in shown.err
    assert not (folder / "prepared").exists()


def test_what_would_be_brought_there_is_said(headway: Headway, folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "mine.py").write_text("x = 1\n")
    said = headway(*DRY, "--set", "code={path: src}").err
    assert said.startswith(f"code.path: {folder}/src is uploaded to /headway/storage/code/")


def test_without_a_way_to_the_cluster(
    headway: Headway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    said = headway("run", "--on", "lab")
    assert said.exit_code == Exit.BAD_INPUT
    assert said.err.startswith("error: cannot connect to a cluster: ")
    assert "hint: kubectl config view" in said.err


PLUGIN = """\
apiVersion: v1
kind: Config
current-context: lab
clusters: [{{name: lab, cluster: {{server: "http://127.0.0.1:1"}}}}]
users:
- name: me
  user: {{exec: {{apiVersion: client.authentication.k8s.io/v1beta1, command: {command}}}}}
contexts: [{{name: lab, context: {{cluster: lab, user: me, namespace: ml}}}}]
"""


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("no-such-plugin", "No such file or directory: 'no-such-plugin'"),
        ("/bin/false", "Exec /bin/false returned 1"),
    ],
)
def test_a_login_plugin_that_does_not_work_is_named(
    headway: Headway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, says: str
) -> None:
    (tmp_path / "plugin").write_text(PLUGIN.format(command=command))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "plugin"))
    said = headway("run", "--on", "lab")
    assert said.exit_code == Exit.BAD_INPUT
    assert said.err.startswith("error: the login in your kubeconfig failed: ")
    assert says in said.err
    assert said.err.endswith("\nhint: make this work first: kubectl get pods\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--dry-run",), "--dry-run needs --on"),
        (("-o", "yaml"), "--output needs --dry-run"),
        (("--on", "lab", "-o", "yaml"), "--output needs --dry-run"),
        (
            ("--on", "lap", "--dry-run"),
            "no target 'lap'\nhint: did you mean lab? known targets: lab",
        ),
        (("--on", "moon", "--dry-run"), "no target 'moon'\nhint: known targets: lab"),
    ],
)
def test_wrong_words(headway: Headway, arguments: tuple[str, ...], says: str) -> None:
    said = headway("run", *arguments)
    assert said.exit_code in (Exit.BAD_INPUT, Exit.NOT_FOUND)
    assert says in said.err


def test_without_any_targets(headway: Headway, folder: Path) -> None:
    (folder / "targets.yaml").unlink()
    said = headway(*DRY)
    assert said.exit_code == Exit.NOT_FOUND
    assert f"no target 'lab': neither {folder} nor" in said.err


def test_neither_torch_nor_a_client_of_kubernetes_is_loaded(folder: Path) -> None:
    code = (
        "import sys\n"
        "sys.argv = ['headway', 'run', '--on', 'lab', '--dry-run']\n"
        "from headway.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as ended:\n    assert not ended.code\n"
        "heavy = ('torch', 'transformers', 'numpy', 'lightkube')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stderr.strip() == "[]"
