"""Names, labels and ports: whoever makes, finds or serves objects takes them from one place."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from headway.errors import BadInput
from headway.kube.names import (
    GATE,
    Component,
    coordinator_address,
    coordinator_object,
    labels,
    record_object,
    require_names,
    run_object,
    selector,
)
from headway.member.protocol.messages import MAX_WORKERS

LONGEST = "a" * 40
LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""The strictest form there is (RFC 1035): a Service's name must have it."""
QUALIFIED = re.compile(r"[a-z0-9.-]{1,253}/[A-Za-z0-9][-A-Za-z0-9_.]{0,61}[A-Za-z0-9]")


@pytest.mark.parametrize("run", ["a", "0", "a-b", LONGEST])
def test_every_name_of_an_object_is_one_for_kubernetes(run: str) -> None:
    for name in (run_object(run), coordinator_object(run), record_object(run)):
        assert LABEL.fullmatch(name), name


def test_runs_of_any_size_that_there_can_be_have_host_names() -> None:
    require_names(LONGEST, MAX_WORKERS)


def test_names_that_are_too_long_are_refused() -> None:
    with pytest.raises(BadInput, match=r"headway-a+-coordinator has 64 characters.* allows 63"):
        require_names("a" * 44, 1)
    with pytest.raises(BadInput, match=r"-999999999999999 has 64 characters"):
        require_names(LONGEST, 10**15)


def test_labels_select_one_run_or_one_component_of_it() -> None:
    assert labels("wiki", "worker") == {
        "app.kubernetes.io/managed-by": "headway",
        "app.kubernetes.io/instance": "wiki",
        "app.kubernetes.io/component": "worker",
    }
    for component in get_args(Component):
        assert labels("wiki").items() < labels("wiki", component).items()
    assert selector("wiki") == (
        "app.kubernetes.io/managed-by=headway,app.kubernetes.io/instance=wiki"
    )


@pytest.mark.trap(4)
def test_the_coordinator_has_a_name_in_the_cluster() -> None:
    assert coordinator_address("wiki", "ml") == "headway-wiki.ml.svc:7460"


def test_the_gate_has_the_form_that_kubernetes_asks_of_gates() -> None:
    assert QUALIFIED.fullmatch(GATE)
