"""Training, from top to bottom: step, record, watch, evaluate, save, stop."""

from __future__ import annotations

import math

from headway.clock import Clock
from headway.errors import Exit
from headway.spec.resolve import Resolved
from headway.train.preempt import StopRequest
from headway.train.record import finite
from headway.train.session import Session, close_session, open_session
from headway.train.step import Flags, StepResult, take_step
from headway.train.world import World


def train(
    resolved: Resolved, world: World, stop: StopRequest, clock: Clock, import_seconds: float = 0.0
) -> Exit:
    """COLLECTIVE. The whole run on this worker; DONE or STOPPED."""
    session = open_session(resolved, world, stop, clock, import_seconds)
    if not world.any(stop.asked):  # COLLECTIVE: asked while workers were starting
        while session.training.step < session.training.total_steps:
            if advance(session).agreed.stop:
                break
        if session.recorder:
            session.recorder.ledger.settle()
        session.saver.finish(session.training, session.validation_loss)  # COLLECTIVE
    return close_session(session)


def advance(session: Session) -> StepResult:
    """COLLECTIVE. One step, and what is due after it."""
    training, world, recorder = session.training, session.world, session.recorder
    session.meter.start(training.feed)
    save = world.is_first and _save_is_due(session) and not session.saver.is_busy
    result = take_step(training, world, Flags(stop=session.stop.asked, save=save))  # COLLECTIVE
    if recorder:
        recorder.step(result, session.meter.finish(training.feed))
        if result.skipped:
            session.journal.note("skipped", step=result.step, reason=result.skipped)
    training.guard.require_progress(result.step, result.skipped)

    if not result.agreed.stop:
        session.activations.record(world, recorder)  # COLLECTIVE in the leader's shard group

    session.validation_loss = None
    is_last = training.step == training.total_steps
    every = training.resolved.run.evaluation.every.amount
    if not result.agreed.stop and (is_last or training.step % every == 0):
        _evaluate(session)  # COLLECTIVE

    if result.agreed.save:
        if recorder:
            recorder.ledger.settle()
        held = session.saver.start(training, session.validation_loss)  # the copy, not the writing
        session.saves.saved()
        if recorder:
            session.journal.note("saving", step=training.step, held_seconds=round(held, 4))
    if recorder:
        session.saver.send_logs()
    return result


def _save_is_due(session: Session) -> bool:
    due = session.saves.due(session.training.step + 1)
    return due or session.saver.retry_is_due()


def _evaluate(session: Session) -> None:
    """COLLECTIVE."""
    began = session.clock.monotonic()
    results = session.evaluator.run(session.training.model, session.world)
    if not results:
        return
    losses = {name: result.loss for name, result in results.items()}
    mean = sum(losses.values()) / len(losses)
    session.validation_loss = mean if math.isfinite(mean) else None
    if session.recorder:
        session.recorder.evaluation(session.training.step, results)
        session.journal.note(
            "evaluated",
            step=session.training.step,
            losses={name: finite(loss) for name, loss in losses.items()},
            seconds=round(session.clock.monotonic() - began, 3),
        )
