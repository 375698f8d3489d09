"""Training, from top to bottom: build, restore, then step, record, evaluate, save, stop."""

from __future__ import annotations

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
from headway.train.record import Recorder
from headway.train.step import Flags, Training, take_step
from headway.train.world import World


def train(resolved: Resolved, world: World, stop: StopRequest, clock: Clock) -> Exit:
    """COLLECTIVE. The whole run on this worker; DONE or STOPPED."""
    run = resolved.run
    directory = RunDirectory.open(Path(resolved.run_directory))
    journal = Journal(directory, clock)

    training, built = build(resolved, world)
    resumed_from = checkpoint.restore_newest(training, directory)
    evaluator = Evaluator(resolved, world)
    meter = Meter(resolved, built.size, world, clock)
    saves = SaveTimes(run.checkpoint.every, clock)
    recorder = None
    if world.is_first:
        describe_model(built, resolved, directory)
        recorder = Recorder(directory, list(run.track), training.step, meter.tokens_per_step)
        journal.note("started", **_facts(training, built, meter, resumed_from))

    while training.step < training.total_steps:
        meter.start()
        flags = Flags(stop=stop.asked, save=world.is_first and saves.due(training.step + 1))
        result = take_step(training, world, flags)  # COLLECTIVE
        if recorder:
            recorder.step(result, meter.finish())
        if recorder and result.skipped:
            journal.note("skipped", step=result.step, reason=result.skipped)

        is_last = training.step == training.total_steps
        if is_last or (training.step % run.evaluation.every.amount == 0 and not result.flags.stop):
            evaluations = evaluator.run(training.model, world)  # COLLECTIVE
            if recorder and evaluations:
                recorder.evaluation(training.step, evaluations)
                losses = {name: result.loss for name, result in evaluations.items()}
                journal.note("evaluated", step=training.step, losses=losses)
        if is_last or result.flags.save or result.flags.stop:
            folder = checkpoint.save(training, directory, world, clock)  # COLLECTIVE
            saves.saved()
            if folder:
                journal.note("saved", step=training.step, checkpoint=folder.name)
        if result.flags.stop:
            break

    finished = training.step == training.total_steps
    if recorder:
        recorder.close()
        journal.note("finished" if finished else "stopped", step=training.step)
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
