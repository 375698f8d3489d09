"""The names of workers, and what they say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.member.protocol.identity import (
    WorkerIdentity,
    parse,
    replace_names,
    with_token,
    without_tokens,
)

TOKEN = "9f86d081884c7d65"
IDENTITIES = st.builds(
    WorkerIdentity,
    node=st.from_regex(r"[a-z][-a-z0-9]{0,20}(\.[a-z]+)?", fullmatch=True),
    start=st.integers(1, 10**6),
    local_rank=st.integers(0, 10**4),
    token=st.sampled_from(["", "ab12", TOKEN]),
)


@given(IDENTITIES)
def test_what_is_written_is_parsed(identity: WorkerIdentity) -> None:
    assert parse(str(identity)) == identity


@pytest.mark.parametrize(
    ("name", "node", "start", "local_rank", "token"),
    [
        ("node-1.2/0", "node-1", 2, 0, ""),
        (f"node-1.2/10.{TOKEN}", "node-1", 2, 10, TOKEN),
        ("headway-my-run-2-wvrd6.1/0.ab", "headway-my-run-2-wvrd6", 1, 0, "ab"),
        ("node-0/1.ab12", "node-0", 0, 1, "ab12"),
        ("host/gpu", "host", 0, 0, "gpu"),
        ("pod-0.ab12", "pod-0.ab12", 0, 0, ""),
        ("a", "a", 0, 0, ""),
    ],
)
def test_every_name_is_accepted(
    name: str, node: str, start: int, local_rank: int, token: str
) -> None:
    assert parse(name) == WorkerIdentity(node, start, local_rank, token)


def test_workers_of_one_start_have_it_in_common() -> None:
    assert parse("node-1.2/0.aa").node_start == parse("node-1.2/1.bb").node_start == "node-1.2"
    assert parse("node-1/0").node_start == "node-1"
    assert parse("pod-0.ab12").node_start == "pod-0.ab12"


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("node-12.3/0", 12),
        ("headway-my-run-2-wvrd6.1/0", 2),
        ("headway-my-run-2-45678.1/0", 2),
        ("pod-0", None),
        ("some-node-1.1/0", None),
    ],
)
def test_the_number_of_a_node_is_read_from_names_that_launchers_give(
    name: str, index: int | None
) -> None:
    assert parse(name).node_index == index


def test_each_process_has_a_name_of_its_own() -> None:
    first, second = with_token("node-0.1/0"), with_token("node-0.1/0")
    assert first != second
    assert without_tokens(first) == without_tokens(second) == "node-0.1/0"
    assert parse(first).local_rank == 0
    assert len(parse(first).token) == len(TOKEN)


def test_names_in_a_text_are_replaced() -> None:
    text = f"node-1.1/0.{TOKEN} is lost, and runs.1/2 stays: see a/b"
    assert without_tokens(text).startswith("node-1.1/0 is lost")
    said = replace_names(text, lambda worker: None if worker.node == "runs" else f"<{worker.node}>")
    assert said == "<node-1> is lost, and runs.1/2 stays: see a/b"
