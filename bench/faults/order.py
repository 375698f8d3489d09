"""The order of the samples for loops that divide the batch of each step themselves."""

from __future__ import annotations

import random

BATCH, NUM_SAMPLES = 16, 1024
STEPS_OF_EPOCH = NUM_SAMPLES // BATCH


def samples_of_step(step: int) -> tuple[int, list[int]]:
    """Return the epoch of a step, which count from 1, and the numbers of its samples."""
    epoch, place = divmod(step - 1, STEPS_OF_EPOCH)
    numbers = list(range(NUM_SAMPLES))
    random.Random(epoch).shuffle(numbers)
    return epoch, numbers[place * BATCH : (place + 1) * BATCH]
