"""A run reads the same commits of the hub from its first start to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from headway.cli.hub_pins import forget_first_start, with_hub_commits
from headway.data import hub_commits
from headway.data.hub_commits import HubNotAsked
from headway.errors import BadInput, SpecError
from headway.spec.hub_names import HubKind
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, Resolved, resolve
from support import launchable
from support.fake_hub import fake_hub
from support.fake_kube import FakeKube, fake_kube
from support.hub_commits import TEXTS, two_commits
from support.in_process import Headway
from support.token_sets import write_set

RUN = """\
version: 1
name: it
model: {from: team/small}
data:
  train: {sources: ["hub:team/corpus"], tokenizer: team/small}
  sequence_length: 32
batch: {global: 4}
"""
OLD, NEW = "1a" * 20, "2b" * 20


class Hub:
    """Where each name is at one commit."""

    def __init__(self, commit: str) -> None:
        self.commit = commit
        self.asked: list[str] = []

    def __call__(self, kind: HubKind, name: str, revision: str | None) -> str:
        self.asked.append(f"{kind}/{name}@{revision}")
        return self.commit


def away(kind: HubKind, name: str, revision: str | None) -> str:
    raise HubNotAsked("no network")


@pytest.fixture
def started(folder: Path) -> Callable[..., Resolved]:
    """The run as it is started: with these answers of the hub, after that start."""
    (folder / "run.yaml").write_text(RUN)

    def start(  # type: ignore[no-untyped-def]
        ask: Callable[..., str],
        before: Resolved | None = None,
        *,
        on: str | None = None,
        is_interrupted: bool = False,
    ):
        loaded = with_hub_commits(load_run(), lambda: before, on, ask)
        if not is_interrupted:
            forget_first_start(loaded)
        return resolve(
            loaded,
            Hardware(cores=4, cuda_devices=0),
            nodes=1,
            parameters=None,
            train_set="train",
            validation_sets={},
        )

    return start


def test_a_resume_keeps_the_commits_after_the_branch_has_moved(
    started: Callable[..., Resolved], capsys: pytest.CaptureFixture[str]
) -> None:
    hub = Hub(OLD)
    first = started(hub)
    assert first.hub_commits == {"models/team/small": OLD, "datasets/team/corpus": OLD}
    assert hub.asked == ["models/team/small@None", "datasets/team/corpus@None"], "each once"
    assert "team/small on the hub is at commit 1a1a1a1a1a1a: this run keeps it" in (
        capsys.readouterr().err
    )
    moved = Hub(NEW)
    assert started(moved, first).hub_commits == first.hub_commits
    assert moved.asked == []
    assert started(moved).hub_commits != first.hub_commits, "another run reads the newest"


def test_a_first_start_that_was_interrupted_goes_on_with_its_commits(
    started: Callable[..., Resolved], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a dataset that has moved meanwhile would be prepared from its beginning."""
    first = started(Hub(OLD), is_interrupted=True)
    capsys.readouterr()
    moved = Hub(NEW)
    again = started(moved, is_interrupted=True)
    assert again.hub_commits == first.hub_commits
    assert moved.asked == []
    said = capsys.readouterr().err
    assert "team/corpus on the hub: commit 1a1a1a1a1a1a, as when the first start of this" in said
    note = folder / "runs/it.commits.json"
    assert f"for the newest, remove {note}" in said
    tagged = RUN.replace("hub:team/corpus", "hub:team/corpus?revision=v2")
    (folder / "run.yaml").write_text(tagged)
    commits = started(moved, is_interrupted=True).hub_commits
    assert commits == {"models/team/small": OLD, "datasets/team/corpus@v2": NEW}
    (folder / "run.yaml").write_text(RUN)
    note.write_text("half a fi")
    assert set((started(moved).hub_commits or {}).values()) == {NEW}
    assert not note.exists(), "the run is there"


