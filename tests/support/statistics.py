"""Does an order look like chance? Tests that answer with a p-value, and orders to give to them.

Orders are tables with one row a key: row k holds what the order of key k draws at its first
positions, `size` being the number of values there are. The rows are independent of each other; what
stands in one row is not (no value comes twice), and each test says how it accounts for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from headway.data.order import NUM_ROUNDS, Order, Permutation, derive_keys

LEAST_EXPECTED = 20
"""Chi-square is taken over cells that expect at least so many; below, its tail is no chi-square."""
VALUES_AT_ONCE = 2**16
"""Tables are computed in parts of about so many values, which stay in the processor's cache."""


# --- Tails of distributions -----------------------------------------------------------------------


def gamma_tail(shape: float, start: float) -> float:
    """Q(shape, start), the regularised upper incomplete gamma function."""
    if start <= 0:
        return 1.0
    scale = math.exp(-start + shape * math.log(start) - math.lgamma(shape))
    # The series converges below the mean, the continued fraction (Lentz's way) above it.
    if start < shape + 1:
        return 1.0 - scale * _gamma_series(shape, start)
    return scale * _gamma_fraction(shape, start)


def _gamma_series(shape: float, start: float) -> float:
    term = total = 1.0 / shape
    while term > total * 1e-16:
        shape += 1
        term *= start / shape
        total += term
    return total


def _gamma_fraction(shape: float, start: float) -> float:
    base = start + 1 - shape
    ratio, inverse = 1e300, 1 / base
    total = inverse
    number = 0
    factor = 0.0
    while abs(factor - 1) > 1e-15:
        number += 1
        weight = -number * (number - shape)
        base += 2
        inverse = 1 / (weight * inverse + base)
        ratio = base + weight / ratio
        factor = inverse * ratio
        total *= factor
    return total


def chi_square_p(statistic: float, freedom: int) -> float:
    """How likely chance is to lie this far from what is expected.

    With many degrees of freedom on both sides, since too even is no chance either. With few only
    above: counts are whole numbers, and now and then they hit what is expected exactly.
    """
    if freedom == 0:
        return 1.0
    above = gamma_tail(freedom / 2, statistic / 2)
    return above if freedom < 30 else min(1.0, 2 * min(above, 1 - above))


def normal_p(deviations: float) -> float:
    """How likely chance is to lie so many standard deviations away, on either side."""
    return math.erfc(abs(deviations) / math.sqrt(2))


def poisson_p(count: int, mean: float) -> float:
    """How likely a Poisson variable is to lie as far from its mean as this count, on its side."""
    at_most = gamma_tail(count + 1, mean)
    at_least = 1 - gamma_tail(count, mean) if count else 1.0
    return min(1.0, 2 * min(at_most, at_least))


def corrected(p_values: Iterable[float]) -> float:
    """The smallest of several p-values as one p-value: Bonferroni, so they may be dependent."""
    values = list(p_values)
    return min(1.0, min(values) * len(values))


# --- Tests of tables ------------------------------------------------------------------------------


def positions_p(table: np.ndarray) -> float:
    """Chi-square of positions against values: does every value come to every position equally?

    Rows are whole permutations of n values. In bins of any widths their counts vary as those of a
    table of chance whose rows and columns have fixed sums, but n / (n - 1) times as much.
    """
    num_rows, size = table.shape
    if size == 1:
        return 1.0
    num_bins = _num_bins(size, table.size)
    widths = _widths(size, num_bins)
    counts = _pair_counts(
        _bins(np.arange(size), size, num_bins), _bins(table, size, num_bins), num_bins
    )
    expected = num_rows * np.outer(widths, widths) / size
    statistic = ((counts - expected) ** 2 / expected).sum() * (size - 1) / size
    return chi_square_p(float(statistic), (num_bins - 1) ** 2)


