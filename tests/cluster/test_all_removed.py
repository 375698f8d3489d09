"""`headway delete --uploaded` on a real cluster: nothing that Headway made is left, and nothing is
taken from another run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.guide_rights import users_kubeconfig
from support.lab import START_SECONDS, Lab
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(560),
    pytest.mark.long("three whole runs, for what unit tests show over fakes"),
]

LOSS = """\
from headway import Loss
from torch.nn import functional as F


def loss(model, batch):
    logits = model(batch.inputs).logits
    kept = batch.targets != -100
    total = F.cross_entropy(logits[kept], batch.targets[kept], reduction="sum")
    return Loss(total, kept.sum())
"""
OWN = ("code={path: src}", 'objective={call: "mine:loss"}', "train_for=12 steps")
GONE_SECONDS = 60.0


def trained(lab: Lab, name: str) -> None:
    options = [word for one in (f"name={name}", *OWN) for word in ("--set", one)]
    lab.headway("run", "--on", "lab", "--nodes", "1", *options)

    def has_ended() -> bool:
        found = json.loads(lab.headway("status", name, "--on", "lab", "--json").stdout)
        return found["state"] == "finished" and found["cluster"]["state"] != "active"

    wait_for("its end", has_ended, START_SECONDS)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def kinds(folder: Path) -> set[str]:
    return {name.split("/")[0] for name in files(folder)}


def delete(lab: Lab, *names: str) -> None:
    lab.headway("delete", *names, "--on", "lab", "--uploaded", "--yes")


def write_code(lab: Lab, text: str) -> None:
    (lab.folder / "src").mkdir(exist_ok=True)
    (lab.folder / "src" / "mine.py").write_text(text)


def test_two_runs_of_a_claim_with_the_rights_of_the_guide(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = users_kubeconfig(lab.cluster, lab.namespace, lab.folder)
    monkeypatch.setenv("KUBECONFIG", str(user))
    write_code(lab, LOSS)
    trained(lab, "first")
    write_code(lab, f"{LOSS}\n# edited\n")
    trained(lab, "second")
    codes = {name for name in files(lab.shared) if name.endswith("mine.py")}
    assert len(codes) == 2
    delete(lab, "first")
    left = files(lab.shared)
    assert "first" not in {name.split("/")[1] for name in left if name.startswith("runs/")}
    assert [name for name in left if name.endswith("mine.py")], "that of the second"
    assert {name for name in left if name.endswith("mine.py")} < codes
    assert kinds(lab.shared) == {"runs", "sets", "code"}
    lab.headway("ledger", "verify", "second", "--on", "lab")
    delete(lab, "second")
    assert files(lab.shared) == set()
    wait_for("nothing in the namespace", lambda: lab.objects() == [], GONE_SECONDS)


def test_a_run_of_a_bucket(lab: Lab, bucket: Path) -> None:
    write_code(lab, LOSS)
    trained(lab, "it")
    assert kinds(bucket) == {"runs", "sets", "code"}
    delete(lab, "it")
    assert files(bucket) == set()
    wait_for("nothing in the namespace", lambda: lab.objects() == [], GONE_SECONDS)