def test_what_is_added_later_is_asked_for_then(
    started: Callable[..., Resolved], folder: Path
) -> None:
    first = started(Hub(OLD))
    validation = '  validation: {news: {sources: ["hub:team/news"]}}\n'
    (folder / "run.yaml").write_text(RUN.replace("  sequence", f"{validation}  sequence"))
    commits = started(Hub(NEW), first).hub_commits
    assert commits == {**(first.hub_commits or {}), "datasets/team/news": NEW}


def test_a_run_that_was_not_fixed_at_its_start_stays_as_it_is(
    started: Callable[..., Resolved], capsys: pytest.CaptureFixture[str]
) -> None:
    first = started(away)
    assert first.hub_commits is None
    assert capsys.readouterr().err == "", "here, what is in the cache is read"
    assert started(Hub(NEW), first).hub_commits is None
    started(away, on="lab")
    assert (
        "run.yaml:3:1: team/small on the hub is not fixed to a commit (no network): pods and later "
        "starts read what it is then\nhint: revision: COMMIT beside it"
    ) in capsys.readouterr().err


def test_a_commit_in_the_run_file_needs_no_hub(
    started: Callable[..., Resolved], folder: Path
) -> None:
    fixed = RUN.replace("{from: team/small}", f"{{from: team/small, revision: {OLD}}}")
    (folder / "run.yaml").write_text(fixed)
    assert started(away).hub_commits == {f"models/team/small@{OLD}": OLD}


def test_a_folder_of_that_name_is_not_on_the_hub(
    started: Callable[..., Resolved], folder: Path
) -> None:
    (folder / "team" / "small").mkdir(parents=True)
    assert started(Hub(OLD)).hub_commits == {"datasets/team/corpus": OLD}
    with_revision = RUN.replace("{from: team/small}", "{from: team/small, revision: v1}")
    (folder / "run.yaml").write_text(with_revision)
    with pytest.raises(SpecError, match=r"run.yaml:3:\d+: team/small is a folder, and `revision`"):
        started(Hub(OLD))


def test_a_revision_that_is_not_there_is_refused(started: Callable[..., Resolved]) -> None:
    def no_such(kind: HubKind, name: str, revision: str | None) -> str:
        raise BadInput(f"{name} on the hub has no revision {revision}")

    with pytest.raises(BadInput, match="team/small on the hub has no revision"):
        started(no_such)


def test_check_says_what_floats(headway: Headway, folder: Path) -> None:
    text = RUN.replace("{from: team/small}", f"{{from: team/small, revision: {OLD}}}")
    (folder / "run.yaml").write_text(text.replace("tokenizer: team", "tokenizer: other"))
    said = headway("check")
    words = "is opened when the run starts, at"
    assert f"model.from: team/small on the hub {words} commit 1a1a1a1a1a1a\n" in said.out
    newest = "the newest commit of its default branch, which the run then keeps\n"
    assert f"hub:team/corpus {words} {newest}" in said.out
    assert f"tokenizer other/small on the hub {words} {newest}" in said.out


# --- on a target


def launched_spec(kube: FakeKube) -> dict[str, Any]:
    """What all pods read."""
    (name,) = [name for name in kube.named("configmaps") if "-spec-" in name]
    found = kube.objects[f"/api/v1/namespaces/ml/configmaps/{name}"]
    spec: dict[str, Any] = json.loads(found["data"]["spec.json"])
    return spec