def serial_p(table: np.ndarray, size: int) -> float:
    """Serial test: chi-square of the pairs of values at each two neighbouring positions.

    For one pair of positions the rows give independent pairs; over all of them, corrected.
    """
    if size == 1:
        return 1.0
    num_bins = _num_bins(size, table.shape[0])
    widths = _widths(size, num_bins)
    # No value follows itself: one fewer can follow inside its own bin.
    expected = np.outer(widths, widths) - np.diag(widths)
    expected = expected * table.shape[0] / (size * (size - 1))
    possible = expected > 0
    binned = _bins(table, size, num_bins)
    statistics = []
    for left, right in zip(binned.T[:-1], binned.T[1:], strict=True):
        counts = _pair_counts(left, right, num_bins)
        assert not counts[~possible].any(), "a value came twice"
        statistics.append(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    return corrected(chi_square_p(float(s), int(possible.sum()) - 1) for s in statistics)


def neighbours_p(table: np.ndarray) -> float:
    """Correlation of neighbours, the last one being the first one's, against its exact moments.

    Wald and Wolfowitz (1943) give mean and variance over all permutations of the n values.
    """
    num_rows, size = table.shape
    if size < 4:
        return 1.0  # the sum is the same for every order
    values = np.arange(size) - (size - 1) / 2
    squares, fourths = float((values**2).sum()), float((values**4).sum())
    mean = -squares / (size - 1)
    variance = (squares**2 - fourths) / (size - 1) - mean**2
    variance += (squares**2 - 2 * fourths) / ((size - 1) * (size - 2))
    centred = table - (size - 1) / 2
    sums = (centred * np.roll(centred, -1, axis=1)).sum(axis=1)
    return normal_p(float((sums - mean).sum()) / math.sqrt(num_rows * variance))


def birthdays_p(table: np.ndarray, size: int) -> float:
    """Birthday spacings: how many pairs of the gaps between a row's sorted values are the same.

    m different values divide a circle of n into m gaps. Two of them are the same with probability
    (m - 1) / (2n - m), to a relative error of (m / n)^2, and there are m (m - 1) / 2 pairs. The
    sum is Poisson as long as a few are expected of a row. (The usual count, of gaps that came
    before, takes three of a kind for two pairs: with 10^7 values out of 2^20 that alone is three
    deviations.)
    """
    num_rows, num_values = table.shape
    days = np.sort(table, axis=1)
    gaps = np.sort(np.diff(days, axis=1, append=days[:, :1] + size), axis=1)
    pairs = 0
    for distance in range(1, num_values):
        same = int((gaps[:, distance:] == gaps[:, :-distance]).sum())
        if not same:
            break
        pairs += same
    mean = num_rows * num_values * (num_values - 1) ** 2 / (2 * (2 * size - num_values))
    return poisson_p(pairs, mean)


def birthday_count(size: int) -> int:
    """How many values of a row to take: two pairs of gaps are expected to be the same."""
    return round(math.cbrt(8 * size))


def correlation_p(one: np.ndarray, other: np.ndarray) -> float:
    """Correlation of two tables, row by row; its spread over the rows is taken as it is."""
    assert len(one) >= 100, "fewer rows do not say what their spread is"
    one, other = (table - table.mean(axis=1, keepdims=True) for table in (one, other))
    sums = (one * other).sum(axis=1)
    spread = float(sums.std())
    if spread == 0:
        # Rows of one value have nothing to correlate; the same in every row is no chance.
        return 1.0 if not sums.any() else 0.0
    return normal_p(float(sums.mean()) / spread * math.sqrt(len(sums)))


def relative(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Where in each row of `one` the values of `other` stand.

    Of two unrelated permutations a permutation like any other, so the tests above apply to it.
    """
    return np.take_along_axis(np.argsort(one, axis=1), other, axis=1)


def listed_p(draws: np.ndarray, probabilities: np.ndarray) -> float:
    """Chi-square of each column of draws against its own row of probabilities, corrected.

    Values that are rarely expected are taken together.
    """
    p_values = []
    for drawn, chances in zip(draws.T, probabilities, strict=True):
        counts = np.bincount(drawn, minlength=len(chances))
        assert not counts[chances == 0].any(), "what cannot come came"
        expected = chances * len(drawn)
        often = expected >= LEAST_EXPECTED
        assert often.any(), "too few draws to tell anything"
        counts = np.append(counts[often], counts[~often].sum())
        expected = np.append(expected[often], expected[~often].sum())
        cells = expected > 0
        statistic = ((counts - expected)[cells] ** 2 / expected[cells]).sum()
        p_values.append(chi_square_p(float(statistic), int(cells.sum()) - 1))
    return corrected(p_values)


def _num_bins(size: int, num_draws: int) -> int:
    """So many bins that each pair of them can expect enough draws."""
    num_bins = min(size, math.isqrt(num_draws // LEAST_EXPECTED))
    assert num_bins > 1, "too few draws to tell anything"
    return num_bins


def _bins(values: np.ndarray, size: int, num_bins: int) -> np.ndarray:
    assert size * num_bins < 2**63
    return values * num_bins // size


def _widths(size: int, num_bins: int) -> np.ndarray:
    """How many of the values 0 .. size - 1 each bin holds."""
    bounds = [-(-size * number // num_bins) for number in range(num_bins + 1)]
    return np.diff(bounds).astype(float)


def _pair_counts(left: np.ndarray, right: np.ndarray, num_bins: int) -> np.ndarray:
    pairs = (left * num_bins + right).ravel()
    return np.bincount(pairs, minlength=num_bins**2).reshape(num_bins, num_bins)


# --- Tables ---------------------------------------------------------------------------------------


class Permutations(Permutation):
    """The permutations of one size under many keys, computed together since that is faster."""

    num_rounds = NUM_ROUNDS
    """Fewer make it weak: see `Weakened`."""

    def __init__(self, size: int, purpose: str, keys: Sequence[tuple[int, ...]]) -> None:
        super().__init__(size, purpose)
        self._num_keys = len(keys)
        derived = [derive_keys(purpose, *key, count=2 * NUM_ROUNDS) for key in keys]
        table = np.array(derived).reshape(len(keys), NUM_ROUNDS, 2)
        self._all_keys = np.ascontiguousarray(table.transpose(1, 2, 0))

    def table(self, first: int, count: int) -> np.ndarray:
        """What each key makes of the values first .. first + count - 1, one row a key."""
        if self.size == 1:
            return np.zeros((self._num_keys, count), dtype=np.int64)
        values = np.arange(first, first + count, dtype=np.uint64)
        self._keys = self._all_keys[..., None]
        result = self._encrypt(np.broadcast_to(values, (self._num_keys, count)))
        rows, columns = np.nonzero(result >= self.size)
        while rows.size:
            self._keys = self._all_keys[..., rows]
            again = self._encrypt(result[rows, columns])
            result[rows, columns] = again
            outside = again >= self.size
            rows, columns = rows[outside], columns[outside]
        return result.astype(np.int64)

    def _hash(self, number: int, digit: np.ndarray) -> np.ndarray:
        if number >= self.num_rounds:
            return np.zeros_like(digit)
        return super()._hash(number, digit)


class Weakened(Permutations):
    """Two rounds: each value still comes to each position equally often, but pairs do not."""

    num_rounds = 2


class Broken(Permutations):
    """One round moves the left digit only."""

    num_rounds = 1


def permutations(
    size: int,
    num_rows: int,
    count: int | None = None,
    kind: type[Permutations] = Permutations,
    seed: int = 0,
) -> np.ndarray:
    """A table of permutations under so many keys: of all of their values or of the first `count`.

    Keys go over seeds and epochs alike.
    """
    count = size if count is None else count
    rows_at_once = max(1, VALUES_AT_ONCE // count)
    table = np.empty((num_rows, count), dtype=np.int64)
    for start in range(0, num_rows, rows_at_once):
        rows = range(start, min(start + rows_at_once, num_rows))
        keys = [(seed + row // 8, row % 8) for row in rows]
        table[start : start + len(rows)] = kind(size, "statistics", keys).table(0, count)
    return table


def epochs(orders: Iterable[Order], epoch: int = 0) -> np.ndarray:
    """A table of one epoch of each of these orders, which are of one size."""
    return np.stack([order.at(epoch * order.num_samples, order.num_samples)[1] for order in orders])


def row_of_blocks(table: np.ndarray, samples_per_block: int) -> np.ndarray:
    """The blocks in the order in which each row first comes to them.

    A permutation like any other if all blocks are full: their row is one, and so is a window.
    """
    blocks = table // samples_per_block
    firsts = [np.unique(row, return_index=True)[1] for row in blocks]
    return np.argsort(np.stack(firsts), axis=1)


def ranks_in_window(order: Order, position: int, count: int) -> np.ndarray:
    """What is drawn from a position on, as places among all samples of the window, sorted."""
    window = order.window_at(position)
    assert position + count <= window.end_position
    starts, ends = np.array(sorted(window.samples)).T
    before = np.cumsum(ends - starts) - (ends - starts)
    samples = order.at(position, count)[1]
    blocks = np.searchsorted(starts, samples, side="right") - 1
    ranks: np.ndarray = samples - starts[blocks] + before[blocks]
    return ranks


def ideal_probabilities(order: Order) -> np.ndarray:
    """How likely each sample is at each position of an epoch, were the order's keys pure chance.

    Not the same for all if the last block is short: it stands in each slot equally often, and the
    windows' bounds move with it.
    """
    block = min(order.samples_per_block, order.num_samples)
    num_blocks = -(-order.num_samples // block)
    num_short = order.num_samples - (num_blocks - 1) * block
    chances = np.zeros((order.num_samples, order.num_samples))
    in_short = np.arange(order.num_samples) // block == num_blocks - 1
    for short_slot in range(num_blocks):
        start = 0
        for first_slot in range(0, num_blocks, order.window_blocks):
            slots = range(first_slot, min(first_slot + order.window_blocks, num_blocks))
            has_short = short_slot in slots
            size = len(slots) * block - (block - num_short if has_short else 0)
            full_chance = (len(slots) - has_short) / max(1, num_blocks - 1)
            row = np.where(in_short, float(has_short), full_chance) / size
            chances[start : start + size] += row / num_blocks
            start += size
    return chances
