"""Monarch: each worker is a mesh of one process on a host of its own, and this driver decides who
is in the group. It forms gloo anew after each loss, and hands the state over. Arguments: the
addresses of the hosts."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import monarch.actor
import torch
import torch.distributed as dist
from monarch.actor import Actor, attach_to_workers, enable_transport, endpoint
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from bench.faults.order import BATCH
from bench.faults.trainee import make_model, mean_loss, note, share_of_step

GLOO_SECONDS = 5
STEPS_OF_A_CALL = 10
"""The driver looks for newcomers in between."""


class Trainer(Actor):
    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model, self.step = make_model(), 0
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.generation, self.rank, self.world = 0, 0, 1

    @endpoint
    def newest_step(self) -> int:
        return self.step

    @endpoint
    def form(self, generation: int, port: int, rank: int, world: int, holder: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        self.generation, self.rank, self.world = generation, rank, world
        limit = timedelta(seconds=GLOO_SECONDS)
        store = TCPStore("127.0.0.1", port, world, rank == 0, timeout=limit)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
        held: list[Any] = [self._state() if rank == holder else None]
        dist.broadcast_object_list(held, holder)
        if rank != holder:
            self.step = held[0]["step"]
            self.model.load_state_dict(held[0]["model"])
            self.optimizer.load_state_dict(held[0]["optimizer"])

    def _state(self) -> dict[str, Any]:
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {"step": self.step, **parts}

    @endpoint
    def train(self, num_steps: int) -> bool:
        """Return whether all steps were done: a sum in which a peer is missing is dropped."""
        for _ in range(num_steps):
            step = self.step + 1
            epoch, numbers, rows = share_of_step(step, self.rank, self.world)
            self.optimizer.zero_grad()
            (mean_loss(self.model, rows) * (len(rows) / BATCH)).backward()
            gradients = [one.grad for one in self.model.parameters() if one.grad is not None]
            flat = torch.cat([one.flatten() for one in gradients])
            try:
                dist.all_reduce(flat)
            except RuntimeError:
                dist.destroy_process_group()  # else those further in the ring wait for us
                return False
            for one, summed in zip(
                gradients, flat.split([one.numel() for one in gradients]), strict=True
            ):
                one.copy_(summed.view_as(one))
            self.optimizer.step()
            self.step = step
            note(step, self.generation, self.rank, epoch, numbers)
        return True


class Driver:
    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses
        self.workers: dict[int, Any] = {}
        self.joining: dict[int, Any] = {}
        self.generation = 0

    def spawn(self, place: int) -> None:
        """Start the worker of a host. It takes part from the next group on."""
        while True:
            try:
                address = self.addresses[place]
                host = attach_to_workers(ca="trust_all_connections", workers=[address])
                name = f"n{place}_{time.time_ns()}"
                mesh = host.spawn_procs(per_host={"w": 1}, name=name)
                worker = mesh.spawn("trainer", Trainer)
                worker.newest_step.call_one().get(timeout=60)
            except Exception as error:  # noqa: BLE001 - whatever a lost host raises
                say(f"host {place}: {error}")
                time.sleep(1.0)
            else:
                self.joining[place] = worker
                return

    def run(self) -> None:
        threads = self._spawn_all(range(len(self.addresses)))
        for thread in threads:
            thread.join()
        while True:
            while self.joining:
                place, worker = self.joining.popitem()
                self.workers[place] = worker
            if self._has_formed():
                is_whole = True
                while is_whole and not self.joining:
                    answers = self._ask("train", STEPS_OF_A_CALL)
                    is_whole = all(one is True for one in answers.values())

    def _spawn_all(self, places: Iterable[int]) -> list[threading.Thread]:
        threads = [threading.Thread(target=self.spawn, args=(place,)) for place in places]
        for thread in threads:
            thread.start()
        return threads

    def _has_formed(self) -> bool:
        steps = self._ask("newest_step")
        lost = [place for place, step in steps.items() if step is None]
        for place in lost:
            del self.workers[place], steps[place]
        self._spawn_all(lost)
        if not steps:
            time.sleep(0.1)
            return False
        self.generation += 1
        port, places = free_port(), list(steps)
        holder = places.index(max(places, key=lambda place: steps[place]))
        calls = [
            self.workers[place].form.call_one(self.generation, port, rank, len(places), holder)
            for rank, place in enumerate(places)
        ]
        formed = [answer_of(call, 2 * GLOO_SECONDS) is not LOST for call in calls]
        say(f"generation {self.generation}: {places}, formed: {formed}")
        return all(formed)

    def _ask(self, name: str, *words: object) -> dict[int, Any]:
        """Return what each worker answers, None for a lost one."""
        calls = {
            place: getattr(worker, name).call_one(*words) for place, worker in self.workers.items()
        }
        answers = {place: answer_of(call) for place, call in calls.items()}
        return {place: None if one is LOST else one for place, one in answers.items()}


LOST = object()


def answer_of(call: Any, seconds: float = 60.0) -> Any:
    try:
        return call.get(timeout=seconds)
    except Exception as error:  # noqa: BLE001 - whatever a lost worker raises
        say(f"lost: {type(error).__name__}: {str(error)[:200]}")
        return LOST


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def say(words: str) -> None:
    print(f"{time.time():.2f} {words}", flush=True)


def on_fault(failure: Any) -> None:
    """The default ends this process."""
    say(f"fault: {str(failure.report())[:200]}")


def main() -> None:
    monarch.actor.unhandled_fault_hook = on_fault
    enable_transport(f"tcp://127.0.0.1:{free_port()}")
    Driver(sys.argv[1:]).run()


if __name__ == "__main__":
    main()
