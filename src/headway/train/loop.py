"""Training, from top to bottom: a world, then step, record, watch, evaluate, save; and again in the
next world, until the run is finished or stopped."""

from __future__ import annotations

from enum import Enum

from headway.errors import Exit, PeerLost, RunFailed
from headway.state.checkpoints import steps_saved
from headway.state.run_directory import RunDirectory
from headway.train.device import peak_memory
from headway.train.domain_group import DomainLost
from headway.train.outages import StoreLost
from headway.train.recorder import finite
from headway.train.step import Flags, StepResult, take_step
from headway.train.weight_fingerprint import EVERY_STEPS, Diverged, diverged_ranks, own_kind
from headway.train.worker_run import WorkerRun, begin_world, close_run
from headway.train.world import World, WorldSource


class End(Enum):
    """How the work in one world ended."""

    RUN = "the run is finished, or was stopped and saved"
    WORLD = "there is a newer generation"


def train(run: WorkerRun, worlds: WorldSource) -> Exit:
    """COLLECTIVE. The whole run on this worker; DONE or STOPPED."""
    end = End.WORLD
    while end is End.WORLD:
        world = worlds.next(lambda: not run.stop.asked)
        if world is None:
            run.recorder.resign()
            break
        try:
            begin_world(run, world, worlds)  # COLLECTIVE
            end = _train_in_world(run, world, worlds)  # COLLECTIVE
        except (Diverged, DomainLost, StoreLost):
            raise  # a new process has to take this one's place
        except PeerLost as lost:
            # The attempted step is discarded: it has not changed the state yet.
            run.has_discarded = True
            worlds.end_world(lost)
    return close_run(run)


def _train_in_world(run: WorkerRun, world: World, worlds: WorldSource) -> End:
    """COLLECTIVE. Trains until the run ends or the members change."""
    if world.any(run.stop.asked):  # COLLECTIVE: asked while workers were starting
        run.saver.finish(run.training, run.validation_loss)  # COLLECTIVE
        worlds.finish(world)  # COLLECTIVE
        return End.RUN
    if worlds.is_paused:
        run.saver.finish(run.training, run.validation_loss)  # COLLECTIVE
        worlds.wait_for_change(lambda: not run.stop.asked)
        return End.WORLD
    evaluate_if_due(run, world)  # COLLECTIVE: interrupted in the previous world
    with run.watchdog.on_duty():
        while not run.is_over:
            agreed = advance(run, world, worlds).agreed
            if agreed.stop:
                break
            if agreed.over and may_leave(run, world, worlds):  # COLLECTIVE
                return End.WORLD
    run.recorder.settle()
    run.saver.finish(run.training, run.validation_loss)  # COLLECTIVE
    worlds.finish(world)  # COLLECTIVE
    return End.RUN


def may_leave(run: WorkerRun, world: World, worlds: WorldSource) -> bool:
    """COLLECTIVE. Whether the world can be left for the next: where the processes end with it, once
    the state is saved. If that fails, training continues, and tries again after more steps."""
    if not worlds.saves_before_change:
        return True
    if run.training.step < run.next_leave_step:
        return False
    with run.watchdog.off_duty():
        run.recorder.settle()
        if run.saver.save_now(run.training, run.validation_loss):  # COLLECTIVE
            worlds.finish(world)  # COLLECTIVE
            return True
    run.leave_pause *= 2
    run.next_leave_step = run.training.step + run.leave_pause
    return False


