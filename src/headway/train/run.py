"""One worker's part of a run: everything the loop needs, opened once and closed at the end; and the
beginning of each world."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from headway.clock import Clock
from headway.data.reading.tokenset import Reading
from headway.errors import BadInput, Exit, PeerLost
from headway.member.lineage import NO_STATE, Name
from headway.spec.resolve import Resolved
from headway.state.code import code_digest
from headway.state.generations import begin_generation
from headway.state.rundir import Journal, RunDirectory, SentJournal, send_logs
from headway.train.activations import ActivationWatch
from headway.train.build import build
from headway.train.copies import note_new_arithmetic
from headway.train.evaluate import Evaluator, note_new_sample
from headway.train.export import describe_model
from headway.train.fingerprint import Diverged
from headway.train.heal import choose, hand_over, held_state
from headway.train.meter import Meter
from headway.train.models import Built
from headway.train.preempt import StopRequest
from headway.train.record import Recorder
from headway.train.restore import restore_newest
from headway.train.save import Saver, SaveTimes
from headway.train.step import Training
from headway.train.telling import Telling
from headway.train.watchdog import Watchdog
from headway.train.world import Place, World
from headway.train.worlds import Worlds

LEAD_SECONDS = 600.0
"""For a store that is away when the members change; a run that starts does not wait."""


@dataclass
class WorkerRun:
    """One worker's part of a run, from start to end."""

    training: Training
    built: Built
    stop: StopRequest
    directory: RunDirectory
    journal: SentJournal
    evaluator: Evaluator
    meter: Meter
    saver: Saver
    saves: SaveTimes
    recorder: Recorder
    telling: Telling
    activations: ActivationWatch
    clock: Clock
    watchdog: Watchdog
    start_seconds: dict[str, float] = field(default_factory=dict)
    evaluated: tuple[Name, float] | None = None
    """The newest state that was evaluated, and its mean loss."""
    committed_at: float | None = None
    """When this worker has committed a step last."""
    has_discarded: bool = False
    """Whether a step was begun since then, and was lost with a peer."""

    @property
    def is_over(self) -> bool:
        return self.training.step >= self.training.total_steps

    @property
    def validation_loss(self) -> float | None:
        """Of the state that this worker has now, if it was evaluated."""
        name = (self.training.step, self.training.committed_in)
        if self.evaluated is None or self.evaluated[0] != name:
            return None
        return self.evaluated[1] if math.isfinite(self.evaluated[1]) else None


def open_run(
    resolved: Resolved,
    place: Place,
    number: int,
    stop: StopRequest,
    clock: Clock,
    import_seconds: float = 0.0,
    hangs: Callable[[int], None] = lambda times: None,
) -> WorkerRun:
    """Builds. COLLECTIVE in the domain when the model is sharded. `number`: of this worker on its
    machine. `hangs` is told when no step is committed for long."""
    directory = RunDirectory.open(resolved.run_directory)
    journal = SentJournal(directory.events, clock)
    began = clock.monotonic()
    reading = Reading(rank=number, trusted=True, warn=_warning(number, journal), clock=clock)
    training, built = build(resolved, place, reading)
    evaluator = Evaluator(resolved, place, stop, reading)
    return WorkerRun(
        training,
        built,
        stop,
        directory,
        journal,
        evaluator,
        Meter(resolved, built.size, place, clock),
        Saver(directory, journal, clock, evaluator.sample),
        SaveTimes(resolved.run.checkpoint, clock),
        Recorder(directory, resolved, _ledger_facts(training), clock),
        Telling(training.total_steps, resolved.tokens_per_step, clock),
        ActivationWatch(training, built),
        clock,
        Watchdog(clock, hangs),
        {"import": import_seconds, "build": clock.monotonic() - began},
    )


def begin(run: WorkerRun, world: World, worlds: Worlds) -> None:
    """COLLECTIVE. All members of a new world have the same state when this returns, and are about
    to go on from it."""
    training, began = run.training, run.clock.monotonic()
    was_healed, resumed_from = False, None
    if not _take_state_of_most(run, world, worlds):
        resumed_from = _restore(run, world)
    else:
        was_healed = True
    # COLLECTIVE: all who come here hold this step, so it is settled.
    world.wait_for_all()
    worlds.has_state()
    training.optimizer.zero_grad(set_to_none=True)
    run.meter.num_devices = world.num_workers
    if run.saver.tried is not None and run.saver.tried[0] > training.step:
        run.saves.owed = True  # what was saved beyond it does not count
    run.saver.begin(world)
    run.saver.settled(training.step)
    if not run.is_over:
        training.feed.expect(training.step, world.share(training.feed.num_slices))
    run.recorder.begin(world, training.step)
    run.telling.begin(world, training.step)
    if world.is_first:
        _lead(run, world, run.clock.now(), LEAD_SECONDS if was_healed else 0.0)
    if world.is_first and not was_healed:
        describe_model(run.built, training.feed.set.tokenizer_folder, run.directory)
        run.start_seconds["load"] = run.clock.monotonic() - began
        run.journal.note(
            "started",
            generation=world.generation,
            resumed_from=resumed_from,
            seconds={cause: round(seconds, 3) for cause, seconds in run.start_seconds.items()},
            **_facts(training, run.built, run.meter),
        )
    elif world.is_first:
        run.journal.note(
            "changed",
            generation=world.generation,
            step=training.step,
            workers=world.num_workers,
            reason=worlds.reason,
            discarded=run.has_discarded,
            seconds=round(run.clock.monotonic() - (run.committed_at or began), 3),
        )


