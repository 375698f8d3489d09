"""One worker's run: everything the loop needs, opened at the start and closed at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.clock import Clock
from headway.data.reading.tokenset import Reading
from headway.errors import BadInput, Exit
from headway.spec.resolve import Resolved
from headway.state.code import code_digest
from headway.state.generations import begin_generation
from headway.state.rundir import Journal, RunDirectory, send_logs
from headway.train.activations import ActivationWatch
from headway.train.build import build
from headway.train.evaluate import Evaluator
from headway.train.export import describe_model
from headway.train.meter import Meter
from headway.train.models import Built
from headway.train.preempt import StopRequest
from headway.train.record import Recorder
from headway.train.restore import restore_newest
from headway.train.save import Saver, SaveTimes
from headway.train.step import Training
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
    saver: Saver
    saves: SaveTimes
    recorder: Recorder | None
    """Only the leader has one."""
    activations: ActivationWatch
    clock: Clock
    validation_loss: float | None = None
    """Of the newest step, if it was evaluated."""


def open_session(
    resolved: Resolved, world: World, stop: StopRequest, clock: Clock, import_seconds: float = 0.0
) -> Session:
    """COLLECTIVE. Builds, and goes to the newest good checkpoint where there is one."""
    directory = RunDirectory.open(resolved.run_directory)
    journal = Journal(directory.events, clock)
    began = clock.monotonic()
    reading = Reading(rank=world.rank, trusted=True, warn=_warning(world, journal), clock=clock)
    training, built = build(resolved, world.place, reading)
    built_at = clock.monotonic()
    resumed_from = restore_newest(training, directory, world, journal)  # COLLECTIVE
    loaded_at = clock.monotonic()
    if training.step > training.total_steps:
        raise BadInput(
            f"train_for comes to {training.total_steps} steps, and the run stands at step "
            f"{training.step}",
            "a run can be extended, not shortened",
        )
    if training.step < training.total_steps:
        training.feed.expect(training.step, world.share(training.feed.num_slices))
    meter = Meter(resolved, built.size, world, clock)
    recorder = None
    if world.is_first:
        begin_generation(directory, world.generation, training.step, world.num_workers, clock)
        describe_model(built, training.feed.set.tokenizer_folder, directory)
        recorder = Recorder(
            directory, resolved, world, training.step, _ledger_facts(training), clock
        )
        seconds = {
            "import": round(import_seconds, 3),
            "build": round(built_at - began, 3),
            "load": round(loaded_at - built_at, 3),
        }
        journal.note(
            "started",
            generation=world.generation,
            resumed_from=resumed_from,
            seconds=seconds,
            **_facts(training, built, meter),
        )
    saver = Saver(directory, journal, world, clock)
    saver.saved_step = resumed_from
    return Session(
        training,
        world,
        stop,
        directory,
        journal,
        Evaluator(resolved, world, stop, reading),
        meter,
        saver,
        SaveTimes(resolved.run.checkpoint, clock),
        recorder,
        ActivationWatch(training, built, world),
        clock,
    )


def _warning(world: World, journal: Journal) -> Callable[[str], None]:
    """What is wrong with the data's way here, but does not stop training: an event by the leader,
    and in the others' logs."""

    def note(words: str) -> None:
        if world.is_first:
            journal.note("data_warning", reason=words)
        else:
            logging.getLogger("headway").warning(words)

    return note


def close_session(session: Session) -> Exit:
    finished = session.training.step == session.training.total_steps
    if session.recorder:
        session.recorder.close()
        session.journal.note("finished" if finished else "stopped", step=session.training.step)
        send_logs(session.directory)
    session.training.feed.close()
    session.evaluator.close()
    return Exit.DONE if finished else Exit.STOPPED


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
