"""Who is lost: the members whose time has run out."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from headway.member.coordinator.state import MembershipState, WorkerRecord


def mark_lost(state: MembershipState, now: float) -> None:
    """Sets `gone` of each member that is lost."""
    recently = now - state.rules.suspected_seconds
    is_alone = not any(
        worker.session is not None and worker.heard > recently for worker in _keepers(state)
    )
    late = []
    members = state.members()
    limit = _silence_limit(state, members, now)
    for worker in members:
        if worker.enter_by <= now:
            late.append(worker)
        else:
            _judge(state, worker, limit, is_alone, False, now)
    if late:
        # Those that are late are judged last, when it is known who else is lost.
        spared = _last_holders(state, now)
        for worker in late:
            _judge(state, worker, limit, is_alone, worker.name in spared, now)


def _silence_limit(state: MembershipState, members: list[WorkerRecord], now: float) -> float:
    rules = state.rules
    if len(members) > rules.small_group:
        since = now - rules.suspected_seconds
        num_silent = sum(one.session is not None and one.heard <= since for one in members)
        if 2 * num_silent > len(members):
            return rules.longest_silence_seconds
    return state.silence_limit(now)


def _judge(
    state: MembershipState,
    worker: WorkerRecord,
    limit: float,
    is_alone: bool,
    is_spared: bool,
    now: float,
) -> None:
    deadline, why = _deadline(state, worker, limit)
    if is_alone:
        deadline = max(deadline, worker.heard + state.rules.alone_seconds)
    if worker.enter_by < deadline and not is_spared:
        deadline, why = worker.enter_by, "did not enter the generation in time"
    if now >= deadline:
        worker.gone = worker.gone or why
        if deadline == worker.enter_by:
            state.bar(worker.name, now)
    elif deadline < now + state.rules.idle_seconds:
        state.has_changed = True


def _deadline(state: MembershipState, worker: WorkerRecord, limit: float) -> tuple[float, str]:
    """When it is lost unless it is heard of before, and why. `limit`: longest silence of one that
    is missed."""
    rules, progress = state.rules, state.progress
    is_missed = progress.complaints or state.num_retries or progress.waiting
    if worker.session is not None:
        # All workers of a machine are lost together, and none is heard after the call to a new
        # generation.
        is_short = is_missed or worker.heard < progress.called_at
        patience = limit if is_short else max(rules.silence_seconds, limit)
        return worker.heard + patience, "no heartbeat"
    if not worker.is_absent:
        wait = 0.0 if progress.complaints else rules.reconnect_seconds
        return worker.closed + wait, "its connection closed"
    lull_seconds = max(rules.lull_seconds, limit)
    back = min(state.comeback_until, state.came_back + lull_seconds)
    deadline = min(state.absent_until, back) if is_missed else state.absent_until
    return deadline, "did not reconnect to the new coordinator"


def _keepers(state: MembershipState) -> list[WorkerRecord]:
    """Those who have the run's state, or all members if nobody has it. Without them the run would
    lose steps."""
    keepers = {name for workers in state.progress.holders() for name in workers}
    return [state.workers[name] for name in keepers or state.progress.members]


def _last_holders(state: MembershipState, now: float) -> AbstractSet[str]:
    """Those who have the run's state, if none of them has come in time: without them the run would
    lose steps. Their own watchdogs end those that are stuck."""
    holders = state.progress.holders()
    is_late = [
        any(state.workers[name].gone or state.workers[name].enter_by <= now for name in workers)
        for workers in holders
    ]
    return {name for workers in holders for name in workers} if all(is_late) else frozenset()
