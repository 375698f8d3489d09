"""One worker's part of a run: everything that the loop needs, opened once and closed at the end,
and the beginning of each world."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from headway.clock import Clock, stamp
from headway.data.reading.token_set import ReadOptions
from headway.errors import BadInput, Exit, PeerLost
from headway.member.worker.state_choice import NO_STATE, Name
from headway.spec.resolve import Resolved
from headway.state.chain import Chain
from headway.state.run_directory import Journal, RunDirectory, send_logs
from headway.train.activations import ActivationWatch
from headway.train.build import build, fill_weights
from headway.train.compile_counts import CompileCounts
from headway.train.device import is_accelerator, peak_memory
from headway.train.evaluate import Evaluator
from headway.train.export import describe_model
from headway.train.heal import choose_state, hand_over_state, held_state
from headway.train.initial_weights import WEIGHTS_RULE
from headway.train.models import BuiltModel
from headway.train.optim import make_moments
from headway.train.outages import outage_is_loss, outage_restarts, reached
from headway.train.recorder import Recorder
from headway.train.restore import restore_newest
from headway.train.samples import Sampler
from headway.train.save import CheckpointSaver, SaveSchedule
from headway.train.step import Training
from headway.train.steps_file import StepsFile
from headway.train.stop_request import StopRequest
from headway.train.throughput import ThroughputMeter
from headway.train.versions import versions
from headway.train.watchdog import Watchdog
from headway.train.weight_fingerprint import Diverged, own_kind
from headway.train.worker_log import WorkerLog
from headway.train.world import RankPlacement, World, WorldSource

RECORD_SECONDS = 600.0
"""How long to retry when the store cannot be reached while the members change. A run that starts
waits only for a remote one, and only if the others would continue without this worker."""

NEVER = -1
"""Stands for the step that was evaluated last, where the state was not evaluated."""


@dataclass(kw_only=True)
class WorkerRun:
    """One worker's part of a run, from start to end."""

    training: Training
    built: BuiltModel
    stop: StopRequest
    directory: RunDirectory
    chain: Chain
    journal: Journal
    evaluator: Evaluator
    sampler: Sampler
    meter: ThroughputMeter
    saver: CheckpointSaver
    save_schedule: SaveSchedule
    recorder: Recorder
    worker_log: WorkerLog
    steps_file: StepsFile
    activations: ActivationWatch
    clock: Clock
    watchdog: Watchdog
    compile_counts: CompileCounts
    start_seconds: dict[str, float] = field(default_factory=dict)
    meeting_seconds: dict[str, float] = field(default_factory=dict)
    """What it took to be given a place, to find the device and to form the groups."""
    evaluated: tuple[Name, float] | None = None
    """Newest state that was evaluated, and its mean loss."""
    committed_at: float | None = None
    """When this worker last committed a step."""
    has_discarded: bool = False
    """Whether a step was started since then, and discarded because a peer was lost."""
    next_leave_step: int = 0
    """Step from which to save for a change of members, after that has failed."""
    leave_pause: int = 1
    """Steps from one failure to the next attempt; doubled each time."""

    @property
    def is_over(self) -> bool:
        return self.training.step >= self.training.total_steps

    @property
    def has_finished(self) -> bool:
        """Whether nothing is left to do. A stop in the last step leaves the final evaluation to the
        next start."""
        is_evaluated = self.training.evaluated_step == self.training.step
        return self.is_over and (is_evaluated or not self.evaluator.feeds)

    @property
    def validation_loss(self) -> float | None:
        """Mean loss of the state that this worker has now, if it was evaluated."""
        name = (self.training.step, self.training.committed_in)
        if self.evaluated is None or self.evaluated[0] != name:
            return None
        return self.evaluated[1] if math.isfinite(self.evaluated[1]) else None


