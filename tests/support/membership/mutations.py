"""Defects put into the machine and the follower, one at a time: the simulator must find each."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import cast

from headway.member import follow, lineage, machine
from headway.member.follow import Follower
from headway.member.machine import Machine
from support.membership.checks import CHOOSE, Choose
from support.membership.history import History, failure, random_history


@dataclass(frozen=True)
class Mutation:
    name: str
    module: ModuleType
    old: str
    new: str

    def parts(self) -> tuple[type[Machine], type[Follower], Choose]:
        assert self.module.__file__ is not None
        with open(self.module.__file__, encoding="utf-8") as file:
            source = file.read()
        assert source.count(self.old) == 1, f"{self.name}: the code it changes is not there once"
        mutated = ModuleType(self.module.__name__)
        code = compile(source.replace(self.old, self.new), self.module.__file__, "exec")
        exec(code, mutated.__dict__)
        choose = tuple(getattr(mutated, one.__name__, one) for one in CHOOSE)
        machine, follower = (
            getattr(mutated, "Machine", Machine),
            getattr(mutated, "Follower", Follower),
        )
        return machine, follower, cast(Choose, choose)


MUTATIONS = [
    Mutation(
        "announces a generation before it is written",
        machine,
        "decisions.append(Write(self._writing))",
        "decisions += [Write(self._writing), Publish(self._writing)]",
    ),
    Mutation(
        "goes on after another has written",
        machine,
        'return self._step_down(f"generation {event.number} is there from somebody else")',
        "return self._written(event.number, now)",
    ),
    Mutation(
        "lets newcomers heal others",
        machine,
        "domain.holds or self._healed.issuperset(domain.pods)",
        "True",
    ),
    Mutation(
        "takes those healed in an earlier generation for healed in this one",
        machine,
        "self._entered, self._healed, self._went = set(), set(), False",
        "self._entered, self._went = set(), False",
    ),
    Mutation(
        "forgets who had the state",
        machine,
        "domain.holds or self._healed.issuperset(domain.pods)",
        "self._healed.issuperset(domain.pods)",
    ),
    Mutation(
        "lets one lead that has not the state",
        machine,
        "(holders or [0])[0])",
        "len(domains) - 1 if domains else 0)",
    ),
    Mutation(
        "says go when the first has come",
        machine,
        "self._went = len(self._entered) == len(self._members)",
        "self._went = True",
    ),
    Mutation(
        "does not forgive its own pauses",
        machine,
        "        if pause <= self.rules.idle_seconds + self.rules.pause_seconds:\n",
        "        if True:\n",
    ),
    Mutation(
        "judges before it has read what came in meanwhile",
        machine,
        "        pause = now - self._asked\n",
        "        pause = now - max(self._asked, self.wake)\n",
    ),
    Mutation(
        "gives no window to come back after its own restart",
        machine,
        "self._absent = now + rules.absent_seconds",
        "self._absent = now",
    ),
    Mutation(
        "takes those who have not come back for lost, and others are just coming",
        machine,
        "            self._came_back = now\n",
        "            self._came_back = min(self._came_back, now)\n",
    ),
    Mutation(
        "gives no time to connect again",
        machine,
        "wait = 0.0 if self._complained else rules.reconnect_seconds",
        "wait = 0.0",
    ),
    Mutation(
        "is as impatient without complaints",
        machine,
        "rules.suspected_seconds if is_short else rules.silence_seconds",
        "rules.suspected_seconds",
    ),
    Mutation(
        "is as patient with who is not heard in a generation that all are called to",
        machine,
        "is_short = is_missed or pod.heard < self._called_at",
        "is_short = is_missed",
    ),
    Mutation(
        "is as impatient with those who finish their step first",
        machine,
        "self._called_at = now if are_all_called else -inf",
        "self._called_at = now",
    ),
    Mutation(
        "is as patient when somebody complains",
        machine,
        "is_missed = self._complained or self._tries or self._waiting",
        "is_missed = self._waiting",
    ),
    Mutation(
        "is as patient while somebody waits",
        machine,
        "is_missed = self._complained or self._tries or self._waiting",
        "is_missed = self._complained or self._tries",
    ),
    Mutation(
        "takes one that waits for one that complains",
        machine,
        "if status.trouble == number:",
        "if number in (status.trouble, status.waits):",
    ),
    Mutation(
        "gives no time to connect again while somebody waits",
        machine,
        "wait = 0.0 if self._complained else rules.reconnect_seconds",
        "wait = 0.0 if self._complained or self._waiting else rules.reconnect_seconds",
    ),
    Mutation(
        "does not hear that one waits no longer",
        machine,
        "        else:\n            self._waiting.discard(pod.name)\n",
        "",
    ),
    Mutation(
        "takes the end of an old session for the end of the new one",
        machine,
        "if pod is None or pod.session != event.session:",
        "if pod is None:",
    ),
    Mutation(
        "does not count the silent",
        machine,
        'deadline, why = pod.heard + patience, "silent"',
        'deadline, why = inf, "silent"',
    ),
    Mutation(
        "does not answer complaints",
        machine,
        "        if self._trouble < inf:\n            return self._try_again(now)\n",
        "",
    ),
    Mutation(
        "heeds complaints of old generations",
        machine,
        "if status.trouble == number:",
        "if status.trouble > 0:",
    ),
    Mutation(
        "never gives up on one whom its peers cannot reach",
        machine,
        "if self._tries > rules.tries and worst is not None:",
        "if False:",
    ),
    Mutation(
        "waits for ever for one that does not come",
        machine,
        "if pod.enter_by < deadline and pod.name not in spared:",
        "if False:",
    ),
    Mutation(
        "remembers for ever that a pod was lost",
        machine,
        'pod.gone, pod.status, pod.ready = "", NOTHING, inf',
        "pod.status, pod.ready = NOTHING, inf",
    ),
    Mutation(
        "does not take those who leave out",
        machine,
        "pod.gone or (pod.status.leaving and has_heirs) for pod in pods",
        "pod.gone for pod in pods",
    ),
    Mutation(
        "lets the last that has the state leave with it",
        machine,
        "return not holders or any(self._is_kept(domain, has_heirs=True) for domain in holders)",
        "return True",
    ),
    Mutation(
        "does not admit anyone after the first",
        machine,
        "        if self.established:\n            return self._admit(now)\n",
        "        if not self._members:\n            return self._admit(now)\n",
    ),
    Mutation(
        "makes domains of pods of different nodes",
        machine,
        "whole_nodes(free, self.rules.node_pods)",
        "whole_nodes(free, 1)",
    ),
    Mutation(
        "waits for a long step as for a short one",
        machine,
        "return max(rules.enter_seconds, rules.enter_steps * status.step_seconds)",
        "return rules.enter_seconds",
    ),
    Mutation(
        "waits for a first step as for any other",
        machine,
        "return rules.first_step_seconds",
        "return rules.enter_seconds",
    ),
    Mutation(
        "throws out the last who have the state since they do not come",
        machine,
        "if pod.enter_by < deadline and pod.name not in spared:",
        "if pod.enter_by < deadline:",
    ),
    Mutation(
        "never throws out one that has the state and does not come",
        machine,
        "if all(is_late) else frozenset()",
        "",
    ),
    Mutation(
        "takes the highest state, and be it that of one alone",
        lineage,
        "key=lambda name: (holders[name], name)",
        "key=lambda name: name",
    ),
    Mutation(
        "takes a domain for whole that is healed by half",
        lineage,
        "return names[0] if len(set(names)) == 1 else NO_STATE",
        "return max(names)",
    ),
    Mutation(
        "a pod hears an older generation after a newer one",
        follow,
        "if generation.number > self.newest.number:",
        "if generation.number != self.newest.number:",
    ),
]


def first_catch(mutation: Mutation, most: int, start: int = 0) -> tuple[int, History, str] | None:
    """Number of histories until one shows the defect, that history, and what did not hold."""
    parts = mutation.parts()
    for count in range(most):
        history = random_history(start + count)
        found = failure(history, *parts)
        if found is not None:
            return count + 1, history, found
    return None
