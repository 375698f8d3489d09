"""Commands about a run on a target, by what they make of the API server's and the storage's
answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.clock import SystemClock
from headway.errors import Exit
from headway.kube.claim_files import register
from headway.kube.client import KubeClient
from headway.launch.cluster_run import ASK_AGAIN_SECONDS, ClusterRun
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, resolve
from headway.state.run_directory import Journal, RunDirectory
from support.clock import Patient
from support.fake_kube import FakeKube, fake_kube
from support.fake_s3 import FakeS3, fake_s3
from support.in_process import Headway
from support.launchable import write_run_and_target
from support.token_sets import write_set

CLAIM = "  storage: {claim: shared-fs}\n"


@pytest.fixture
def folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_run_and_target(folder, monkeypatch)
    return folder


@pytest.fixture
def kube(folder: Path) -> Iterator[FakeKube]:
    with fake_kube(folder) as kube:
        yield kube


@pytest.fixture
def s3() -> Iterator[type[FakeS3]]:
    with fake_s3() as store:
        yield store


def ended(location: str | Path, *events: str) -> RunDirectory:
    """A run there that was launched, and what happened then."""
    directory = RunDirectory.create(location, SystemClock())
    directory.write_spec(
        resolve(
            load_run(),
            Hardware(cores=4, cuda_devices=0),
            nodes=2,
            parameters=None,
            train_set="train",
            validation_sets={},
        )
    )
    journal = Journal(directory.launcher, SystemClock())
    journal.note("launched", workers=2, nodes=2, generation=1)
    for event in events:
        facts: dict[str, Any] = {"hours": 2.0, "spent_hours": 2.01} if event == "budget" else {}
        journal.note(event, **facts)
    directory.launcher.flush()
    return directory


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def run_on(headway: Headway, *overrides: str) -> str:
    """What the launch of a small set says."""
    options = [word for one in overrides for word in ("--set", one)]
    said = headway("run", "--on", "lab", "--nodes", "1", *options)
    assert said.exit_code == 0, said.err
    return said.err


def launched(headway: Headway, kube: FakeKube, folder: Path, *overrides: str) -> str:
    """One that ends before anybody looks at it."""
    write_set(folder / "train", [(range(1, 2000), None)])
    kube.job_status = {"conditions": [{"type": "Complete", "status": "True"}]}
    return run_on(headway, *overrides)


def session(kube: FakeKube) -> str:
    """Of the pod that serves the claim: it lasts as long as this process."""
    return next(name for name in kube.named("jobs") if "-storage-" in name).rpartition("-")[2]


def shown(headway: Headway, *more: str) -> dict[str, Any]:
    said = headway("status", "--json", *more)
    assert said.exit_code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


# --- where the run directory is


def test_a_run_that_has_ended_is_read_from_the_claim(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    ended(folder / "claim" / "runs" / "it", "stopped")
    assert shown(headway, "--on", "lab")["folder"] == "claim://lab/runs/it"


def test_a_bucket_of_the_run_file_is_found_by_all_commands(
    headway: Headway, kube: FakeKube, s3: type[FakeS3], folder: Path
) -> None:
    edit(folder / "targets.yaml", CLAIM, f"{CLAIM}  service_account: {{annotations: {{a: b}}}}\n")
    launched(headway, kube, folder, "storage=s3://mine/runs/")
    assert [path.name for path in (folder / "claim" / "sets").iterdir()], "data goes to the target"
    ended("s3://mine/runs/it", "finished")
    assert shown(headway)["folder"] == "s3://mine/runs/it"
    assert shown(headway, "it", "--on", "lab")["folder"] == "s3://mine/runs/it"
    again = run_on(headway, "storage=s3://mine/runs")
    assert "run it has already finished on lab" in again
    kube.job_status = {}
    kube.job("it", conditions=[{"type": "Complete", "status": "True"}])
    assert headway("delete", "it", "--yes").exit_code == 0
    assert not RunDirectory.exists("s3://mine/runs/it")
    assert not (folder / "runs" / "it.on").exists()


def test_a_target_without_storage_has_that_of_the_run_file(
    headway: Headway, kube: FakeKube, s3: type[FakeS3], folder: Path
) -> None:
    edit(folder / "targets.yaml", CLAIM, "")
    edit(folder / "run.yaml", "version: 1\n", "version: 1\nstorage: s3://mine/runs\n")
    launched(headway, kube, folder)
    assert any("/mine/runs/sets/" in name for name in s3.store)
    ended("s3://mine/runs/it", "finished")
    assert shown(headway)["folder"] == "s3://mine/runs/it"
    (folder / "runs" / "it.on").unlink()
    assert shown(headway, "--on", "lab")["folder"] == "s3://mine/runs/it", "as the run file says"


def test_nothing_says_where_it_is_kept(headway: Headway, kube: FakeKube, folder: Path) -> None:
    edit(folder / "targets.yaml", CLAIM, "")
    said = headway("status", "other", "--on", "lab")
    assert (said.exit_code, said.err) == (
        Exit.NOT_FOUND,
        "error: the storage of run other is not known: target lab names none\n"
        "hint: name the run by its address: s3://BUCKET/PREFIX/other\n",
    )


# --- delete


def test_delete_removes_what_was_saved_and_its_local_copy(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    ended(folder / "claim" / "runs" / "it", "stopped")
    register(lambda target: pytest.fail(f"{target} is not read here"))
    cached = RunDirectory("claim://lab/runs/it").local / "logs" / "node-0.rank-0.log"
    cached.parent.mkdir(parents=True)
    cached.write_text("of a run that is no more")
    kube.job("it", suspend=True)
    said = headway("delete", "it", "--on", "lab", "--yes")
    assert (said.exit_code, kube.named("jobs")) == (0, ["headway-storage-" + session(kube)])
    assert said.err.endswith("deleted run it on lab with all that it saved\n")
    assert not (folder / "claim" / "runs" / "it").exists()
    assert not cached.exists()


def test_delete_removes_the_objects_when_the_storage_is_unavailable(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    ended(folder / "claim" / "runs" / "it", "stopped")
    (folder / "runs").mkdir()
    (folder / "runs" / "it.on").write_text("lab\n")
    kube.job("it", suspend=True)
    kube.forbidden.add("/api/v1/namespaces/ml/secrets")
    said = headway("delete", "it", "--yes")
    assert (said.exit_code, "headway-it" in kube.named("jobs")) == (0, False)
    warning, hinted = said.err.splitlines()[-2:]
    assert warning.startswith(
        "warning: deleted the objects of run it on lab; what it saved is still in claim shared-fs "
        "of namespace ml, below runs/it: Secret headway-storage-"
    )
    assert hinted == "hint: once the storage can be reached: headway delete it --on lab"
    assert (folder / "claim" / "runs" / "it" / "run.json").exists()
    assert (folder / "runs" / "it.on").exists(), "other commands still find it there"


def test_delete_of_a_missing_run(headway: Headway, kube: FakeKube) -> None:
    said = headway("delete", "other", "--on", "lab", "--yes")
    assert said.exit_code == Exit.NOT_FOUND
    assert "error: there is no run other on lab" in said.err


# --- scale


def test_scale_keeps_to_the_range_that_the_run_was_launched_with(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    launched(headway, kube, folder, "resources.nodes=1..3")
    edit(folder / "run.yaml", "nodes: 2", "nodes: 1..9")
    said = headway("scale", "--nodes", "4")
    assert said.exit_code == Exit.BAD_INPUT
    assert "4 nodes is outside resources.nodes, 1..3" in said.err


# --- status


def test_a_run_in_a_queue_is_not_a_stopped_one(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    kube.job("it", suspend=True, queue="research")
    kube.coordinator("it")
    assert headway("status", "--on", "lab").out.splitlines() == [
        "run         it",
        "state       queued",
        "on          lab, namespace ml: 0 of 2 pods ready",
        "waiting     in queue research",
    ]
    assert shown(headway, "--on", "lab")["cluster"]["state"] == "queued"
    assert "queued  0/2   in queue research" in headway("list", "--on", "lab").out
    said = headway("run", "--on", "lab")
    assert (said.exit_code, said.err) == (
        Exit.STILL_RUNNING,
        "error: run it is already waiting on lab, in queue research\n"
        "hint: to take it out of the queue: headway stop it --on lab\n",
    )
    said = headway("resume", "--on", "lab")
    assert said.exit_code == Exit.STILL_RUNNING
    assert "is already waiting in queue research" in said.err
    assert headway("stop", "--on", "lab").exit_code == 0, "it keeps what it has saved"
    assert shown(headway, "--on", "lab")["cluster"]["state"] == "suspended"
    assert headway("delete", "it", "--on", "lab", "--yes").exit_code == 0
    assert "headway-it" not in kube.named("jobs")


def test_a_shell_in_a_pod_is_kubectls(headway: Headway, kube: FakeKube, folder: Path) -> None:
    """The line works when it is pasted: with the context and the namespace that Headway itself
    uses."""
    kube.job("it", ready=1)
    kube.coordinator("it")
    line = "shell       kubectl exec -it -n ml --context lab job/headway-it -c worker -- sh"
    assert headway("status", "--on", "lab").out.splitlines()[-1] == line
    edit(folder / "targets.yaml", "context: lab, ", "")
    assert headway("status", "--on", "lab").out.splitlines()[-1] == line, "the current context"
    kube.job("it", ready=0)
    assert "kubectl" not in headway("status", "--on", "lab").out


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
@pytest.mark.parametrize(("place", "words"), [(3, "behind 3 others"), (0, "the next one")])
def test_the_position_in_the_queue(
    headway: Headway, kube: FakeKube, version: str, place: int, words: str
) -> None:
    kube.job("it", suspend=True, queue="research")
    waits = [
        {"metadata": {"ownerReferences": [{"uid": uid}]}, "positionInClusterQueue": at}
        for uid, at in (("another", 7), ("/apis/batch/v1/namespaces/ml/jobs/headway-it", place))
    ]
    queue = f"/apis/visibility.kueue.x-k8s.io/{version}/namespaces/ml/localqueues/research"
    kube.put(f"{queue}/pendingworkloads", {"metadata": {}, "items": waits})
    assert shown(headway, "--on", "lab")["waiting"] == [f"in queue research, {words}"]


def test_a_run_of_a_queue_that_was_stopped_is_stopped(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    """Kueue is told to have it stop, and to have it go on. A Job that is suspended it would start
    again."""
    ended(folder / "claim" / "runs" / "it", "stopped")
    kube.others = ("workloads",)
    kube.job("it", queue="research")
    kube.coordinator("it")
    job = kube.objects["/apis/batch/v1/namespaces/ml/jobs/headway-it"]
    labels = {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}
    workload = kube.put(
        "/apis/kueue.x-k8s.io/v1beta2/namespaces/ml/workloads/job-headway-it-5ed0b",
        {"metadata": {"name": "job-headway-it-5ed0b", "labels": labels}, "status": {}},
    )
    assert headway("stop", "--on", "lab").exit_code == 0
    assert (workload["spec"], job["spec"]["suspend"]) == ({"active": False}, False)
    job["spec"]["suspend"] = True  # as Kueue does then
    found = shown(headway, "--on", "lab")
    assert (found["state"], found["cluster"]["state"]) == ("stopped", "suspended")
    ClusterRun(KubeClient.from_kubeconfig("lab", "ml"), "it", "lab", SystemClock()).resume()
    assert (workload["spec"], job["spec"]["suspend"]) == ({"active": True}, True)
    assert shown(headway, "--on", "lab")["cluster"]["state"] == "queued"


def test_a_queue_that_nobody_serves(headway: Headway, kube: FakeKube, folder: Path) -> None:
    ended(folder / "claim" / "runs" / "it", "stopped")
    kube.job("it", queue="research")
    assert headway("stop", "--on", "lab").exit_code == 0
    assert kube.objects["/apis/batch/v1/namespaces/ml/jobs/headway-it"]["spec"]["suspend"]


@pytest.mark.parametrize(
    ("heard", "step", "asked"),
    [
        (["running", "running", "stopped"], 7, 3),
        (["running", "stopped"], 7, 2),
        (["running", "running", None, "stopped"], None, 3),
        (["running"] * 20, None, 2 + len(ASK_AGAIN_SECONDS)),
    ],
    ids=["kept page", "new page", "coordinator has gone", "never"],
)
def test_a_page_from_before_the_save_is_asked_for_again(
    kube: FakeKube,
    monkeypatch: pytest.MonkeyPatch,
    heard: list[str | None],
    step: int | None,
    asked: int,
) -> None:
    """The coordinator keeps a page for a while: at once the same one would come."""
    kube.job("it")
    left, clock = list(heard), Patient()

    def known(_: ClusterRun) -> dict[str, Any] | None:
        state = left.pop(0)
        return state and {"status": {"state": state, "checkpoint_step": 7}}

    monkeypatch.setattr(ClusterRun, "known", known)
    assert (
        ClusterRun(KubeClient.from_kubeconfig("lab", "ml"), "it", "lab", clock).stop(
            lambda words: None
        )
        == step
    )
    assert len(heard) - len(left) == asked
    assert clock.slept == list(ASK_AGAIN_SECONDS[: asked - 2])


@pytest.mark.parametrize("state", ["stopped", "resumed"])
def test_a_run_that_has_used_up_its_hours_says_so(
    headway: Headway, kube: FakeKube, folder: Path, state: str
) -> None:
    ended(folder / "claim" / "runs" / "it", "budget", "stopped")
    if state == "resumed":
        ended(folder / "claim" / "runs" / "it", "stopped")
    said = headway("status", "--on", "lab").out
    why = (
        "budget      2.01 of 2 hours are used up, and a resumed run stops again: raise "
        "budget.hours, then headway run --on lab\n"
    )
    assert (why in said) == (state == "stopped")


def test_money_is_shown_with_the_budget(headway: Headway, kube: FakeKube, folder: Path) -> None:
    directory = ended(folder / "claim" / "runs" / "it")
    journal = Journal(directory.launcher, SystemClock())
    journal.note("budget", usd=20.0, spent_usd=20.0083)
    journal.note("stopped")
    rate = {"node": "H100:8", "capacity": "unknown", "usd_per_hour": 32.0}
    journal.note("billed", budget_usd=20.0, rates=[{**rate, "nodes": 0, "seconds": 2251.0}])
    said = headway("status", "--on", "lab").out
    assert (
        "budget      $20.01 of $20.00 are used up, and a resumed run stops again: raise "
        "budget.usd, then headway run --on lab\n"
    ) in said
    assert (
        "spent       $20.01 of $20.00 (at most: machines whose label cannot be read count as on "
        "demand)\n"
    ) in said
    spending = shown(headway, "--on", "lab")["spending"]
    assert (round(spending["usd"], 4), spending["budget_usd"]) == (20.0089, 20.0)
    assert spending["rates"][0]["hours"] == pytest.approx(2251 / 3600)


def test_a_budget_that_could_not_be_kept_is_shown_with_what_to_do(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    directory = ended(folder / "claim" / "runs" / "it")
    journal = Journal(directory.launcher, SystemClock())
    journal.note("budget_unknown", usd=20.0, reason="no answer", hint="make it readable")
    journal.note("stopped")
    said = headway("status", "--on", "lab").out
    assert "budget      it cannot be kept, and a resumed run stops again: no answer\n" in said
    assert "hint        make it readable, then headway run --on lab\n" in said


# --- logs


def test_logs_are_those_of_now(headway: Headway, kube: FakeKube, folder: Path) -> None:
    directory = ended(folder / "claim" / "runs" / "it", "stopped")
    for words in ("first", "first\nsecond"):
        log = directory.log(0, 0)
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"{words}\n")
        assert headway("logs", "--on", "lab").out == f"{words}\n"


# --- run


CLAIM_PATH = "/api/v1/namespaces/ml/persistentvolumeclaims/shared-fs"


@pytest.mark.parametrize(
    ("modes", "is_warned"),
    [
        (["ReadWriteOnce"], True),
        (["ReadWriteOncePod"], True),
        (["ReadWriteOnce", "ReadWriteMany"], False),
        (None, False),
    ],
)
def test_a_claim_for_one_machine_gives_a_warning(
    headway: Headway, kube: FakeKube, folder: Path, modes: list[str] | None, is_warned: bool
) -> None:
    if modes is not None:
        claim = {"metadata": {"name": "shared-fs"}, "spec": {"accessModes": modes}}
        kube.put(CLAIM_PATH, claim)
    said = launched(headway, kube, folder)
    warning = (
        f"warning: targets.yaml:4:13: claim shared-fs is {(modes or [''])[0]}: only one machine "
        "at a time can write to it, and pods on any other machine wait\n"
        "hint: use a claim with accessModes: [ReadWriteMany], or storage: s3://BUCKET/PREFIX\n"
    )
    assert (warning in said) == is_warned


def test_without_the_right_to_read_claims_there_is_no_warning(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    kube.forbidden.add(CLAIM_PATH)
    said = launched(headway, kube, folder)
    assert "warning" not in said
    assert "persistentvolumeclaims" not in said


def test_a_launch_that_may_not_create_a_role_leaves_nothing_and_names_the_other_way(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    write_set(folder / "train", [(range(1, 2000), None)])
    kube.forbidden.add("/apis/rbac.authorization.k8s.io/")
    said = headway("run", "--on", "lab")
    assert said.exit_code == Exit.BAD_INPUT
    refusal, hinted = said.err.splitlines()[-2:]
    assert refusal.startswith("error: Role headway-it: ")
    assert hinted == (
        "hint: without this permission: service_account: {coordinator: headway-coordinator} in the "
        "target, and once, by an administrator: headway target rbac lab | kubectl apply -f -"
    )
    assert [name for name in kube.named("jobs") if "-storage-" not in name] == []
    edit(
        folder / "targets.yaml", CLAIM, f"{CLAIM}  service_account: {{coordinator: headway-keep}}\n"
    )
    launched(headway, kube, folder)
    assert kube.named("serviceaccounts") == kube.named("roles") == []


def test_a_launch_into_a_queue_that_is_cut_off_leaves_nothing(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    """Or Kueue would start workers, and nobody keeps them."""
    write_set(folder / "train", [(range(1, 2000), None)])
    edit(folder / "targets.yaml", CLAIM, f"{CLAIM}  queue: research\n")
    kube.failing["POST /api/v1/namespaces/ml/services"] = 1
    said = headway("run", "--on", "lab")
    assert "Service headway-it" in said.err
    assert [name for name in kube.named("jobs") if "-storage-" not in name] == []
