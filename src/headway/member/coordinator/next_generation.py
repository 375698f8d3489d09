"""The next generation: whether one is due, and who is in it."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from math import inf

from headway.member.coordinator.nodes import Node, domains_of, whole_nodes
from headway.member.coordinator.state import MembershipState, WorkerRecord
from headway.member.protocol.generation import Domain, Generation


def next_generation(state: MembershipState, now: float) -> Generation | None:
    """The generation to be made now, if any."""
    gone = [worker for worker in state.members() if worker.gone]
    if gone:
        return _generation(state, now, _sound_without(state, gone), lost_reason(gone))
    if state.progress.first_complaint < inf:
        return _try_again(state, now)
    leaving = [worker.name for worker in state.members() if worker.status.leaving]
    if leaving and _has_heirs(state):
        return _generation(state, now, _sound(state), some(leaving, "leaves as planned"))
    if state.progress.established:
        return _admit(state, now)
    return None


def _try_again(state: MembershipState, now: float) -> Generation | None:
    """Complaints, and nobody is lost: a retry with the same members, or without the most blamed."""
    rules, progress = state.rules, state.progress
    if not progress.went and not state.current.sound:
        return None  # the others are called already, and enter or are found lost
    complaint = progress.first_complaint
    pause = min(rules.trouble_seconds * 2**state.num_retries, rules.longest_trouble_seconds)
    # A worker that was not heard since is found lost soon, and a retry with it would be in vain.
    are_all_heard = all(worker.heard >= complaint for worker in state.members())
    if now < complaint + pause or not are_all_heard:
        state.has_changed = True
        return None
    state.num_retries += 1
    state.blame.update(name for peers in progress.complaints.values() for name in set(peers))
    worst = _most_blamed(state)
    if state.num_retries > rules.tries and worst is not None:
        worker = state.workers[worst]
        worker.gone = "its peers cannot reach it"
        state.bar(worst, now)
        return _generation(state, now, (), lost_reason([worker]))
    by = some(sorted(progress.complaints), "reports a failure")
    return _generation(state, now, (), f"retried: {by}")


def _most_blamed(state: MembershipState) -> str | None:
    """Among those equally blamed the newest: the others have worked together before."""
    since = {name: domain.since for domain in state.current.domains for name in domain.workers}
    blamed = [name for name in state.blame if name in state.progress.members]
    return max(blamed, key=lambda name: (state.blame[name], since[name], name), default=None)


def _admit(state: MembershipState, now: float) -> Generation | None:
    rules = state.rules
    room = rules.max_domains - len(state.current.domains)
    if room <= 0:
        return None
    nodes = free_nodes(state, now, state.progress.members)
    num_new = min(len(domains_of(nodes, rules.domain_workers)), room)
    if not num_new:
        return None
    wait = rules.join_seconds
    if not state.progress.members:
        if num_new < rules.min_domains:
            return None
        is_enough = num_new >= (rules.first_domains or rules.max_domains)
        wait = 0.0 if is_enough else rules.gather_seconds
    if now < nodes[0].ready + wait:
        state.has_changed = True
        return None
    ready = [worker for node in nodes for worker in node.workers]
    return _generation(state, now, _sound(state), some(ready, "is ready"))


def free_nodes(state: MembershipState, now: float, used: AbstractSet[str]) -> list[Node]:
    """Nodes whose workers could all be in a new domain, the longest ready first."""
    free = (
        (worker.ready, worker.name)
        for worker in state.workers.values()
        if worker.session is not None
        and worker.ready < inf
        and not worker.gone
        and not worker.status.leaving
        and worker.name not in used
        and not state.is_barred(worker.name, now)
    )
    return whole_nodes(free, state.rules.node_workers)


def _generation(
    state: MembershipState, now: float, sound: tuple[int, ...], reason: str
) -> Generation:
    rules, number = state.rules, state.current.number + 1
    has_heirs = _has_heirs(state)
    kept = [domain for domain in state.current.domains if _is_kept(state, domain, has_heirs)]
    domains = [Domain(one.workers, one.since, state.progress.holds(one)) for one in kept]
    nodes = free_nodes(state, now, {name for domain in kept for name in domain.workers})
    new = domains_of(nodes, rules.domain_workers)[: max(0, rules.max_domains - len(domains))]
    domains += [Domain(workers, number, holds=False) for workers in new]
    return Generation(
        number=number,
        incarnation=state.incarnation,
        domains=tuple(domains),
        leader=_leader(state.current, domains),
        paused=len(domains) < rules.min_domains,
        sound=sound,
        reason=reason,
    )


def _is_kept(state: MembershipState, domain: Domain, has_heirs: bool) -> bool:
    workers = [state.workers[name] for name in domain.workers]
    return not any(worker.gone or (worker.status.leaving and has_heirs) for worker in workers)


def _has_heirs(state: MembershipState) -> bool:
    """Whether a domain with the run's state stays; also True if none has it. Else those that leave
    heal the others first, or save and say goodbye."""
    holders = [
        domain
        for domain in state.current.domains
        if state.progress.holds(domain) and _is_kept(state, domain, has_heirs=False)
    ]
    return not holders or any(_is_kept(state, domain, has_heirs=True) for domain in holders)


def _leader(current: Generation, domains: list[Domain]) -> int:
    """The one that led, as long as it can; else the longest member that holds the state."""
    led = current.domains[current.leader].workers if current.domains else ()
    holders = [index for index, domain in enumerate(domains) if domain.holds]
    return next((index for index in holders if domains[index].workers == led), (holders or [0])[0])


def _sound(state: MembershipState) -> tuple[int, ...]:
    """Generations whose members finish their step before they come to the next."""
    unfinished = state.progress.unfinished
    return tuple(number for number, members in unfinished.items() if members != frozenset())


def _sound_without(state: MembershipState, gone: list[WorkerRecord]) -> tuple[int, ...]:
    names = {worker.name for worker in gone}
    unfinished = state.progress.unfinished
    return tuple(
        number for number, members in unfinished.items() if members and members.isdisjoint(names)
    )


def lost_reason(gone: list[WorkerRecord]) -> str:
    return f"{some([worker.name for worker in gone], 'is lost')}: {gone[0].gone}"


def some(names: list[str], what: str) -> str:
    return f"{names[0]} {what}" + (f", and {len(names) - 1} more" if len(names) > 1 else "")