def advance(run: WorkerRun, world: World, worlds: WorldSource) -> StepResult:
    """COLLECTIVE. One step, then recording, evaluation and saving as they are due."""
    training, recorder = run.training, run.recorder
    run.saver.require_owner()
    run.meter.start(training.feed)
    is_due = _save_is_due(run)
    run.saver.require_saves(is_due)
    flags = Flags(
        stop=run.stop.asked,
        save=world.is_leader and is_due and not run.saver.is_busy,
        leaving=worlds.is_leaving,
        ahead=worlds.num_newer_generations,
    )
    result = take_step(training, world, flags)  # COLLECTIVE
    run.saver.settled(training.step - 1)  # all started this step from the one before
    run.committed_at, run.has_discarded = run.clock.monotonic(), False
    recorder.step(result, run.meter.finish(training.feed))
    run.worker_log.step(result)
    run.steps_file.took(result.step)
    run.compile_counts.took_step()
    run.watchdog.committed()
    worlds.report_step_seconds(run.watchdog.step_seconds)
    if recorder.is_leader and result.skipped:
        run.journal.note("skipped", step=result.step, reason=result.skipped)
    training.guard.require_progress(result.step, result.skipped)

    if training.step % EVERY_STEPS == 0:
        _compare_weights(run, world, worlds)  # COLLECTIVE

    if not result.agreed.stop:
        run.activations.record(world, recorder)  # COLLECTIVE in the leader's shard group
        evaluate_if_due(run, world)  # COLLECTIVE

    if result.agreed.save:
        recorder.settle()
        held = run.saver.start(training, run.validation_loss)  # a thread copies and writes it
        run.save_schedule.saved()
        if recorder.is_leader:
            run.journal.note(
                "saving",
                step=training.step,
                held_seconds=round(held, 4),
                **peak_memory(world.device),
            )
    if recorder.is_leader:
        run.saver.send_logs()
    return result


def _compare_weights(run: WorkerRun, world: World, worlds: WorldSource) -> None:
    """COLLECTIVE. Restarts and reports the workers whose weights differ from the majority."""
    if world.replicas is None:
        return
    odd, lost = [], None
    try:
        odd = diverged_ranks(run.training, world.replicas, own_kind(world.device))
    except Diverged:
        raise
    except PeerLost as error:
        lost = error
    except RunFailed as error:
        raise RunFailed(error.message, fork_hint(run.directory, run.training.step)) from None
    world.raise_if_any_lost(lost)
    right = min(set(range(world.replicas.size)) - set(odd))
    if odd and world.replicas.rank == right:
        names = [worlds.worker_names[rank * world.shard_size] for rank in odd]
        run.journal.note("diverged", step=run.training.step, names=names)


def fork_hint(directory: RunDirectory, step: int) -> str:
    """After weights were found to differ at `step`: a command that forks from the newest checkpoint
    at which they agreed."""
    saved = [one for one in steps_saved(directory) if one <= step - EVERY_STEPS]
    new = directory.free_name()
    if not saved:
        return f"nothing was saved before that; start a new run: headway run --set name={new}"
    newest = f"{directory.as_typed}@{saved[-1]}"
    return f"continue from the newest checkpoint before that: headway fork {newest} {new}"


def _save_is_due(run: WorkerRun) -> bool:
    due = run.save_schedule.due(run.training.step + 1)
    return due or run.saver.retry_is_due()


def evaluate_if_due(run: WorkerRun, world: World) -> None:
    """COLLECTIVE. After a step; repeated in the next world if it was interrupted."""
    training = run.training
    every = training.resolved.run.evaluation.every.amount
    if training.evaluated_step == training.step or not (run.is_over or training.step % every == 0):
        return
    began = run.clock.monotonic()
    with training.copies.in_use():
        results = run.evaluator.run(training.model, world, run.watchdog.feed)
    if results is None:
        return  # interrupted to stop. After the last step, the next start evaluates
    samples = run.sampler.run(world, run.watchdog.feed)
    training.evaluated_step = training.step
    if not results and not samples:
        return
    losses = {name: result.loss for name, result in results.items()}
    if losses:
        mean = sum(losses.values()) / len(losses)
        run.evaluated = ((training.step, training.committed_in), mean)
    run.recorder.evaluation(training.step, results)
    run.recorder.samples(training.step, samples)
    run.worker_log.evaluation(training.step, results, samples)
    if run.recorder.is_leader:
        run.journal.note(
            "evaluated",
            step=training.step,
            losses={name: finite(loss) for name, loss in losses.items()},
            seconds=round(run.clock.monotonic() - began, 3),
        )