def open_run(
    resolved: Resolved,
    placement: RankPlacement,
    *,
    worker_number: int,
    launch: str,
    stop: StopRequest,
    clock: Clock,
    seconds: Mapping[str, float] = MappingProxyType({"import": 0.0}),
    on_hang: Callable[[int], None] = lambda times: None,
    steps_file: Path | None = None,
    shares_log: bool = False,
) -> WorkerRun:
    """Builds everything. COLLECTIVE in the domain when the model is sharded. `worker_number`:
    number of this worker on its machine. `launch`: token of the start that it belongs to. `on_hang`
    is called when no step is committed for long. `seconds`: what each part of the start took so
    far. `steps_file`: in which to record the steps taken. `shares_log`: all workers write into one
    log."""
    directory = reached(
        lambda: RunDirectory.open(resolved.run_directory), clock, lambda: stop.asked
    )
    chain = Chain(directory, launch)
    journal = Journal(directory.events, clock)
    began = clock.monotonic()
    reading = ReadOptions(
        rank=worker_number,
        local_workers=resolved.ranks_per_node,
        trusted=True,
        warn=_warning(worker_number, journal),
        clock=clock,
    )
    with outage_is_loss():
        training, built = build(resolved, placement, reading)
        if resolved.is_live:
            make_moments(training.optimizer)  # now: once it has joined, the others would wait
        evaluator = Evaluator(resolved, placement, stop, reading)
        sampler = Sampler(training, stop)
    sampler.require_logits(placement.device)
    return WorkerRun(
        training=training,
        built=built,
        stop=stop,
        directory=directory,
        chain=chain,
        journal=journal,
        evaluator=evaluator,
        sampler=sampler,
        meter=ThroughputMeter(resolved, built.size, placement, clock),
        saver=CheckpointSaver(directory, chain, journal, clock, evaluator.sample),
        save_schedule=SaveSchedule(resolved.save_every, resolved.run.checkpoint.keep.every, clock),
        recorder=Recorder(directory, resolved, _ledger_facts(training), clock),
        worker_log=WorkerLog(
            training.total_steps, resolved.tokens_per_step, clock, is_shared=shares_log
        ),
        steps_file=StepsFile(steps_file),
        activations=ActivationWatch(training, built),
        clock=clock,
        watchdog=Watchdog(clock, on_hang, reports_late=is_accelerator(placement.device)),
        compile_counts=CompileCounts(resolved, worker_number, journal, clock),
        start_seconds=_start_seconds(seconds["import"], clock.monotonic() - began, training),
        meeting_seconds={part: took for part, took in seconds.items() if part != "import"},
    )


def _start_seconds(importing: float, building: float, training: Training) -> dict[str, float]:
    """A reader of a set that is still being prepared waits for its first samples."""
    unprepared = training.feed.unprepared_seconds
    seconds = {"import": importing, "build": max(0.0, building - unprepared)}
    return seconds | ({"preparation": unprepared} if unprepared else {})


def _rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {part: round(found, 3) for part, found in seconds.items()}


def begin_world(run: WorkerRun, world: World, worlds: WorldSource) -> None:
    """COLLECTIVE. When this returns, all members of a new world have the same state, and continue
    from it."""
    training, began = run.training, run.clock.monotonic()
    run.journal.generation = world.generation
    was_healed, resumed_from = False, None
    if not _heal(run, world, worlds):
        with outage_restarts(run.directory):
            resumed_from = _restore(run, world)
        if world.is_leader:
            # Before anybody counts as holding the state: if it fails, all of this is done again.
            with outage_restarts(run.directory), outage_is_loss():
                describe_model(run.built, training.feed.set.tokenizer_folder, run.directory)
    else:
        was_healed = True
    # COLLECTIVE: all workers that reach this have the step, so it is settled.
    world.barrier()
    worlds.report_state()
    training.optimizer.zero_grad(set_to_none=True)
    run.meter.num_devices = training.feed.num_workers = world.num_workers
    if run.saver.tried is not None and run.saver.tried[0] > training.step:
        run.save_schedule.owed = True  # a save beyond it does not count
    run.saver.begin(world)
    run.saver.settled(training.step)
    if not run.is_over:
        training.feed.prefetch(training.step, world.share(training.feed.num_micro_batches))
    run.recorder.begin(world, training.step)
    run.worker_log.begin(world, training.step)
    run.steps_file.begin(training.step)
    if world.is_leader:
        with outage_restarts(run.directory):
            # Whoever holds the state by now continues, and would never note how the run started.
            is_waiting = was_healed or (
                training.resolved.is_live and not run.directory.store.is_local
            )
            _record_generation(run, world, run.clock.now(), RECORD_SECONDS if is_waiting else 0.0)
    if world.is_leader and not was_healed:
        _note_built_whole(run, world)
        if worlds.restarts_because is not None:
            run.journal.note("cannot_leave", reason=worlds.restarts_because)
        run.start_seconds["load"] = run.clock.monotonic() - began
        run.journal.note(
            "started",
            generation=world.generation,
            resumed_from=resumed_from,
            weights_rule=WEIGHTS_RULE if resumed_from is None else None,
            seconds=_rounded(run.start_seconds),
            meeting_seconds=_rounded(run.meeting_seconds),
            versions=versions(),
            **run.evaluator.schedule(),
            **_facts(training, run.built, run.meter),
        )
    elif world.is_leader:
        run.journal.note(
            "changed",
            generation=world.generation,
            step=training.step,
            workers=world.num_workers,
            reason=worlds.reason,
            discarded=run.has_discarded,
            seconds=round(run.clock.monotonic() - (run.committed_at or began), 3),
        )


