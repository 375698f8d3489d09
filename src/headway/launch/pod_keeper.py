"""The pods of a run, as its keeper looks after them: what `pod_decisions` decides about them is
done, and what became of it noted."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from headway.clock import Clock
from headway.kube.client import KubeClient
from headway.kube.coordinator_set import alone_seconds, fewest_nodes
from headway.kube.names import SUSPECT, labels
from headway.kube.wrong_architecture import ARCHITECTURE_FIX
from headway.launch.below_minimum import BelowMinimum
from headway.launch.failure_domains import step_seen
from headway.launch.forgotten_markers import ForgottenMarkers
from headway.launch.keeper_notes import KeeperNotes
from headway.launch.pod_calls import Outcome, PodCalls
from headway.launch.pod_decisions import (
    BROKEN_SECONDS,
    CrashCounter,
    DismissPod,
    PodFacts,
    PodTracker,
    ReleasePod,
    RemoveMarker,
    ReplacePod,
    TakeBackPod,
    connected_pods,
    member_pods,
)
from headway.launch.pod_watch import PodWatch, pod_facts
from headway.launch.replacements import Replacements
from headway.launch.script_progress import ScriptEnd


class KeptCoordinator(Protocol):
    """What a look needs of the coordinator's process."""

    def keep_alive(self) -> str | None: ...

    def state(self) -> dict[str, Any] | None: ...

    def dismiss(self, place: str) -> None: ...


