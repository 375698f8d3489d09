"""Groups formed over the session's store by real processes, some of which die in the middle."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store

from headway.member.coordinator.rules import Rules
from headway.member.worker.session import Session
from headway.member.worker.session_view import Denied, GenerationOver, Late
from headway.train.session_store import (
    ANSWER_SECONDS,
    Group,
    GroupFailed,
    SessionStore,
    form_group,
    form_seconds,
)
from support.forming import MEMBERS, RUN, STAGES, coordinator, crew, form_groups
from support.small_coordinator import KEY, SmallCoordinator
from support.small_coordinator import RUN as A_RUN
from support.stolen_time import Stopwatch
from support.waiting import wait_for

pytestmark = pytest.mark.local

ROUNDS = int(os.environ.get("FORMS", "10"))
BOUND_SECONDS = form_seconds(MEMBERS)
LOOK_SECONDS = 0.2
"""Until a process that waits has its turn, on a machine with fewer processors than processes."""


@pytest.mark.long("waits for imports and groups, as unit/train/test_live.py does in small")
@pytest.mark.timeout(120 + 20 * ROUNDS)
def test_forming_is_bounded_and_leaves_nothing(tmp_path: Path) -> None:
    result = form_groups(tmp_path, ROUNDS, seed=1)
    assert result.kills == ROUNDS // 2
    for outcome in result.outcomes:
        assert outcome.seconds < BOUND_SECONDS + LOOK_SECONDS, outcome
        assert outcome.drop_seconds < LOOK_SECONDS + 0.3, outcome
    assert len(result.left) == MEMBERS
    for left in result.left:
        assert left.after <= left.before, left
    oldest = max(result.left, key=lambda left: left.num_groups)
    assert oldest.num_groups >= ROUNDS


@pytest.mark.parametrize("stage", [0, STAGES - 1])
def test_a_suspended_worker_does_not_delay_the_others(tmp_path: Path, stage: int) -> None:
    with crew(tmp_path) as members:
        newest = members.wait_for_group(MEMBERS, 0)
        members.stop_one(newest, stage)
        members.end()
    for outcome in members.result.outcomes:
        assert outcome.seconds < BOUND_SECONDS + LOOK_SECONDS, outcome
        assert outcome.drop_seconds < LOOK_SECONDS + 0.3, outcome
    for left in members.result.left:
        assert left.after <= left.before, left


IMPORTS_AND_COMPILES = """
import sys
from headway.member.coordinator.rules import Rules
from headway.member.worker.session import Session
session = Session(sys.argv[1], bytes.fromhex(sys.argv[2]), sys.argv[3], "pod-0")
session.wait_for("the coordinator", lambda view: view.connected, 30.0)
import torch
import torch._dynamo
from transformers import LlamaConfig, LlamaForCausalLM
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "vocab_size": 64}
model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **sizes))
compiled = torch.compile(model, backend="aot_eager")
compiled(torch.zeros((1, 8), dtype=torch.long)).logits.sum().backward()
session.goodbye()
"""


@pytest.mark.long("waits for imports and groups, as unit/train/test_live.py does in small")
def test_heartbeats_continue_during_imports_and_compiling() -> None:
    with SmallCoordinator() as coordinator:
        code = [sys.executable, "-c", IMPORTS_AND_COMPILES]
        subprocess.run([*code, coordinator.address, KEY.hex(), A_RUN], check=True, timeout=100.0)
        longest = max(coordinator.gaps)
        print(f"{len(coordinator.heartbeats)} heartbeats, the longest gap {longest:.3f} s")
        wait_for("its goodbye", lambda: coordinator.goodbyes, 5)  # on its way when it has ended
        assert longest < Rules().suspected_seconds


@contextmanager
def sessions(folder: Path, number: int) -> Iterator[list[Session]]:
    """Members of one generation, all in this process, that have entered it."""
    with ExitStack() as stack:
        address, key = stack.enter_context(coordinator(folder, Rules(max_domains=number)))
        found = [
            stack.enter_context(Session(address, key, RUN, f"pod-{index}"))
            for index in range(number)
        ]
        for session in found:
            session.be_ready()
        for session in found:
            session.wait_for("a generation", lambda view: view.domain is not None, 30.0)
            session.enter()
        for session in found:
            session.wait_for("all others", lambda view: view.may_form, 30.0)
        yield found


def store_of(session: Session) -> SessionStore:
    return SessionStore(session, session.view.status.entered)


def form_all(sessions: list[Session], **settings: object) -> list[Group | Exception]:
    """What each of them gets."""
    results: dict[int, Group | Exception] = {}

    def form(rank: int) -> None:
        try:
            results[rank] = form_group(
                store_of(sessions[rank]), rank, settings.get("size", len(sessions))
            )
        except (GroupFailed, GenerationOver) as error:
            results[rank] = error

    threads = [threading.Thread(target=form, args=(rank,)) for rank in range(len(sessions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[rank] for rank in range(len(sessions))]


def what_it_answers(store: Store) -> list[object]:
    store.set("a", "1")
    answers: list[object] = [store.get("a"), store.add("sum", 5), store.add("sum", -7)]
    answers += [store.get("sum"), store.check(["a", "sum"]), store.check(["a", "none"])]
    answers += [store.compare_set("c", "", "first"), store.compare_set("c", "other", "second")]
    answers += [store.compare_set("c", "first", "second"), store.get("c")]
    answers += [store.compare_set("none", "is", "this"), store.check(["none"])]
    store.wait(["a", "c"])
    store.wait(["a", "c"], timedelta(seconds=1))
    answers += [store.delete_key("a"), store.delete_key("a"), store.check(["a"])]
    clone = store.clone()
    clone.set("cloned", b"\0\xff")
    del clone
    answers += [store.get("cloned"), store.multi_get(["c", "sum"])]
    store.multi_set(["x", "y"], ["1", "2"])
    return [*answers, store.get("y")]


def test_the_store_does_what_those_of_torch_do(tmp_path: Path) -> None:
    with sessions(tmp_path, 1) as [session]:
        assert session.view.generation.number == 1
        expected = what_it_answers(HashStore())
        assert what_it_answers(store_of(session)) == expected
        # By the way of C++, and in a room of its own.
        assert what_it_answers(PrefixStore("room", store_of(session))) == expected
        store = store_of(session)
        store.set_timeout(timedelta(seconds=0.2))
        for wait in (
            lambda: store.get("missing"),
            lambda: store.wait(["missing"]),
            lambda: PrefixStore("room", store).get("missing"),
        ):
            watch = Stopwatch()
            with pytest.raises(Late, match="missing"):
                wait()
            assert watch.wall_seconds > 0.15
            assert watch.seconds < 1.5
        with pytest.raises(Denied, match="not an integer"):
            store.add("c", 1)
        with pytest.raises(GenerationOver):
            SessionStore(session, 7).get("missing")


def test_a_collective_that_waits_for_a_live_member_is_left_at_once(tmp_path: Path) -> None:
    with sessions(tmp_path, 2) as both:
        groups = form_all(both)
        group, other = groups
        assert isinstance(group, Group)
        assert isinstance(other, Group)
        work = dist.all_reduce(torch.ones(1), group=group.process_group, async_op=True)
        time.sleep(0.1)
        assert not work.is_completed()
        watch = Stopwatch()
        group.drop()
        del work
        assert watch.seconds < 0.5, "its timeout is ten minutes"
        late = dist.all_reduce(torch.ones(1), group=other.process_group, async_op=True)
        with pytest.raises(RuntimeError):
            late.wait()
        other.drop()
        assert group.process_group is None


def test_a_formed_group_has_the_time_it_was_given(tmp_path: Path) -> None:
    """What bounds forming must not bound collectives: a step may take minutes."""
    with sessions(tmp_path, 2) as both:
        one, other = form_all(both)
        assert isinstance(one, Group)
        assert isinstance(other, Group)
        first = dist.all_reduce(torch.ones(1), group=one.process_group, async_op=True)
        time.sleep(2.5)
        dist.all_reduce(torch.ones(1), group=other.process_group)
        first.wait()
        del first
        one.drop()
        other.drop()


def test_addresses_have_the_same_size_in_every_group_and_come_in_one_answer(tmp_path: Path) -> None:
    """Else what the coordinator sends grows with the cube of the group."""
    with sessions(tmp_path, 6) as all_:
        asked: list[str] = []
        for session in all_:
            ask = session.ask
            session.ask = lambda *request, ask=ask: (asked.append(request[3]), ask(*request))[1]
        groups = form_all(all_)
        sizes = set()
        for group in groups:
            assert isinstance(group, Group)
            sizes |= {len(value) for value in group.addresses.values()}
            assert len(group.addresses) == 6
        [size] = sizes
        assert size < 64 + 200  # the name of its machine, and an address of 136 bytes
        assert len(asked) == 2 * 6, "each sets its own and gets all"
        for group in groups:
            assert isinstance(group, Group)
            group.drop()


def test_many_that_do_not_come_are_not_named(tmp_path: Path) -> None:
    """Then the coordinator is slow, or the machine that all are on."""
    with sessions(tmp_path, 1) as alone:
        [error] = form_all(alone, size=3)
        assert isinstance(error, GroupFailed)
        assert error.ranks == ()


def test_one_that_does_not_come_is_named_in_time(tmp_path: Path) -> None:
    threads = threading.active_count()
    with sessions(tmp_path, 2) as both:
        watch = Stopwatch()
        failed = form_all(both, size=3)
        assert watch.seconds < BOUND_SECONDS + LOOK_SECONDS
        assert watch.wall_seconds > BOUND_SECONDS - ANSWER_SECONDS - 0.05
        for error in failed:
            assert isinstance(error, GroupFailed)
            assert error.ranks == (2,)
            assert "did not form within 2.06 s" in str(error)
    assert threading.active_count() == threads