def _note_built_whole(run: WorkerRun, world: World) -> None:
    because = run.built.whole_because
    if because is not None and world.placement.shard_mesh is not None:
        run.journal.note(
            "built_whole",
            reason="each worker built the whole model in its memory before it was sharded: "
            + because,
        )


def _record_generation(run: WorkerRun, world: World, now: float, seconds: float) -> None:
    """Records that the generation has begun, and the lines that earlier leaders could not write.
    Retries for `seconds` if the store cannot be reached; the others wait in the next step
    meanwhile."""
    deadline, pause = run.clock.monotonic() + seconds, 0.5
    while True:
        try:
            step, workers = run.training.step, world.num_workers
            run.chain.begin(world.generation, step, workers, stamp(now))
            run.recorder.catch_up(step)
            return
        except OSError:
            if run.clock.monotonic() + pause > deadline:
                raise
            world.require_all_alive()
            run.clock.sleep(pause)
            pause = min(2 * pause, 10.0)


def _heal(run: WorkerRun, world: World, worlds: WorldSource) -> bool:
    """COLLECTIVE. Whether any member has the run's state. If so, all have that of most members
    now."""
    if world.agrees_on_device:
        return False  # all of its workers have started without a state
    training, lost = run.training, None
    held = held_state(training, world.domain, worlds.has_state)
    is_held = held != NO_STATE
    if world.replicas is not None:
        try:
            choice = choose_state(training, world.replicas, held, own_kind(world.device))
            is_held = choice is not None
            if choice is not None:
                if world.replicas.rank in choice.holders:
                    # Others keep the line of their last step until they have this state: if its
                    # holders are lost before, theirs may be chosen next.
                    run.recorder.settle(upto=choice.step)
                training.evaluated_step = choice.evaluated_step
                if choice.receivers:
                    kept = run.recorder.kept_records()
                    records = hand_over_state(training, world.replicas, choice, kept)
                    if records is not None:
                        run.recorder.replace_kept_records(records)
        except PeerLost as error:
            lost = error
    world.raise_if_any_lost(lost)
    return is_held


def _restore(run: WorkerRun, world: World) -> int | None:
    """COLLECTIVE. Loads the newest checkpoint, and returns its step; None if the run starts at
    0."""
    training = run.training
    was_at = training.step
    resumed = restore_newest(training, run.directory, run.chain, world, run.journal)
    if resumed is None and was_at != 0:
        raise Diverged("no worker has the run's state and nothing was saved: the run starts over")
    if training.step > training.total_steps:
        raise BadInput(
            f"train_for is {training.total_steps} steps, but the run is already at step "
            f"{training.step}",
            "a run can be extended, not shortened",
        )
    run.saver.saved = None
    # Without a loss the last step counts as not evaluated: better twice than never.
    is_evaluated = resumed is not None and resumed.validation_loss is not None
    is_due = training.step >= training.total_steps and not is_evaluated
    training.evaluated_step = NEVER if is_due else training.step
    if resumed is None:
        training.optimizer.state.clear()
        fill_weights(run.built, world.placement)  # COLLECTIVE
        return None
    run.saver.saved = (training.step, training.committed_in)
    return resumed.step


def _warning(number: int, journal: Journal) -> Callable[[str], None]:
    """Handles problems with reading data that do not stop training: the first worker records an
    event, the others write to their log."""

    def note(words: str) -> None:
        if number == 0:
            journal.note("data_warning", reason=words)
        else:
            logging.getLogger("headway").warning(words)

    return note


def close_run(run: WorkerRun) -> Exit:
    is_leader = run.recorder.is_leader
    run.recorder.close()
    if is_leader:
        device = next(run.built.module.parameters()).device
        end = "finished" if run.has_finished else "stopped"
        run.journal.note(end, step=run.training.step, **peak_memory(device))
        send_logs(run.directory)
    else:
        run.journal.close()
    run.training.feed.close()
    run.evaluator.close()
    return Exit.DONE if run.has_finished else Exit.STOPPED


def _facts(training: Training, built: BuiltModel, meter: ThroughputMeter) -> dict[str, object]:
    """Facts about the run, for `status` and the events."""
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
    return {
        "batch": resolved.global_batch,
        "samples": training.feed.epoch_samples,
        "length": resolved.run.data.sequence_length,
        "data": training.feed.set.digest,
        "code": resolved.code_digest,
    }
