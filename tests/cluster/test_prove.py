"""`headway prove --on TARGET`, rehearsed from end to end."""

from __future__ import annotations

import pytest

from headway.prove.report import read_report
from support.lab import Lab
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

LIMIT_SECONDS = 900.0


@pytest.mark.long("ten minutes: nine runs, one after the other")
def test_a_proof_on_two_nodes(lab: Lab) -> None:
    said = lab.headway("prove", "--on", "lab", "--nodes", "2", seconds=1100)
    print(said.stderr)
    report = read_report(lab.folder / "prove" / "prove.json")
    outcomes = {check.name: check.outcome for check in report.checks}
    assert list(outcomes.values()) == ["passed"] * 7 + ["not run"], report
    assert report.seconds < LIMIT_SECONDS
    assert (report.nodes, report.num_devices, report.is_rehearsal) == (2, 2, True)
    assert report.machine["topology"] == "2 pods on 2 machines"
    assert {"torch", "transformers", "Kubernetes"} <= set(report.machine)
    assert len(report.rates) == 3
    # The pod that served the claim is deleted last, with grace.
    wait_for("nothing to be left on the cluster", lambda: not lab.objects())
    assert not list((lab.shared / "runs").iterdir()), "nor in the storage"
