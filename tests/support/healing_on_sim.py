"""A worker without the run's state receives it on the simulated device. Workers are threads, the
group between them is real."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from support.simulated_device import install

STEPS = 3


def heal_and_continue(answers: Any) -> None:
    """Puts, for each optimizer: the state of both workers after the healing, and after a step more;
    and the types of devices that the receiver's state is on."""
    with install():
        from headway.spec.run_file import OptimizerConfig

        found = {}
        for kind in ("adamw", "lamb"):
            config = OptimizerConfig(type=kind)
            workers = [_worker(config, seed) for seed in (1, 2)]
            for _ in range(STEPS):
                _advance(workers[0])
            _heal(workers)
            healed = [_contents(worker) for worker in workers]
            for worker in workers:
                _advance(worker)
            continued = [_contents(worker) for worker in workers]
            devices = [_devices(worker) for worker in workers]
            found[kind] = (healed, continued, devices)
        answers.put(found)


def _worker(config: Any, seed: int) -> Any:
    from headway.spec.run_file import GuardConfig
    from headway.train.gradient_all_reduce import GradientReducer
    from headway.train.loss_guard import LossGuard
    from headway.train.optim import make_optimizer
    from headway.train.precision import LossScale
    from headway.train.step import Training
    from headway.train.weight_copies import WeightCopies

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7), nn.BatchNorm1d(7)).to("sim")
    nothing = cast(Any, None)
    return Training(
        resolved=nothing,
        total_steps=100,
        model=model,
        optimizer=make_optimizer(config, model),
        objective=nothing,
        feed=nothing,
        scale=LossScale("fp32"),
        guard=LossGuard(GuardConfig()),
        gradient_reducer=GradientReducer(list(model.parameters())),
        copies=WeightCopies(model, "fp32", is_sharded=False),
    )


def _advance(training: Any) -> None:
    training.step += 1
    tokens = torch.arange(7).to("sim")
    nn.functional.cross_entropy(training.model(tokens), tokens).backward()
    training.optimizer.step()
    training.optimizer.zero_grad()


def _heal(workers: list[Any]) -> None:
    """The first has the state, the second has none."""
    from headway.member.worker.state_choice import NO_STATE
    from headway.train.heal import choose_state, hand_over_state
    from support.together import together

    def take_part(group: Any) -> None:
        with install():  # a mode is a thread's own
            training = workers[group.rank]
            held = (training.step, 1) if group.rank == 0 else NO_STATE
            choice = choose_state(training, group, held, kind=0)
            assert choice is not None
            hand_over_state(training, group, choice, [])

    together(len(workers), take_part)


def _contents(training: Any) -> dict[str, Any]:
    from headway.train.state_tensors import state_tensors

    tensors = state_tensors(training.model, training.optimizer)
    return {"step": training.step, **{one.name: one.local.tolist() for one in tensors}}


def _devices(training: Any) -> dict[str, str]:
    from headway.train.state_tensors import state_tensors

    tensors = state_tensors(training.model, training.optimizer)
    return {one.name: one.local.device.type for one in tensors}