def _lead(run: WorkerRun, world: World, now: float, seconds: float) -> None:
    """Writes that the generation has begun, and what its predecessors could not. If the store is
    away for so long at most, the others wait in the next step."""
    deadline, pause = run.clock.monotonic() + seconds, 0.5
    while True:
        try:
            step, workers = run.training.step, world.num_workers
            begin_generation(run.directory, world.generation, step, workers, now)
            run.recorder.catch_up(step)
            return
        except OSError:
            if run.clock.monotonic() + pause > deadline:
                raise
            world.require_whole()
            run.clock.sleep(pause)
            pause = min(2 * pause, 10.0)


def _take_state_of_most(run: WorkerRun, world: World, worlds: Worlds) -> bool:
    """COLLECTIVE. The state that most members hold, if anyone holds one."""
    training, lost = run.training, None
    held = held_state(training, world.domain, worlds.holds)
    is_held = held != NO_STATE
    if world.replicas is not None:
        try:
            choice = choose(training, world.replicas, held)
            is_held = choice is not None
            if choice is not None:
                run.recorder.settle(upto=choice.step)
                training.evaluated_step = choice.evaluated_step
                if choice.needy:
                    is_needy = world.replicas.rank in choice.needy
                    notes = hand_over(training, world.replicas, choice, run.recorder.notes())
                    if is_needy:
                        run.recorder.take_over(notes)
        except PeerLost as error:
            lost = error
    world.agree(lost)
    return is_held


def _restore(run: WorkerRun, world: World) -> int | None:
    """COLLECTIVE. The newest checkpoint, or the beginning."""
    training = run.training
    was_at = training.step
    resumed = restore_newest(training, run.directory, world, run.journal)
    if resumed is None and was_at != 0:
        raise Diverged("nobody has the run's state, and none was saved: it begins anew")
    if training.step > training.total_steps:
        raise BadInput(
            f"train_for comes to {training.total_steps} steps, and the run stands at step "
            f"{training.step}",
            "a run can be extended, not shortened",
        )
    training.evaluated_step = training.step
    run.saver.saved = None
    if resumed is None:
        return None
    if world.is_first:
        note_new_sample(run.journal, resumed, run.evaluator.sample)
        note_new_arithmetic(run.journal, resumed, training.resolved.run.precision)
    run.saver.saved = (training.step, training.committed_in)
    return resumed.step


def _warning(number: int, journal: Journal) -> Callable[[str], None]:
    """What is wrong with the data's way here, but does not stop training: an event by the first
    worker, and in the others' logs."""

    def note(words: str) -> None:
        if number == 0:
            journal.note("data_warning", reason=words)
        else:
            logging.getLogger("headway").warning(words)

    return note


def close_run(run: WorkerRun) -> Exit:
    leads = run.recorder.leads
    run.recorder.close()
    if leads:
        run.journal.note("finished" if run.is_over else "stopped", step=run.training.step)
        send_logs(run.directory)
    else:
        run.journal.close()
    run.training.feed.close()
    run.evaluator.close()
    return Exit.DONE if run.is_over else Exit.STOPPED


def _facts(training: Training, built: Built, meter: Meter) -> dict[str, object]:
    """What the run turned out to be, for `status` and for whoever reads the events later."""
    return {
        "step": training.step,
        "total_steps": training.total_steps,
        "tokens_per_step": meter.tokens_per_step,
        "parameters": sum(parameter.numel() for parameter in built.module.parameters()),
        "samples": training.feed.epoch_samples,
        "tokens_left_out": training.feed.set.tail_tokens(training.feed.sequence_length),
        "workers": meter.num_devices,
        "device": meter.device_name,
        "no_mfu": meter.no_mfu_because(),
    }


def _ledger_facts(training: Training) -> dict[str, object]:
    resolved = training.resolved
    code = resolved.run.code
    return {
        "batch": resolved.global_batch,
        "samples": training.feed.epoch_samples,
        "length": resolved.run.data.sequence_length,
        "data": training.feed.set.digest,
        "code": code_digest(Path(resolved.folder, code.path)) if code else None,
    }
