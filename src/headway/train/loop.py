"""Training, from top to bottom: build, restore, then step, record, evaluate, save, stop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headway.clock import Clock
from headway.errors import Exit
from headway.spec.resolve import Resolved
from headway.spec.units import Interval
from headway.state.rundir import Journal, RunDirectory
from headway.train import checkpoint
from headway.train.build import build
from headway.train.evaluate import Evaluator
from headway.train.export import describe_model
from headway.train.meter import Meter
from headway.train.models import Built
from headway.train.preempt import StopRequest
from headway.train.record import Recorder, finite
from headway.train.step import Flags, StepResult, Training, take_step
from headway.train.world import World


@dataclass
class Session:
    """One worker's run from start to end."""

    training: Training
    world: World
    stop: StopRequest
    directory: RunDirectory
    journal: Journal
    evaluator: Evaluator
    meter: Meter
    saves: SaveTimes
    recorder: Recorder | None
    """Only the first worker has one."""
    clock: Clock


def train(resolved: Resolved, world: World, stop: StopRequest, clock: Clock) -> Exit:
    """COLLECTIVE. The whole run on this worker; DONE or STOPPED."""
    session = open_session(resolved, world, stop, clock)
    if world.any(stop.asked):  # COLLECTIVE: asked while workers were starting
        return close_session(session)
    while session.training.step < session.training.total_steps:
        if advance(session).flags.stop:
            break
    return close_session(session)


def open_session(resolved: Resolved, world: World, stop: StopRequest, clock: Clock) -> Session:
    """COLLECTIVE. Builds, and goes to the newest checkpoint where there is one."""
    run = resolved.run
    directory = RunDirectory.open(Path(resolved.run_directory))
    journal = Journal(directory, clock)
    training, built = build(resolved, world)
    resumed_from = checkpoint.restore_newest(training, directory)
    evaluator = Evaluator(resolved, world)
    meter = Meter(resolved, built.size, world, clock)
    recorder = None
    if world.is_first:
        describe_model(built, resolved, directory)
        recorder = Recorder(directory, list(run.track), training.step, meter.tokens_per_step)
        journal.note("started", **_facts(training, built, meter, resumed_from))
    saves = SaveTimes(run.checkpoint.every, clock)
    return Session(
        training, world, stop, directory, journal, evaluator, meter, saves, recorder, clock
    )


def advance(session: Session) -> StepResult:
    """COLLECTIVE. One step, and what is due after it."""
    training, world, recorder = session.training, session.world, session.recorder
    session.meter.start()
    save = world.is_first and session.saves.due(training.step + 1)
    result = take_step(training, world, Flags(stop=session.stop.asked, save=save))  # COLLECTIVE
    if recorder:
        recorder.step(result, session.meter.finish())
        if result.skipped:
            session.journal.note("skipped", step=result.step, reason=result.skipped)
    training.guard.require_progress(result.step, result.skipped)

    is_last = training.step == training.total_steps
    every = training.resolved.run.evaluation.every.amount
    if is_last or (training.step % every == 0 and not result.flags.stop):
        evaluations = session.evaluator.run(training.model, world)  # COLLECTIVE
        if recorder and evaluations:
            recorder.evaluation(training.step, evaluations)
            losses = {name: finite(found.loss) for name, found in evaluations.items()}
            session.journal.note("evaluated", step=training.step, losses=losses)

    if is_last or result.flags.save or result.flags.stop:
        folder = checkpoint.save(training, session.directory, world, session.clock)  # COLLECTIVE
        session.saves.saved()
        if folder:
            session.journal.note("saved", step=training.step, checkpoint=folder.name)
    return result


def close_session(session: Session) -> Exit:
    finished = session.training.step == session.training.total_steps
    if session.recorder:
        session.recorder.close()
        session.journal.note("finished" if finished else "stopped", step=session.training.step)
    return Exit.DONE if finished else Exit.STOPPED


class SaveTimes:
    """When the next save is due. Only the first worker asks; the step tells the others."""

    def __init__(self, every: Interval, clock: Clock) -> None:
        self.every = every
        self.clock = clock
        self.saved()

    def saved(self) -> None:
        self.last = self.clock.monotonic()

    def due(self, step: int) -> bool:
        if self.every.unit == "steps":
            return step % self.every.amount == 0
        return self.clock.monotonic() - self.last >= self.every.amount


def _facts(
    training: Training, built: Built, meter: Meter, resumed_from: int | None
) -> dict[str, object]:
    """What the run turned out to be, for `status` and for whoever reads the events later."""
    return {
        "step": training.step,
        "resumed_from": resumed_from,
        "total_steps": training.total_steps,
        "tokens_per_step": meter.tokens_per_step,
        "parameters": sum(parameter.numel() for parameter in built.module.parameters()),
        "samples": training.feed.num_samples,
        "tokens_left_out": training.feed.set.tail_tokens(training.feed.sequence_length),
        "data_digest": training.feed.set.manifest.digest,
        "workers": meter.num_devices,
        "device": meter.device_name,
        "no_mfu": meter.no_mfu_because(),
    }