class PodKeeper:
    def __init__(
        self,
        kube: KubeClient,
        notes: KeeperNotes,
        spot_label: tuple[str, str] | None,
        clock: Clock,
    ) -> None:
        resolved = notes.resolved
        self.watch = PodWatch(kube, resolved.name, notes.say)
        self.calls = PodCalls(kube, spot_label, partial(step_seen, notes.directory), clock)
        self.replacements = Replacements()
        self._kube = kube
        self._notes = notes
        self._clock = clock
        self._tracker = PodTracker(resolved.run.resources.nodes.minimum, alone_seconds(resolved))
        self._has_found_markers = False
        self._forgotten_markers = ForgottenMarkers(kube, clock)
        self._crashes = CrashCounter()
        self._below_minimum = BelowMinimum()

    @property
    def has_markers(self) -> bool:
        """Lost pods are kept to mark their machines, or may be."""
        return bool(self._tracker.markers) or not self._has_found_markers

    @property
    def is_hopeless(self) -> bool:
        """Some node's pods keep failing, and the run makes no step in between."""
        return self._crashes.is_hopeless

    def end_suspicions(self) -> None:
        """Deletes all markers."""
        for marker in sorted(self._tracker.markers):
            self._kube.delete_pod(marker, grace_seconds=0)
            self._tracker.forget_marker(marker)

    def note_calls(self, coordinator: KeptCoordinator) -> None:
        """What became of the calls of earlier looks."""
        for outcome in self.calls.outcomes():
            self._note_outcome(outcome)
            if isinstance(outcome.call, TakeBackPod) and not outcome.is_back:
                coordinator.dismiss(outcome.call.pod)

    def find_markers(self) -> None:
        """Once: those of a keeper before this one."""
        pods = self.watch.pods()
        if pods is None or self._has_found_markers:
            return
        with self._notes.saying_what_fails():
            wanted = labels(self._notes.resolved.name) | {SUSPECT: "true"}
            self._tracker.find_markers(self._kube.pods(wanted, pod_facts)[0], pods)
            self._has_found_markers = True

    def look(self, coordinator: KeptCoordinator, is_idle: bool) -> None:
        """`is_idle`: the run was stopped or has ended."""
        state = coordinator.state()
        pods = self.watch.pods()
        if state is None or pods is None or not self._has_found_markers:
            return
        connected, members = connected_pods(state), member_pods(state)
        for decision in self._tracker.look(pods, connected, members, self._clock.now()):
            if not isinstance(decision, DismissPod):
                self.calls.start(decision)
            if isinstance(decision, DismissPod | ReplacePod):
                coordinator.dismiss(decision.pod)
        self.calls.forget({pod.name for pod in pods})
        self._delete_forgotten_markers(pods)
        for joined in self.replacements.look(pods, members & connected, self._clock.now()):
            took = round(joined.seconds, 3)
            self._notes.note("replaced", node=joined.node, pod=joined.pod, seconds=took)
        self._look_at_minimum(state, connected, members, is_idle)

    def _look_at_minimum(
        self, state: dict[str, Any], connected: set[str], members: set[str], is_idle: bool
    ) -> None:
        resolved, now = self._notes.resolved, self._clock.monotonic()
        minimum = fewest_nodes(resolved)
        # A generation of workers that restart is over while they still save.
        there = members & connected if resolved.is_live else connected
        has_enough = not resolved.is_live and len(there) >= minimum
        if self._below_minimum.look(state, is_idle, now, has_enough=has_enough):
            self._notes.note("below_minimum", nodes=len(there), minimum=minimum)

    def finish(self) -> None:
        """Waits for calls that are under way."""
        self.calls.wait()
        for outcome in self.calls.outcomes():
            self._note_outcome(outcome)
        self._notes.flush()

    def _delete_forgotten_markers(self, pods: list[PodFacts]) -> None:
        with self._notes.saying_what_fails():
            for name in self._forgotten_markers.delete(pods):
                self._notes.say(f"deleted {name}, which had kept pods off its machine for too long")

    def _note_outcome(self, outcome: Outcome) -> None:
        call, say = outcome.call, self._notes.say
        if outcome.error is not None:
            say(f"{call.pod}: {outcome.error}")
        elif isinstance(call, ReplacePod):
            say(f"{call.pod} is lost; {call.machine} gets no pods for a while")
            self._note_lost(call, "no longer answers")
            self.watch.forget(call.pod)
        elif isinstance(call, TakeBackPod) and outcome.is_back:
            say(f"{call.machine} is back, and may have pods again")
            self._tracker.trust(call.machine)
        elif isinstance(call, TakeBackPod):
            say(f"{call.pod} was scheduled on {call.machine}, and is taken back")
            self.watch.forget(call.pod)
        elif isinstance(call, RemoveMarker):
            self._tracker.forget_marker(call.pod)
        elif isinstance(call, ReleasePod) and call.how is not None:
            say(f"{call.pod} {call.how}")
            if (machine := call.broken_machine) is not None:
                hours = BROKEN_SECONDS / 3600
                self._notes.note("left_out", node=call.index, machine=machine, hours=hours)
                say(f"{machine} has a device that failed, and gets no pods for {hours:g} hours")
            self._note_lost(call, call.how)
            now = self._clock.monotonic()
            if why := self._counted(call, call.how, outcome.step, now):
                say(f"node {call.index}: {why}: the run stops")
                words = f"{why}\nhint: {ARCHITECTURE_FIX}" if call.never_runs else None
                with suppress(OSError):  # the store is away; the run stops nevertheless
                    self._notes.failed(call.index, words, why)

    def _counted(self, call: ReleasePod, how: str, step: int | None, now: float) -> str | None:
        """Why the run should stop."""
        if (
            call.never_runs and not step
        ):  # once it has trained, only this machine is of another kind
            return self._crashes.give_up(how)
        if not self._notes.resolved.is_script:
            return self._crashes.add(call.index, how, step, now)
        end = ScriptEnd(call.ran_seconds, is_error=True, was_killed=call.was_killed, words=how)
        return self._crashes.add_script(call.index, end, step, now)

    def _note_lost(self, call: ReplacePod | ReleasePod, how: str) -> None:
        self.replacements.lose(call.index, call.pod, self._clock.now())
        self._notes.lost(call.index, call.pod, how)
