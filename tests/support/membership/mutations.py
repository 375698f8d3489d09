"""Defects put into the coordinator's decisions and the follower, one at a time: the simulator must
find each. Those of runs whose workers restart are in `restart_mutations`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import cast
from unittest.mock import patch

from headway.member.coordinator import (
    decide,
    lost_workers,
    next_generation,
    restart_generation,
    state,
)
from headway.member.coordinator.decide import Membership
from headway.member.protocol import generation
from headway.member.worker import follower, state_choice
from headway.member.worker.follower import Follower
from support.membership.checks import CHOOSE, Choose
from support.membership.history import History, random_history
from support.membership.judge import failure

DECISIONS = (state, lost_workers, next_generation, restart_generation, decide)
"""In the order in which they import each other."""


@dataclass(frozen=True)
class Mutation:
    name: str
    module: ModuleType
    old: str
    new: str
    make_history: Callable[[int], History] = random_history
    """What it is looked for in."""

    def parts(self) -> tuple[type[Membership], type[Follower], Choose]:
        modules = DECISIONS if self.module in DECISIONS else (self.module,)
        with patch.dict(sys.modules):
            found = [self._loaded(module) for module in modules][-1]
        domain = getattr(found, "Domain", None) if self.module is generation else None
        functions = [getattr(domain or found, one.__name__, one) for one in CHOOSE]
        return (
            getattr(found, "Membership", Membership),
            getattr(found, "Follower", Follower),
            cast(Choose, tuple(functions)),
        )

    def _loaded(self, module: ModuleType) -> ModuleType:
        """A copy of the module in its place, with the defect if it belongs there."""
        assert module.__file__ is not None
        with open(module.__file__, encoding="utf-8") as file:
            source = file.read()
        if module is self.module:
            assert source.count(self.old) == 1, f"{self.name}: not once in {module.__name__}"
            source = source.replace(self.old, self.new)
        copy = sys.modules[module.__name__] = ModuleType(module.__name__)
        exec(compile(source, module.__file__, "exec"), copy.__dict__)
        return copy


MUTATIONS = [
    Mutation(
        "a worker takes a state for the run's that it had before it was removed",
        generation,
        "return healed >= self.since",
        "return healed > 0",
    ),
    Mutation(
        "a worker asks the coordinator whether it has the state",
        generation,
        "return healed >= self.since",
        "return self.holds",
    ),
    Mutation(
        "announces a generation before it is written",
        decide,
        "decisions.append(WriteGeneration(self._writing))",
        "decisions += [WriteGeneration(self._writing), PublishGeneration(self._writing)]",
    ),
    Mutation(
        "goes on after another has written",
        decide,
        'return self._step_down(f"another coordinator has written generation {event.number}")',
        "return self._written(event.number, now)",
    ),
    Mutation(
        "lets newcomers heal others",
        state,
        "return self.with_state.issuperset(domain.workers)",
        "return True",
    ),
    Mutation(
        "takes those healed in an earlier generation for healed in this one",
        state,
        "newcomers=members - self.members,",
        "newcomers=members - self.members, healed=self.healed,",
    ),
    Mutation(
        "forgets who had the state",
        state,
        "return self.with_state.issuperset(domain.workers)",
        "return self.healed.issuperset(domain.workers)",
    ),
    Mutation(
        "lets one lead that has not the state",
        next_generation,
        "(holders or [0])[0])",
        "len(domains) - 1 if domains else 0)",
    ),
    Mutation(
        "says go when the first has come",
        decide,
        "progress.went = len(progress.entered) == len(progress.members)",
        "progress.went = True",
    ),
    Mutation(
        "does not forgive its own pauses",
        decide,
        "        if pause <= rules.idle_seconds + rules.pause_seconds:\n",
        "        if True:\n",
    ),
    Mutation(
        "judges before it has read what came in meanwhile",
        decide,
        "        pause = now - self._asked\n",
        "        pause = now - max(self._asked, self.wake)\n",
    ),
    Mutation(
        "gives no window to come back after its own restart",
        decide,
        "absent_until=now + rules.absent_seconds",
        "absent_until=now",
    ),
    Mutation(
        "takes those who have not come back for lost, and others are just coming",
        decide,
        "            state.came_back = now\n",
        "            state.came_back = min(state.came_back, now)\n",
    ),
    Mutation(
        "gives no time to connect again",
        lost_workers,
        "wait = 0.0 if progress.complaints else rules.reconnect_seconds",
        "wait = 0.0",
    ),
    Mutation(
        "is as impatient without complaints",
        lost_workers,
        "limit if is_short else max(rules.silence_seconds, limit)",
        "limit",
    ),
    Mutation(
        "is as patient with who is not heard in a generation that all are called to",
        lost_workers,
        "is_short = is_missed or worker.heard < progress.called_at",
        "is_short = is_missed",
    ),
    Mutation(
        "is as impatient with those who finish their step first",
        state,
        "called_at=now if are_all_called else -inf",
        "called_at=now",
    ),
    Mutation(
        "is as patient when somebody complains",
        lost_workers,
        "is_missed = progress.complaints or state.num_retries or progress.waiting",
        "is_missed = progress.waiting",
    ),
    Mutation(
        "is as patient while somebody waits",
        lost_workers,
        "is_missed = progress.complaints or state.num_retries or progress.waiting",
        "is_missed = progress.complaints or state.num_retries",
    ),
    Mutation(
        "takes one that waits for one that complains",
        decide,
        "if status.trouble == self.current.number:",
        "if self.current.number in (status.trouble, status.waits):",
    ),
    Mutation(
        "gives no time to connect again while somebody waits",
        lost_workers,
        "wait = 0.0 if progress.complaints else rules.reconnect_seconds",
        "wait = 0.0 if progress.complaints or progress.waiting else rules.reconnect_seconds",
    ),
    Mutation(
        "does not hear that one waits no longer",
        decide,
        "        else:\n            progress.waiting.discard(name)\n",
        "",
    ),
    Mutation(
        "takes the end of an old session for the end of the new one",
        decide,
        "if worker is None or worker.session != event.session:",
        "if worker is None:",
    ),
    Mutation(
        "does not count the silent",
        lost_workers,
        'return worker.heard + patience, "no heartbeat"',
        'return float("inf"), "no heartbeat"',
    ),
    Mutation(
        "does not answer complaints",
        next_generation,
        "    if state.progress.first_complaint < inf:\n        return _try_again(state, now)\n",
        "",
    ),
    Mutation(
        "heeds complaints of old generations",
        decide,
        "if status.trouble == self.current.number:",
        "if status.trouble > 0:",
    ),
    Mutation(
        "never gives up on one whom its peers cannot reach",
        next_generation,
        "if state.num_retries > rules.tries and worst is not None:",
        "if False:",
    ),
    Mutation(
        "waits for ever for one that does not come",
        lost_workers,
        "if worker.enter_by < deadline and not is_spared:",
        "if False:",
    ),
    Mutation(
        "remembers for ever that a worker was lost",
        decide,
        'worker.gone, worker.status, worker.ready = "", NO_STATUS, inf',
        "worker.status, worker.ready = NO_STATUS, inf",
    ),
    Mutation(
        "does not take those who leave out",
        next_generation,
        "worker.gone or (worker.status.leaving and has_heirs) for worker in workers",
        "worker.gone for worker in workers",
    ),
    Mutation(
        "lets the last that has the state leave with it",
        next_generation,
        "return not holders or any(_is_kept(state, domain, has_heirs=True) for domain in holders)",
        "return True",
    ),
    Mutation(
        "does not admit anyone after the first",
        next_generation,
        "    if state.progress.established:\n        return _admit(state, now)\n",
        "    if not state.progress.members:\n        return _admit(state, now)\n",
    ),
    Mutation(
        "makes domains of workers of different nodes",
        next_generation,
        "whole_nodes(free, state.rules.node_workers)",
        "whole_nodes(free, 1)",
    ),
    Mutation(
        "waits for a long step as for a short one",
        state,
        "return max(rules.enter_seconds, rules.enter_steps * status.step_seconds)",
        "return rules.enter_seconds",
    ),
    Mutation(
        "waits for a first step as for any other",
        state,
        "return rules.first_step_seconds",
        "return rules.enter_seconds",
    ),
    Mutation(
        "throws out the last who have the state since they do not come",
        lost_workers,
        "if worker.enter_by < deadline and not is_spared:",
        "if worker.enter_by < deadline:",
    ),
    Mutation(
        "never throws out one that has the state and does not come",
        lost_workers,
        "if all(is_late) else frozenset()",
        "",
    ),
    Mutation(
        "takes the highest state, and be it that of one alone",
        state_choice,
        "key=lambda name: (holders[name], name)",
        "key=lambda name: name",
    ),
    Mutation(
        "takes a domain for whole that is healed by half",
        state_choice,
        "return names[0] if len(set(names)) == 1 else NO_STATE",
        "return max(names)",
    ),
    Mutation(
        "a worker hears an older generation after a newer one",
        follower,
        "if generation.number > self.newest.number:",
        "if generation.number != self.newest.number:",
    ),
]


@dataclass(frozen=True)
class Catch:
    """A history that shows a defect."""

    seed: int
    history: History
    what: str
    """What did not hold in it."""


SEEDS = Path(__file__).with_name("catching_seeds.json")
"""Seed of a history that shows the defect, for each mutation. `make simulate` writes it."""


def catch(mutation: Mutation, most: int) -> Catch | None:
    """Replay the history that showed the defect before. If it does so no longer, because a change
    to the simulation has changed all histories, search the first `most` of them."""
    seed = json.loads(SEEDS.read_text()).get(mutation.name)
    known = [] if seed is None else [seed]
    return _first_of(mutation, [*known, *range(most)])


def first_catch(mutation: Mutation, most: int) -> Catch | None:
    return _first_of(mutation, range(most))


def _first_of(mutation: Mutation, seeds: Iterable[int]) -> Catch | None:
    parts = mutation.parts()
    for seed in seeds:
        history = mutation.make_history(seed)
        what = failure(history, *parts)
        if what is not None:
            return Catch(seed, history, what)
    return None
