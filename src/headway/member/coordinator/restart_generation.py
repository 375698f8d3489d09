"""The next generation of a run whose workers end with theirs (`Rules.restarts`).

A change ends the current generation: the next has no members, and says whether the workers of the
one before it finish their step (`sound`) or end at once. The one after it is made of new processes,
all together: a worker that came later would end it again.
"""

from __future__ import annotations

from headway.member.coordinator.next_generation import free_nodes, lost_reason, some
from headway.member.coordinator.nodes import Node, domains_of
from headway.member.coordinator.state import MembershipState, WorkerRecord
from headway.member.protocol.generation import Domain, Generation
from headway.member.protocol.identity import parse
from headway.member.protocol.wire import HEARTBEAT_SECONDS


def next_restart(state: MembershipState, now: float) -> Generation | None:
    """The generation to be made now, if any."""
    if state.progress.members:
        return _end(state, now)
    if state.broken:
        reason, state.broken = state.broken, ""
        return _generation(state, (), reason, awaits=state.current.awaits)
    return _start(state, now)


def _end(state: MembershipState, now: float) -> Generation | None:
    """The end of the current generation, if its members are to change."""
    number, progress = state.current.number, state.progress
    # A worker that has not heard that all have entered would never be told.
    sound = (number,) if progress.went else ()
    gone = [worker for worker in state.members() if worker.gone]
    leaving = [worker.name for worker in state.members() if worker.status.leaving]
    if gone:
        sound, reason = (), lost_reason(gone)
    elif leaving and _staying(state):
        reason = some(leaving, "leaves as planned")
    elif progress.established and (new := _newcomers(state, now)):
        reason = some([name for workers in new for name in workers], "is ready")
    else:
        return None
    if not gone and any(worker.session is None for worker in state.members()):
        return None  # it is back in a moment, or lost: then this change is not planned any more
    return _generation(state, sound, reason, awaits=_awaited(state, now, gone))


def _awaited(state: MembershipState, now: float, gone: list[WorkerRecord]) -> tuple[int, int]:
    """Domains that the next generation waits for: without and with the nodes that are lost. The
    nodes of a copy that has lost one of them may be in another copy."""
    free = _free_nodes(state, now)
    back = {parse(node.workers[0]).node for node in free}
    # All of a machine are lost together, and one of them may have been heard a moment later.
    silent = [worker for worker in state.members() if gone and _is_silent(state, worker, now)]
    lost = {parse(worker.name).node for worker in (*gone, *silent)} - back
    staying = _staying(state) - {parse(worker.name).node_start for worker in silent}
    num_certain = len(staying) + len(free)
    return _num_domains(state, num_certain), _num_domains(state, num_certain + len(lost))


def _is_silent(state: MembershipState, worker: WorkerRecord, now: float) -> bool:
    """For as long as one that is lost, or up to a heartbeat less."""
    limit = state.silence_limit(now) - HEARTBEAT_SECONDS
    return now - worker.heard > max(state.rules.suspected_seconds, limit)


def _num_domains(state: MembershipState, num_nodes: int) -> int:
    rules = state.rules
    return min(num_nodes * rules.node_workers // rules.domain_workers, rules.max_domains)


def _staying(state: MembershipState) -> set[str]:
    """Nodes whose workers are neither lost nor leaving: their successors come back."""
    ending = [worker for worker in state.members() if worker.gone or worker.status.leaving]
    nodes = {parse(name).node_start for name in state.progress.members}
    return nodes - {parse(worker.name).node_start for worker in ending}


def _newcomers(state: MembershipState, now: float) -> list[tuple[str, ...]]:
    """Domains that wait for a place, if there is one and they have waited for others."""
    if len(state.current.domains) >= state.rules.max_domains:
        return []
    new = _free_domains(state, now)
    if new and now < _since(state, new)[0] + state.rules.newcomer_seconds:
        state.has_changed = True
        return []
    return new


def _start(state: MembershipState, now: float) -> Generation | None:
    """A generation of all that are there, once nobody else is waited for."""
    rules = state.rules
    domains = _free_domains(state, now)[: rules.max_domains]
    if _is_at_work(state):
        state.worked_at = now
        return None
    if len(domains) < rules.min_domains:
        return None
    first, last = _since(state, domains)
    num_first = rules.first_domains or rules.max_domains
    num_certain, num_expected = state.current.awaits or (num_first, num_first)
    if len(domains) >= num_expected:
        due = now
    elif len(domains) >= num_certain:
        due = max(last, state.worked_at) + rules.join_seconds
    else:
        due = max(first, state.worked_at) + rules.gather_seconds
    if state.current.sound and state.current.incarnation < state.incarnation:
        # Those that are at work in it may not have found this coordinator yet.
        due = max(due, first + rules.comeback_seconds)
    if now < due:
        state.has_changed = True
        return None
    number = state.current.number + 1
    reason = some([name for workers in domains for name in workers], "is ready")
    new = tuple(Domain(workers, number, holds=False) for workers in domains)
    return _generation(state, (), reason, new)


def _place(workers: tuple[str, ...]) -> tuple[int, int, str, int]:
    """Order of a domain, however often its workers were started."""
    first = parse(workers[0])
    return first.node_index or 0, len(first.node), first.node, first.local_rank


def _is_at_work(state: MembershipState) -> bool:
    """Whether a worker still finishes its step in the generation that has ended."""
    return any(
        worker.session is not None and worker.status.entered in state.current.sound
        for worker in state.workers.values()
    )


def _free_domains(state: MembershipState, now: float) -> list[tuple[str, ...]]:
    return domains_of(_free_nodes(state, now), state.rules.domain_workers)


def _free_nodes(state: MembershipState, now: float) -> list[Node]:
    """Of workers that were in no generation yet."""
    used = {name for name, worker in state.workers.items() if worker.status.entered}
    nodes = free_nodes(state, now, used | state.progress.members)
    # Always in the same order: sums depend on it.
    nodes.sort(key=lambda node: _place(node.workers))
    return nodes


def _since(state: MembershipState, domains: list[tuple[str, ...]]) -> tuple[float, float]:
    """When the first and when the last of these domains was ready."""
    ready = [max(state.workers[name].ready for name in workers) for workers in domains]
    return min(ready), max(ready)


def _generation(
    state: MembershipState,
    sound: tuple[int, ...],
    reason: str,
    domains: tuple[Domain, ...] = (),
    awaits: tuple[int, int] | None = None,
) -> Generation:
    return Generation(
        number=state.current.number + 1,
        incarnation=state.incarnation,
        domains=domains,
        leader=0,
        paused=not domains,
        sound=sound,
        reason=reason,
        awaits=awaits,
    )
