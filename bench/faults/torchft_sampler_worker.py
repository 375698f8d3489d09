"""A replica group of one worker under torchft, put together as in torchft's own DDP example: its
DistributedSampler in a StatefulDataLoader, whose position is saved after every step.

Its arguments: number of the group and of all groups, gloo's timeout, and how often a quorum is
asked for again. A batch whose step fails is dropped, as in the example.
"""

from __future__ import annotations

import sys

from torchdata.stateful_dataloader import StatefulDataLoader
from torchft import DistributedSampler

from bench.faults.order import BATCH
from bench.faults.torchft_parts import Replica
from bench.faults.trainee import RandomSamples, load, mean_loss, note, save

part, num_parts, gloo_seconds, quorum_retries = map(int, sys.argv[1:])
samples, epoch = RandomSamples(), 0
sampler = DistributedSampler(
    samples, replica_rank=part, num_replica_groups=num_parts, group_rank=0, num_replicas=1
)
loader = StatefulDataLoader(samples, batch_size=BATCH // num_parts, sampler=sampler)
replica = Replica(f"faults_{part}", gloo_seconds, quorum_retries)
manager = replica.manager
if found := load(f"loader-{part}"):
    epoch = found["epoch"]
    loader.load_state_dict(found["loader"])
while True:
    sampler.set_epoch(epoch)
    for numbers, rows in loader:
        before = manager.current_step()
        replica.optimizer.zero_grad()  # asks for a quorum
        mean_loss(replica.replicated, rows).backward()
        replica.optimizer.step()  # or not, if a sum failed
        step = manager.current_step()
        # Else its gradients were not part of the sum.
        if step > before and manager.participating_rank() is not None:
            note(step, manager._quorum_id, part, epoch, numbers)
            replica.save_if_due()
        save(f"loader-{part}", {"epoch": epoch, "loader": loader.state_dict()})
    epoch += 1
