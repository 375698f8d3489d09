"""Decides who is in the run. Pure: events and times in, decisions out.

Whoever drives it calls `handle` for each event, and `look` at the time that `wake` names. An event
costs the same whatever the number of members; `look` goes through all of them, a few times a second
at most, and is the only place where anything is decided.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import inf

from headway.member.events import (
    Close,
    Closed,
    Decision,
    Dismissed,
    Event,
    Go,
    Goodbye,
    Opened,
    Publish,
    Refused,
    Status,
    StepDown,
    Tell,
    Told,
    Write,
    Written,
)
from headway.member.generation import Domain, Generation
from headway.member.nodes import Node, domains_of, seat_of, whole_nodes
from headway.member.rules import Rules

NOTHING = Status()


@dataclass(slots=True)
class Pod:
    name: str
    session: int | None
    heard: float
    status: Status = NOTHING
    closed: float = inf
    """When its session closed; still inf if it has had none since the coordinator started."""
    ready: float = inf
    """Since when it could train."""
    called_to: int = 0
    enter_by: float = inf
    """When it must have entered the generation that it is called to, or a later one."""
    gone: str = ""
    """Why it cannot stay, once that is certain."""

    @property
    def is_absent(self) -> bool:
        """It was a member when the coordinator started, and has not come back yet."""
        return self.session is None and self.closed == inf


class Machine:
    def __init__(self, rules: Rules, incarnation: int, current: Generation, now: float) -> None:
        """`current` is what the record holds; perhaps nobody has heard of it yet."""
        self.rules = rules
        self.incarnation = incarnation
        self.current = current
        self.pods = {name: Pod(name, None, heard=now) for name in current.pods()}
        self._members = frozenset(self.pods)
        self._seats = _seats(self._members)
        self._silent: OrderedDict[str, None] = OrderedDict()
        """Pods with a session, the longest silent first."""
        self._entered: set[str] = set()
        """The current generation, like all below it."""
        self._went = False
        self._newcomers: AbstractSet[str] = set()
        self._healed: set[str] = set()
        self._trouble = inf
        """The time of the first complaint."""
        self._complained: dict[str, tuple[str, ...]] = {}
        """Who complains, and of whom."""
        self._waiting: set[str] = set()
        """Whose collective takes long, in the current generation or in one that still works."""
        self._recent: dict[int, frozenset[str] | None] = dict.fromkeys(current.sound)
        """Generations that may still be at work, having lost nobody, with their members; None: from
        before a restart, and not known."""
        self._recent[current.number] = self._members
        self._called_at = -inf
        """When all were called to the current generation, since nobody can work on in another."""
        self._tries = 0
        self._blame: Counter[str] = Counter()
        self._barred: dict[str, tuple[int, float]] = {}
        """How often, and until when."""
        self._writing: Generation | None = None
        self._stepped_down = False
        self._absent = now + rules.absent_seconds
        self._comeback = inf
        self._came_back = inf
        """When the last member did."""
        self._asked = now
        self._unread_until = now
        self._changed = True

    @property
    def wake(self) -> float:
        """When to `look`: soon after a change, and often enough to notice own pauses."""
        rules = self.rules
        return self._asked + (rules.look_seconds if self._changed else rules.idle_seconds)

    @property
    def went(self) -> bool:
        """All members of the current generation have entered it."""
        return self._went

    @property
    def established(self) -> bool:
        """All members of the current generation have the run's state in it."""
        return len(self._healed) == len(self._members)

    def handle(self, event: Event, now: float) -> list[Decision]:
        if self._stepped_down:
            return []
        self._forgive_own_pause(now)
        match event:
            case Written():
                return self._written(event.number, now)
            case Refused():
                return self._step_down(f"generation {event.number} is there from somebody else")
            case Opened():
                return self._opened(event, now)
            case Dismissed():
                self._lose(event.pod, "was replaced")
                return []
        pod = self.pods.get(event.pod)
        if pod is None or pod.session != event.session:
            stray = isinstance(event, Told)
            return [Close(event.session, "not the newest session of this pod")] if stray else []
        match event:
            case Told():
                return self._told(pod, event.status, now)
            case Goodbye():
                pod.gone = "said goodbye"
                self._drop_session(pod, now)
            case Closed():
                self._drop_session(pod, now)
        return []

    def look(self, now: float) -> list[Decision]:
        """Decides what is to be decided by now."""
        if self._stepped_down:
            return []
        self._forgive_own_pause(now)
        self._asked = now
        self._changed = False
        decisions = self._close_silent_spares(now)
        if now < self._unread_until:
            return decisions
        if self._writing is None:
            self._judge(now)
            self._writing = self._next(now)
            if self._writing is not None:
                decisions.append(Write(self._writing))
        return decisions

    # What pods say

    def _opened(self, event: Opened, now: float) -> list[Decision]:
        newest = self._writing or self.current
        if event.status.seen > newest.number:
            return self._step_down(
                f"{event.pod} has seen generation {event.status.seen}, but the record ends with "
                f"{newest.number}: somebody has put an older one in its place"
            )
        pod = self.pods.setdefault(event.pod, Pod(event.pod, None, now))
        decisions: list[Decision] = []
        if pod.session is not None:
            decisions.append(Close(pod.session, "replaced by a newer session of the same pod"))
        is_back = pod.is_absent
        pod.session, pod.closed = event.session, inf
        self._silent[pod.name] = None
        if pod.name in self._members:
            self._came_back = now
            self._comeback = min(self._comeback, now + self.rules.comeback_seconds)
        self._replace_in_seat(pod.name)
        decisions += [Tell(event.session), *self._told(pod, event.status, now)]
        if is_back and pod.name in self._members and len(self._recent) == 1:
            self._call({pod.name}, now)
        return decisions

    def _replace_in_seat(self, name: str) -> None:
        """A process that was started again: the one before it has ended, also if nobody said so."""
        seat, start = seat_of(name)
        before = self._seats.get(seat)
        if before is not None and seat_of(before)[1] < start:
            self._lose(before, "was started again")

    def _lose(self, name: str, why: str) -> None:
        pod = self.pods.get(name)
        if pod is not None:
            pod.gone = pod.gone or why
            self._changed = True

    def _told(self, pod: Pod, status: Status, now: float) -> list[Decision]:
        pod.heard = now
        self._silent.move_to_end(pod.name)
        if status == pod.status:
            return self._remind(pod)
        pod.status = status
        pod.ready = min(pod.ready, now) if status.ready else inf
        self._changed = True
        if pod.name not in self._members:
            return []
        # Complaints of an older generation are answered by the newer one that is there.
        number = self.current.number
        if status.trouble == number:
            self._trouble = min(self._trouble, now)
            self._complained[pod.name] = status.peers
        elif self._complained.pop(pod.name, None) is not None and not self._complained:
            self._trouble = inf  # it went on after all
        if status.waits and status.waits in self._recent:
            self._waiting.add(pod.name)
        else:
            self._waiting.discard(pod.name)
        if status.healed == number:
            self._healed.add(pod.name)
            if self.established:
                self._recent = {number: self._members}
                self._tries = 0
                self._blame.clear()
        if pod.enter_by < inf and status.entered >= pod.called_to:
            pod.enter_by = inf
            if status.entered < number and len(self._recent) == 1:
                self._call({pod.name}, now)
        if status.seen == number and pod.name in self._newcomers:
            self._call({pod.name}, now)
        if status.entered == number and not self._went:
            pod.enter_by = inf
            self._entered.add(pod.name)
            self._went = len(self._entered) == len(self._members)
            return [Go(number)] if self._went else []
        return []

    def _remind(self, pod: Pod) -> list[Decision]:
        """Says again what a pod does not seem to have heard."""
        behind = pod.status.seen < self.current.number or (
            self._went and pod.status.went < self.current.number and pod.name in self._members
        )
        return [Tell(pod.session)] if behind and pod.session is not None else []

    def _drop_session(self, pod: Pod, now: float) -> None:
        pod.session, pod.closed = None, now
        # A process that connects again says anew what it is.
        pod.status, pod.ready = NOTHING, inf
        self._silent.pop(pod.name, None)
        self._waiting.discard(pod.name)
        self._changed = True
        if pod.name not in self._members and not self._is_being_admitted(pod.name):
            del self.pods[pod.name]
            self._end_without(pod.name, now)

    def _end_without(self, name: str, now: float) -> None:
        """One that was to leave has left: nobody can work on in a generation that it was in."""
        self._recent = {
            number: members
            for number, members in self._recent.items()
            if members is None or name not in members
        }
        if len(self._recent) == 1 and not self._went:
            self._call(self._members, now)

    def _is_being_admitted(self, name: str) -> bool:
        return self._writing is not None and self._writing.domain_of(name) is not None

    # Who is lost

    def _forgive_own_pause(self, now: float) -> None:
        """If nobody asked for long, the coordinator itself was held up: nobody was silent
        meanwhile, and what has come in must be read before anyone is judged."""
        pause = now - self._asked
        if pause <= self.rules.idle_seconds + self.rules.pause_seconds:
            return
        self._asked = now
        self._unread_until = now + self.rules.pause_seconds
        self._absent += pause
        self._comeback += pause
        self._came_back += pause
        for pod in self.pods.values():
            pod.heard += pause
            pod.closed += pause
            pod.enter_by += pause

    def _judge(self, now: float) -> None:
        """Marks the members that are lost."""
        rules = self.rules
        spared: AbstractSet[str] = frozenset()
        is_missed = self._complained or self._tries or self._waiting
        recently = now - rules.suspected_seconds
        alone = not any(pod.session is not None and pod.heard > recently for pod in self._keepers())
        pods = sorted(
            (self.pods[name] for name in self._members), key=lambda one: one.enter_by <= now
        )
        num_in_time = sum(pod.enter_by > now for pod in pods)
        for index, pod in enumerate(pods):
            if index == num_in_time:
                # Those who do not come are judged last, when it is known who else is lost.
                spared = self._last_holders(now)
            if pod.session is not None:
                # Whoever is on the machine of one that was lost is heard no more after it.
                is_short = is_missed or pod.heard < self._called_at
                patience = rules.suspected_seconds if is_short else rules.silence_seconds
                deadline, why = pod.heard + patience, "silent"
            elif not pod.is_absent:
                wait = 0.0 if self._complained else rules.reconnect_seconds
                deadline, why = pod.closed + wait, "its session closed"
            else:
                back = min(self._comeback, self._came_back + rules.lull_seconds)
                deadline = min(self._absent, back) if is_missed else self._absent
                why = "did not come back to the new coordinator"
            if alone:
                deadline = max(deadline, pod.heard + rules.alone_seconds)
            if pod.enter_by < deadline and pod.name not in spared:
                deadline, why = pod.enter_by, "did not come to the generation"
            if now >= deadline:
                pod.gone = pod.gone or why
                if deadline == pod.enter_by:
                    self._bar(pod.name, now)
            elif deadline < now + rules.idle_seconds:
                self._changed = True  # looked at again soon

    def _last_holders(self, now: float) -> AbstractSet[str]:
        """Those who have the run's state, if none of them has come in time: without them the run
        would lose ground. Their own watchdogs end those that are stuck."""
        holders = self._holders()
        is_late = [
            any(self.pods[name].gone or self.pods[name].enter_by <= now for name in pods)
            for pods in holders
        ]
        return {name for pods in holders for name in pods} if all(is_late) else frozenset()

    def _holders(self) -> list[tuple[str, ...]]:
        """Domains that have the run's state: as a whole, for a part of it is none."""
        return [domain.pods for domain in self.current.domains if self._holds(domain)]

    def _bar(self, name: str, now: float) -> None:
        """Longer each time: whoever holds all others up shall not do so for ever."""
        times, _ = self._barred.get(name, (0, now))
        self._barred[name] = (times + 1, now + self.rules.barred_seconds * 2**times)

    def _keepers(self) -> list[Pod]:
        """Those without whom the run would lose ground: who have its state, if anyone has."""
        keepers = {name for pods in self._holders() for name in pods}
        return [self.pods[name] for name in keepers or self._members]

    def _close_silent_spares(self, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        for name in list(self._silent):
            pod = self.pods[name]
            if pod.heard + self.rules.silence_seconds > now:
                break
            if pod.session is not None and name not in self._members:
                decisions.append(Close(pod.session, "silent"))
                self._drop_session(pod, now)
        return decisions

    # What follows

    def _next(self, now: float) -> Generation | None:
        """The generation to be made now, if any."""
        gone = [name for name in self._members if self.pods[name].gone]
        if gone:
            return self._generation(now, self._sound_without(gone), _lost(self.pods[gone[0]], gone))
        if self._trouble < inf:
            return self._try_again(now)
        leaving = [name for name in self._members if self.pods[name].status.leaving]
        if leaving and self._has_heirs():
            return self._generation(now, self._sound(), _some(leaving, "leaves as planned"))
        if self.established:
            return self._admit(now)
        return None

    def _try_again(self, now: float) -> Generation | None:
        """Complaints, and nobody is lost: the same members anew, or without the most named one."""
        rules = self.rules
        if not self._went and not self.current.sound:
            return None  # the others are called already, and will come or be found missing
        pause = min(rules.trouble_seconds * 2**self._tries, rules.longest_trouble_seconds)
        if now < max(self._trouble + pause, self._all_heard_since(self._trouble)):
            self._changed = True
            return None
        self._tries += 1
        self._blame.update(name for peers in self._complained.values() for name in set(peers))
        worst = self._most_blamed()
        if self._tries > rules.tries and worst is not None:
            self.pods[worst].gone = "its peers cannot reach it"
            self._bar(worst, now)
            return self._generation(now, (), _lost(self.pods[worst], [worst]))
        by = _some(sorted(self._complained), "complains")
        return self._generation(now, (), f"tried again: {by}")

    def _all_heard_since(self, time: float) -> float:
        """`time` if everyone has been heard since then; else never. Whoever is not will be found
        silent soon, and a new try with it would be in vain."""
        return time if all(self.pods[name].heard >= time for name in self._members) else inf

    def _most_blamed(self) -> str | None:
        """Among those equally blamed the newest: the others have worked together before."""
        since = {name: domain.since for domain in self.current.domains for name in domain.pods}
        blamed = [name for name in self._blame if name in self._members]
        return max(blamed, key=lambda name: (self._blame[name], since[name], name), default=None)

    def _admit(self, now: float) -> Generation | None:
        rules = self.rules
        room = rules.max_domains - len(self.current.domains)
        if room <= 0:
            return None
        nodes = self._free_nodes(now, self._members)
        num_new = min(len(domains_of(nodes, rules.domain_pods)), room)
        if not num_new:
            return None
        wait = rules.join_seconds
        if not self._members:
            if num_new < rules.min_domains:
                return None
            is_enough = num_new >= (rules.first_domains or rules.max_domains)
            wait = 0.0 if is_enough else rules.gather_seconds
        if now < nodes[0].ready + wait:
            self._changed = True
            return None
        ready = [pod for node in nodes for pod in node.pods]
        return self._generation(now, self._sound(), _some(ready, "is ready"))

    def _free_nodes(self, now: float, used: AbstractSet[str]) -> list[Node]:
        """Nodes whose pods could all be in a new domain, the longest ready first."""
        free = (
            (pod.ready, pod.name)
            for pod in self.pods.values()
            if pod.session is not None
            and pod.ready < inf
            and not pod.gone
            and not pod.status.leaving
            and pod.name not in used
            and (pod.name not in self._barred or self._barred[pod.name][1] <= now)
        )
        return whole_nodes(free, self.rules.node_pods)

    def _generation(self, now: float, sound: tuple[int, ...], reason: str) -> Generation:
        rules, number = self.rules, self.current.number + 1
        has_heirs = self._has_heirs()
        kept = [domain for domain in self.current.domains if self._is_kept(domain, has_heirs)]
        domains = [Domain(domain.pods, domain.since, self._holds(domain)) for domain in kept]
        nodes = self._free_nodes(now, {name for domain in kept for name in domain.pods})
        new = domains_of(nodes, rules.domain_pods)[: max(0, rules.max_domains - len(domains))]
        domains += [Domain(pods, number, holds=False) for pods in new]
        return Generation(
            number=number,
            incarnation=self.incarnation,
            domains=tuple(domains),
            leader=self._leader(domains),
            paused=len(domains) < rules.min_domains,
            sound=sound,
            reason=reason,
        )

    def _is_kept(self, domain: Domain, has_heirs: bool) -> bool:
        pods = [self.pods[name] for name in domain.pods]
        return not any(pod.gone or (pod.status.leaving and has_heirs) for pod in pods)

    def _has_heirs(self) -> bool:
        """Whether anyone has the run's state who stays; or nobody has it. Else whoever leaves heals
        the others first, or saves and says goodbye."""
        holders = [
            domain
            for domain in self.current.domains
            if self._holds(domain) and self._is_kept(domain, has_heirs=False)
        ]
        return not holders or any(self._is_kept(domain, has_heirs=True) for domain in holders)

    def _holds(self, domain: Domain) -> bool:
        return domain.holds or self._healed.issuperset(domain.pods)

    def _leader(self, domains: list[Domain]) -> int:
        """The one that led, as long as it can; else the longest member that holds the state."""
        led = self.current.domains[self.current.leader].pods if self.current.domains else ()
        holders = [index for index, domain in enumerate(domains) if domain.holds]
        return next((index for index in holders if domains[index].pods == led), (holders or [0])[0])

    def _sound(self) -> tuple[int, ...]:
        """Those whose members go over when they have finished their step."""
        return tuple(number for number, members in self._recent.items() if members != frozenset())

    def _sound_without(self, gone: list[str]) -> tuple[int, ...]:
        return tuple(
            number
            for number, members in self._recent.items()
            if members and members.isdisjoint(gone)
        )

    def _written(self, number: int, now: float) -> list[Decision]:
        generation = self._writing
        if generation is None or generation.number != number:
            return []
        before, self.current, self._writing = self._members, generation, None
        self._members = frozenset(generation.pods())
        self._seats = _seats(self._members)
        self._entered, self._healed, self._went = set(), set(), False
        self._trouble, self._complained = inf, {}
        if not self._members:  # whoever comes now has had no trouble with anyone
            self._tries = 0
            self._blame.clear()
        self._recent = {
            sound: members for sound, members in self._recent.items() if sound in generation.sound
        }
        self._recent[number] = self._members
        self._waiting = {
            name
            for name in self._waiting & self._members
            if self.pods[name].status.waits in self._recent
        }
        for name in before - self._members:
            self._let_go(self.pods[name])
        self._newcomers = self._members - before
        # The others finish their step, if they can.
        are_all_called = len(self._recent) == 1
        self._called_at = now if are_all_called else -inf
        self._call(self._members if are_all_called else self._newcomers, now)
        self._changed = True
        return [Publish(generation)]

    def _call(self, names: AbstractSet[str], now: float) -> None:
        for pod in (self.pods[name] for name in names - self._entered):
            enter_by = now + self._patience_to_enter(pod)
            if enter_by < pod.enter_by and not pod.is_absent:
                pod.called_to, pod.enter_by = self.current.number, enter_by

    def _patience_to_enter(self, pod: Pod) -> float:
        rules, status = self.rules, pod.status
        if pod.name in self._newcomers or (status.seen and not status.entered):
            # It has nothing else to do, once it knows: thousands at once are told one by one.
            knows = status.seen == self.current.number
            return rules.idle_enter_seconds if knows else rules.enter_seconds
        if not status.step_seconds:
            return rules.first_step_seconds
        return max(rules.enter_seconds, rules.enter_steps * status.step_seconds)

    def _let_go(self, pod: Pod) -> None:
        """What it has no longer counts; if it lives, it hears so, and may ask to join anew."""
        if pod.session is None:
            del self.pods[pod.name]
            return
        if pod.gone:
            # It must hear of it first.
            pod.gone, pod.status, pod.ready = "", NOTHING, inf
        pod.enter_by = inf

    def _step_down(self, reason: str) -> list[Decision]:
        self._stepped_down = True
        return [StepDown(reason)]


def _seats(members: AbstractSet[str]) -> dict[str, str]:
    return {seat_of(name)[0]: name for name in members}


def _lost(pod: Pod, gone: list[str]) -> str:
    return f"{_some(gone, 'is lost')}: {pod.gone}"


def _some(names: list[str], what: str) -> str:
    return f"{names[0]} {what}" + (f", and {len(names) - 1} more" if len(names) > 1 else "")
