"""What is masked depends on the sample and the epoch alone, in BERT's proportions."""

from __future__ import annotations

import numpy as np

from headway.data.masking import mask_tokens

SPECIAL = [0, 1, 2, 3, 4]
MASK = 4
VOCAB = 1000


def masked(
    tokens: np.ndarray,
    samples: np.ndarray,
    epoch: int = 0,
    seed: int = 17,
    probability: float = 0.15,
) -> tuple[np.ndarray, np.ndarray]:
    epochs = np.full(len(samples), epoch)
    return mask_tokens(
        tokens,
        samples,
        epochs,
        seed,
        mask_id=MASK,
        vocab_size=VOCAB,
        special_ids=SPECIAL,
        probability=probability,
    )


def some_tokens(num_rows: int, length: int = 128) -> np.ndarray:
    tokens = np.random.default_rng(1).integers(5, VOCAB, size=(num_rows, length))
    tokens[:, 0], tokens[:, -1] = 2, 3
    return tokens


def test_targets_are_the_true_tokens_where_chosen_and_ignored_elsewhere() -> None:
    tokens = some_tokens(50)
    inputs, targets = masked(tokens, np.arange(50))
    chosen = targets != -100
    assert np.array_equal(targets[chosen], tokens[chosen])
    assert np.array_equal(inputs[~chosen], tokens[~chosen])
    assert inputs.dtype == targets.dtype == np.int64


def test_proportions_are_those_of_bert() -> None:
    tokens = some_tokens(2000)
    inputs, targets = masked(tokens, np.arange(2000))
    ordinary = ~np.isin(tokens, SPECIAL)
    chosen = targets != -100
    # 252,000 tokens: the share's standard deviation is 0.0007, a tenth of chosen has 0.0015.
    assert abs(chosen[ordinary].mean() - 0.15) < 0.004
    assert abs((inputs[chosen] == MASK).mean() - 0.8) < 0.01
    kept = inputs[chosen] == tokens[chosen]
    assert abs(kept.mean() - 0.1) < 0.01


def test_special_tokens_are_never_chosen_and_never_drawn() -> None:
    tokens = some_tokens(500)
    inputs, targets = masked(tokens, np.arange(500), probability=1.0)
    assert (targets[:, [0, -1]] == -100).all()
    assert (targets[:, 1:-1] != -100).all()
    drawn = inputs[(targets != -100) & (inputs != MASK) & (inputs != tokens)]
    assert not np.isin(drawn, SPECIAL).any()
    # Any ordinary token may be drawn, the first and the last one too.
    assert drawn.min() == 5
    assert drawn.max() == VOCAB - 1


def test_special_tokens_in_the_middle_of_the_vocabulary_are_skipped() -> None:
    tokens = np.full((400, 64), 7)
    inputs, _ = mask_tokens(
        tokens,
        np.arange(400),
        np.zeros(400, dtype=np.int64),
        1,
        mask_id=9,
        vocab_size=10,
        special_ids=[0, 3, 4],
        probability=1.0,
    )
    assert set(np.unique(inputs)) == {1, 2, 5, 6, 7, 8, 9}


def test_nothing_is_chosen_with_probability_zero() -> None:
    tokens = some_tokens(10)
    inputs, targets = masked(tokens, np.arange(10), probability=0.0)
    assert np.array_equal(inputs, tokens)
    assert (targets == -100).all()


def test_the_batch_a_sample_comes_in_makes_no_difference() -> None:
    tokens = some_tokens(40)
    samples = np.arange(40) * 1_000_003
    whole = np.stack(masked(tokens, samples))
    shuffled = np.random.default_rng(2).permutation(40)
    assert np.array_equal(np.stack(masked(tokens[shuffled], samples[shuffled])), whole[:, shuffled])
    for row in (0, 7, 39):
        alone = np.stack(masked(tokens[row : row + 1], samples[row : row + 1]))
        assert np.array_equal(alone[:, 0], whole[:, row])


def test_seed_epoch_sample_and_position_each_change_the_choice() -> None:
    tokens = np.full((1, 2000), 9)
    zero = np.array([0])
    one = masked(tokens, zero)[1][0] != -100
    others = [
        masked(tokens, zero, seed=18)[1][0] != -100,
        masked(tokens, zero, epoch=1)[1][0] != -100,
        masked(tokens, np.array([1]))[1][0] != -100,
        np.roll(one, 1),
    ]
    for other in others:
        # Two independent choices of 15 % have 2.25 % in common.
        assert (one & other).mean() < 0.045
    # Epoch 1 of sample 0 is not sample 1 of epoch 0.
    assert not np.array_equal(others[1], others[2])


def test_choices_are_frozen() -> None:
    """As the order's: a resumed run must go on with the same masks."""
    tokens = np.tile(np.arange(5, 17), (2, 1))
    inputs, targets = mask_tokens(
        tokens,
        np.array([3, 4]),
        np.array([0, 1]),
        17,
        mask_id=MASK,
        vocab_size=VOCAB,
        special_ids=SPECIAL,
        probability=0.5,
    )
    assert inputs.tolist() == [
        [4, 6, 4, 4, 4, 10, 4, 4, 13, 4, 15, 16],
        [4, 6, 486, 8, 4, 4, 11, 4, 13, 4, 15, 16],
    ]
    assert (targets != -100).astype(int).tolist() == [
        [1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0],
        [1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 0, 0],
    ]
