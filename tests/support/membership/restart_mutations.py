"""Defects put into the decisions of a run whose workers end with their generation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from headway.member.coordinator import decide, restart_generation
from support.membership.history import History, random_restart_history
from support.membership.mutations import Mutation

planned = partial(random_restart_history, is_planned=True)
faulty = partial(random_restart_history, is_planned=False)


def planned_in_wide_copies(seed: int) -> History:
    return replace(planned(seed), num_workers=4, domain_workers=2, node_workers=1)


RESTART_MUTATIONS = [
    Mutation(
        "drops the step of a planned change",
        restart_generation,
        "sound = (number,) if progress.went else ()",
        "sound: tuple[int, ...] = ()",
        planned,
    ),
    Mutation(
        "begins while workers still save",
        restart_generation,
        "    if _is_at_work(state):\n        state.worked_at = now\n        return None\n",
        "",
        planned,
    ),
    Mutation(
        "begins with the first that is back",
        restart_generation,
        "due = max(first, state.worked_at) + rules.gather_seconds",
        "due = now",
        planned,
    ),
    Mutation(
        "plans a change while a member has no connection",
        restart_generation,
        "if not gone and any(worker.session is None for worker in state.members()):",
        "if False:",
        planned,
    ),
    Mutation(
        "takes the nodes of a copy that loses one of them for lost",
        restart_generation,
        "return nodes - {parse(worker.name).node_start for worker in ending}",
        "domains = [state.current.domain_of(worker.name) for worker in ending]\n"
        "    names = [name for domain in domains if domain for name in domain.workers]\n"
        "    return nodes - {parse(name).node_start for name in names}",
        planned_in_wide_copies,
    ),
    Mutation(
        "expects as many as at launch, after a restart of the coordinator",
        restart_generation,
        "state.current.awaits or (num_first, num_first)",
        "(num_first, num_first)\n"
        "    if state.current.awaits and state.current.incarnation == state.incarnation:\n"
        "        num_certain, num_expected = state.current.awaits",
        planned,
    ),
    Mutation(
        "expects those that leave to come back",
        restart_generation,
        "if worker.gone or worker.status.leaving]",
        "if worker.gone]",
        planned,
    ),
    Mutation(
        "takes a worker of an earlier generation into the next",
        restart_generation,
        "nodes = free_nodes(state, now, used | state.progress.members)",
        "nodes = free_nodes(state, now, state.progress.members)",
        faulty,
    ),
    Mutation(
        "begins with fewer than the minimum",
        restart_generation,
        "if len(domains) < rules.min_domains:",
        "if not domains:",
        faulty,
    ),
    Mutation(
        "ends a generation twice",
        decide,
        'state.broken = ""  # ',
        "# ",
        faulty,
    ),
    Mutation(
        "does not tell those that save that one of them is lost",
        decide,
        '            state.broken = f"{worker.name} is lost: its connection closed"\n',
        "            pass\n",
        faulty,
    ),
    Mutation(
        "never ends a generation that has lost a worker",
        restart_generation,
        "        sound, reason = (), lost_reason(gone)\n",
        "        return None\n",
        faulty,
    ),
]