def test_pods_get_the_commit_that_the_launch_knows(
    headway: Headway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second launch names no commit, and the hub cannot be asked: that is said."""
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    text = launchable.RUN.replace("{type: gpt2}", f"{{from: team/small, revision: {OLD}}}")
    (folder / "run.yaml").write_text(text)
    (folder / "targets.yaml").write_text(launchable.TARGET)
    write_set(folder / "train", [(range(1, 2000), None)])
    with fake_kube(folder) as kube:
        kube.job_status = {"conditions": [{"type": "Complete", "status": "True"}]}
        said = headway("run", "--on", "lab", "--nodes", "1")
        assert said.exit_code == 0, said.err
        assert "is not fixed" not in said.err
        assert launched_spec(kube)["hub_commits"] == {f"models/team/small@{OLD}": OLD}

        (folder / "run.yaml").write_text(text.replace(f", revision: {OLD}", ""))
        kube.objects.clear()
        said = headway("run", "--on", "lab", "--nodes", "1")
        assert "team/small on the hub is not fixed to a commit (HF_HUB_OFFLINE is set)" in said.err
        assert "hub_commits" not in launched_spec(kube)


def test_a_hub_that_breaks_off_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its library's HTTP client has errors of its own, some without words."""

    class ReadTimeout(Exception):
        pass

    def model_info(*_: object, **__: object) -> None:
        raise ReadTimeout

    monkeypatch.setattr(hub_commits, "why_hub_is_away", lambda: None)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    with pytest.raises(hub_commits.HubNotAsked, match="ReadTimeout"):
        hub_commits.hub_commit("models", "team/small", None)


# --- with the libraries that read from the hub


READ = """
import json, sys
from pathlib import Path

import torch
from headway.data.formats.hub import hub_chunks
from headway.data.hub_commits import HubNotAsked, fixed_source, hub_commit
from headway.data.tokenizer import find_tokenizer
from headway.errors import BadInput
from headway.spec.hub_names import at_commit
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, resolve
from headway.train import models
from headway.train.fork_server import _model_type

asked = {name: hub_commit(*name.split("/", 1), None) for name in (
    "models/team/small", "datasets/team/corpus")}
commits = json.loads(sys.argv[1])
loaded = load_run(Path("run.yaml"))
machine = Hardware(cores=4, cuda_devices=0)
resolved = resolve(
    loaded, machine, nodes=1, parameters=None, train_set="", validation_sets={}
)
resolved = resolved.model_copy(update={"hub_commits": commits})
source = at_commit("hub:team/corpus", commits)
found = find_tokenizer("team/small", Path(), commits.get("models/team/small"))
network = models._from_weights(resolved.run.model, resolved.run.objective, resolved)
folder = models._folder_of("team/small", resolved.revision_of(resolved.run.model))
words = []
try:
    hub_commit("models", "team/small", "nowhere")
except BadInput as error:
    words.append(error.message)
try:
    hub_commit("models", "team/unknown", None)
except HubNotAsked:
    words.append("not asked")
print(json.dumps({
    "asked": asked,
    "texts": [r.value["text"] for c in hub_chunks(source, 0, ("text",)) for r in c.records()],
    "tokenizer": found.paths["tokenizer.json"].read_text()[-1:],
    "layers": network.module.config.n_layer,
    "files": folder.name,
    "whole": network.whole_because,
    "type": _model_type(resolved.run.model, resolved),
    "words": words,
    "begun": fixed_source("hub:team/corpus?split=x", ["hub:team/corpus?split=x&revision=y"]),
    "new": fixed_source("hub:team/corpus", []),
}))
"""


@pytest.mark.trap(37)
@pytest.mark.timeout(400)
def test_model_tokenizer_and_dataset_are_read_at_their_commit_though_the_branch_has_moved(
    folder: Path,
) -> None:
    """With what the hub's own libraries ask, from a cache that is empty."""
    (folder / "run.yaml").write_text(RUN)
    with fake_hub() as hub:
        old, new = two_commits(hub, folder)
        environment = {
            name: text for name, text in os.environ.items() if not name.startswith("HF_")
        }
        done = subprocess.run(
            [sys.executable, "-c", READ, json.dumps(old)],
            env={**environment, **hub.environment(folder / "cache")},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=350,  # of 15 s on a quiet machine, most of it imports
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "asked": new,
        "texts": [TEXTS[0]],
        "tokenizer": " ",
        "layers": 1,
        "files": old["models/team/small"],
        "whole": None,
        "type": "gpt2",
        "words": ["team/small on the hub has no revision nowhere", "not asked"],
        "begun": "hub:team/corpus?split=x&revision=y",
        "new": f"hub:team/corpus?revision={new['datasets/team/corpus']}",
    }
    read = [path for path in hub.asked if "/resolve/" in path]
    assert read
    assert not [path for path in read if any(commit in path for commit in new.values())]
