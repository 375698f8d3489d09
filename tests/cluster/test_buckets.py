"""A run whose storage is a bucket: pods and the user reach the same server, each with keys that
nobody else gets to see."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster_tool.api import Api
from headway.state.store import Store
from support.commands import Typed
from support.lab import RUN_FILE, Lab
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

STEPS = 40
TOKEN = "SOME_TOKEN"
KEY_NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
EVALUATION = "evaluation: {every: 1000000 steps"
RUN = (
    RUN_FILE.replace("100000 steps", f"{STEPS} steps").replace(
        EVALUATION, EVALUATION + ', metrics: {call: "mine:none"}'
    )
    + f"secrets: [{TOKEN}]\ncode: {{path: src}}\n"
)
CODE = "def none(*_):\n    return {}\n"
PLANTED = b"import os; os._exit(0)\n"


def test_the_whole_way_and_no_secret_is_seen(lab: Lab, bucket: Path) -> None:
    lab.folder = lab.folder / "mine"
    lab.folder.mkdir()
    (lab.folder.parent / "targets.yaml").rename(lab.folder / "targets.yaml")
    lab.write_run(RUN)
    (lab.folder / "src").mkdir()
    (lab.folder / "src" / "mine.py").write_text(CODE)
    token = secrets.token_hex(20)
    lab.make_secret("ours", {TOKEN: token})
    lab.change_target(secret="ours")

    with lab.typed("run", "--on", "lab", "--nodes", "2") as launch:
        inside = wait_for("workers", lambda: _environments(lab, 2), 90)
        assert all(f"{TOKEN}={token}".encode() in variables for variables in inside)
        key = _value(lab, "headway-it", "key")
        # They have fetched their code by now.
        with _planted(lab, bucket) as refused:
            assert launch.end(90) == 0, launch.output
            refused.wait_for("does not match what was uploaded", 90)
            assert refused.end(30) == 1, refused.output
    wait_for("the end", lambda: lab.status()["state"] == "finished", 60)
    status = lab.status()
    assert (status["step"], status["checkpoint_step"]) == (STEPS, STEPS)
    verified = lab.headway("ledger", "verify")
    assert str(STEPS) in verified.stdout + verified.stderr

    access, secret = (_value(lab, "bucket", name) for name in KEY_NAMES)
    said = {
        "run": launch.output,
        "status": lab.headway("status").stdout,
        "logs": lab.headway("logs", "--all").stdout,
        "events": lab.headway("events", "--json").stdout,
        **_pod_logs(lab),
        **_objects(lab.cluster.api, lab.namespace),
        **_files(lab.folder),
        **_files(bucket),
    }
    # All of it was looked at: what is no secret is found.
    assert "jobs headway-it" in _mentions(said, TOKEN)
    assert any(place.startswith("configmaps headway-it-spec-") for place in _mentions(said, TOKEN))
    assert str(bucket / "runs/it/spec.json") in _mentions(said, TOKEN)
    assert {"events", "pods", "log"} <= {place.partition(" ")[0] for place in said}
    for name, value in {"access": access, "secret": secret, "token": token, "key": key}.items():
        for form in (value, base64.b64encode(value.encode()).decode()):
            assert not _mentions(said, form), name

    lab.headway("delete", "it", "--yes")
    wait_for("nothing to be left", lambda: lab.objects() == [], 60)
    assert not _files(bucket / "runs")
    assert _files(bucket / "sets"), "other runs may use them"
    assert {_value(lab, "ours", TOKEN), _value(lab, "bucket", KEY_NAMES[0])} == {token, access}


@contextmanager
def _planted(lab: Lab, bucket: Path) -> Iterator[Typed]:
    """A run whose code somebody changes in the bucket: none of it is run, and it says so."""
    (planted,) = bucket.glob("code/2-*/mine.py")
    Store("s3://bucket/team").write(str(planted.relative_to(bucket)), PLANTED)
    with lab.typed("run", "--on", "lab", "--nodes", "1", "--set", "name=other") as other:
        yield other
    assert f"{planted.parent.name}/mine.py does not match what was uploaded" in other.output
    lab.headway("delete", "other", "--yes")


def _mentions(texts: dict[str, str], word: str) -> set[str]:
    return {place for place, text in texts.items() if word in text}


def _environments(lab: Lab, nodes: int) -> list[bytes]:
    """Of a training process in each pod; none as long as one has none."""
    by_pod = lab.training_pids()
    if len(by_pod) < nodes or not all(by_pod.values()):
        return []
    try:
        return [Path(f"/proc/{min(pids)}/environ").read_bytes() for pids in by_pod.values()]
    except (FileNotFoundError, ProcessLookupError):
        return []  # one has ended since it was listed


def _value(lab: Lab, name: str, key: str) -> str:
    path = f"/api/v1/namespaces/{lab.namespace}/secrets/{name}"
    return base64.b64decode(lab.cluster.api.get(path)["data"][key]).decode()


def _pod_logs(lab: Lab) -> dict[str, str]:
    """The coordinator's, too."""
    path = f"/api/v1/namespaces/{lab.namespace}/pods"
    names = [pod["metadata"]["name"] for pod in lab.cluster.api.items(path)]
    return {f"log {name}": lab.cluster.api.text(f"{path}/{name}/log") for name in names}


def _objects(api: Api, namespace: str) -> dict[str, str]:
    """All that is in the namespace, as JSON, but for Secrets."""
    groups = [group["preferredVersion"]["groupVersion"] for group in api.get("/apis")["groups"]]
    found = {}
    for group in ("/api/v1", *(f"/apis/{name}" for name in groups)):
        for kind in api.get(group)["resources"]:
            if not kind["namespaced"] or "list" not in kind["verbs"] or kind["name"] == "secrets":
                continue
            for one in api.items(f"{group}/namespaces/{namespace}/{kind['name']}"):
                found[f"{kind['name']} {one['metadata']['name']}"] = json.dumps(one)
    return found


def _files(folder: Path) -> dict[str, str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): path.read_bytes().decode("latin-1") for path in paths}
