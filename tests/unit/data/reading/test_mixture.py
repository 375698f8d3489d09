"""A mixture keeps its members' shares in every stretch, and every member its own order."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data.mixture_shares import NUM_SLOTS, divide_slots
from headway.data.order import Order
from headway.data.reading.block_fetcher import Need
from headway.data.reading.look_ahead import AHEAD_STEPS, BatchShare
from headway.data.reading.mixture import (
    MemberSpec,
    MixtureManifest,
    MixtureMember,
    MixtureSet,
    is_mixture,
    member_shares,
    read_mixture,
    write_mixture,
)
from headway.data.reading.mixture_order import (
    MixtureOrder,
    SlotTable,
    arrange_slots,
    member_seed,
)
from headway.data.reading.token_set import ReadOptions, TokenSet
from headway.data.set_format import SetManifest, SpecialIds, file_digest, token_dtype
from headway.data.shard_table import Part
from headway.errors import BadInput, HeadwayError, NotFound
from headway.state.store import Store
from support.fake_s3 import fake_s3
from support.token_sets import copy_to, write_shard, write_table

small_slots = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def write_set(
    folder: Path,
    num_tokens: int,
    *,
    first: int = 0,
    mask: Sequence[bool] | None = None,
    vocab_size: int = 2**16,
    window_tokens: int | None = None,
    mask_id: int | None = None,
    tokenizer: str = "{}",
) -> SetManifest:
    """Tokens first, first + 1, ...: a sample says which set it is from. Small blocks, so that an
    order has windows."""
    (folder / "shards").mkdir(parents=True)
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer.json").write_text(tokenizer)
    dtype = "<u2" if token_dtype(vocab_size) == "uint16" else "<u4"
    parts: dict[Part, np.ndarray] = {
        "tokens": np.arange(first, first + num_tokens).astype(dtype),
        "documents": np.zeros(1, dtype="<u8"),
    }
    if mask is not None:
        parts["mask"] = np.array(mask, dtype=np.uint8)
    shards = [write_shard(folder, "00000", parts)]
    manifest = SetManifest(
        layout="stream" if window_tokens is None else "windows",
        window_tokens=window_tokens,
        vocab_size=vocab_size,
        token_dtype=token_dtype(vocab_size),
        num_tokens=num_tokens,
        num_documents=1,
        num_bytes=num_tokens,
        block_tokens=8,
        window_blocks=2,
        special_ids=SpecialIds(end_of_text=0, mask=mask_id, special=(0,)),
        tokenizer_digest=file_digest(folder / "tokenizer" / "tokenizer.json"),
        num_shards=1,
        shard_table_digest=write_table(folder, shards),
        created_by="a test",
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    return manifest


def weighted(**weights: float) -> list[MemberSpec]:
    return [MemberSpec(name=name, location=name, weight=weight) for name, weight in weights.items()]


def in_epochs(**epochs: float) -> list[MemberSpec]:
    return [MemberSpec(name=name, location=name, epochs=times) for name, times in epochs.items()]


def small_order(slots: Sequence[int], lengths: Sequence[int], seed: int = 5) -> MixtureOrder:
    """Small blocks and windows: every member goes through many of them."""
    return MixtureOrder(
        SlotTable(slots),
        tuple(Order(member_seed(seed, i), length, 6, 4) for i, length in enumerate(lengths)),
        tuple((np.cumsum(lengths) - lengths).tolist()),
    )


@st.composite
def small_orders(draw: st.DrawFn) -> MixtureOrder:
    slots = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    lengths = [draw(st.integers(1, 60)) for _ in slots]
    return small_order(slots, lengths, draw(st.integers(0, 2**63)))


# The table


def deviations(table: np.ndarray, slots: Sequence[int]) -> np.ndarray:
    """For each member and number n of slots: (those it has among the first n - n * share) * size,
    in whole numbers; nothing at n = 0."""
    ends = np.arange(len(table) + 1)
    rows = []
    for number, count in enumerate(slots):
        before = np.concatenate([[0], np.cumsum(table == number)])
        rows.append(before * len(table) - ends * count)
    return np.array(rows)


def require_even(table: np.ndarray, slots: Sequence[int]) -> None:
    """The bound that `arrange` states, for every stretch, those across table ends included.

    Every table has all of a member's slots, so the deviation is nothing at its end and goes on as
    at its start: a stretch from anywhere to anywhere deviates by the difference of two of these.
    """
    assert np.bincount(table, minlength=len(slots)).tolist() == list(slots)
    found = deviations(table, slots)
    assert (found[:, -1] == 0).all()
    if len(slots) == 1:
        return
    size, parts = len(table), 2 * (len(slots) - 1)
    assert np.abs(found).max() * parts <= size * (parts - 1)  # 1 - 1 / (2m - 2), after any n
    assert (found.max(axis=1) - found.min(axis=1)).max() < 2 * size  # 2, in any stretch


@settings(deadline=None, max_examples=150)
@given(slots=small_slots)
def test_every_stretch_holds_every_member_by_its_share(slots: list[int]) -> None:
    require_even(arrange_slots(slots), slots)


@settings(deadline=None, max_examples=12)
@given(slots=st.lists(st.integers(1, 7), min_size=2, max_size=5))
def test_every_stretch_counted_one_by_one(slots: list[int]) -> None:
    """The same as above, by counting and not by an argument."""
    size = sum(slots)
    members = SlotTable(slots).at(0, 3 * size)[0]
    for start, end in itertools.combinations(range(3 * size + 1), 2):
        for number, count in enumerate(slots):
            found = np.count_nonzero(members[start:end] == number)
            assert abs(Fraction(found) - Fraction((end - start) * count, size)) < 2


@pytest.mark.parametrize(
    "slots",
    [
        (NUM_SLOTS,),
        (NUM_SLOTS // 2, NUM_SLOTS // 2),
        (NUM_SLOTS - 1, 1),
        (1, NUM_SLOTS - 1),
        (45875, 13107, 6553, 1),
        (21846, 21845, 21845),
        (NUM_SLOTS - 100 * 65, *[65] * 100),
        (*[1] * 300, 7, NUM_SLOTS - 307),
    ],
    ids=lambda slots: f"{len(slots)}-members-{slots[0]}",
)
def test_every_stretch_of_a_real_table(slots: tuple[int, ...]) -> None:
    require_even(arrange_slots(slots), slots)


def test_many_small_members_do_not_crowd_out_a_large_one() -> None:
    table = arrange_slots((NUM_SLOTS - 100 * 65, *[65] * 100))
    large = np.flatnonzero(table == 0)
    assert np.diff(large).max() <= 3  # its share is 90 %


@settings(deadline=None, max_examples=60)
@given(slots=st.lists(st.integers(1, 15), min_size=2, max_size=6))
def test_the_table_is_the_one_of_tijdemans_rule(slots: list[int]) -> None:
    """His words, in fractions and without a heap."""
    size = sum(slots)
    given_so_far = [0] * len(slots)
    least = Fraction(1, 2 * len(slots) - 2)
    expected = []
    for place in range(1, size + 1):
        owed = [
            Fraction(place * count, size) - x for count, x in zip(slots, given_so_far, strict=True)
        ]
        chosen = min(
            (number for number in range(len(slots)) if owed[number] >= least),
            key=lambda number: (1 - least - owed[number]) / Fraction(slots[number], size),
        )
        given_so_far[chosen] += 1
        expected.append(chosen)
    assert arrange_slots(slots).tolist() == expected


amounts = st.one_of(
    st.integers(1, 1000).map(Fraction),
    st.fractions(min_value=Fraction(1, 10**6), max_value=10**6, max_denominator=10**6),
)


@settings(deadline=None, max_examples=200)
@given(wanted=st.lists(amounts, min_size=1, max_size=20), spare=st.integers(0, 500))
def test_slots_are_divided_by_largest_remainder(wanted: list[Fraction], spare: int) -> None:
    num_slots = len(wanted) + spare
    slots = divide_slots(wanted, num_slots)
    assert sum(slots) == num_slots
    assert min(slots) >= 1
    for one, other in itertools.permutations(range(len(wanted)), 2):
        if wanted[one] > wanted[other]:
            assert slots[one] >= slots[other]
        if wanted[one] == wanted[other] and one < other:
            assert slots[other] <= slots[one] <= slots[other] + 1
    exact = [amount / sum(wanted) * num_slots for amount in wanted]
    if min(exact) >= 1:
        assert all(abs(slot - due) < 1 for slot, due in zip(slots, exact, strict=True))
        up = [due - int(due) for slot, due in zip(slots, exact, strict=True) if slot > due]
        down = [due - int(due) for slot, due in zip(slots, exact, strict=True) if slot < due]
        assert not up or not down or min(up) >= max(down)


@settings(deadline=None, max_examples=100)
@given(sizes=st.lists(st.floats(0.92, 3000), min_size=1, max_size=60))
def test_from_eleven_slots_on_a_share_is_met_within_a_tenth(sizes: list[float]) -> None:
    """As the refusal's hint says, whatever the others are."""
    wanted = [Fraction(size) for size in sizes]
    wanted.append(NUM_SLOTS - sum(wanted))
    if wanted[-1] <= 0:
        return
    for due, count in zip(wanted, divide_slots(wanted, NUM_SLOTS), strict=True):
        assert due < 11 or abs(count - due) <= due / 10


def test_equal_weights_get_equal_slots_but_for_the_rest(tmp_path: Path) -> None:
    for name in "abc":
        write_set(tmp_path / name, 30)
    thirds = write_mixture(
        Store(tmp_path / "thirds"), located(tmp_path, weighted(a=0.1, b=0.1, c=0.1))
    )
    assert thirds.slots == (21846, 21845, 21845)
    written = write_mixture(
        Store(tmp_path / "mix"), located(tmp_path, weighted(a=0.1, b=0.2, c=0.7))
    )
    assert written.slots == (6554, 13107, 45875)  # 6553.6, 13107.2, 45875.2


# The order


@settings(deadline=None, max_examples=30)
@given(order=small_orders(), first=st.integers(0, 300), data=st.data())
def test_every_member_comes_in_its_own_order(
    order: MixtureOrder, first: int, data: st.DataObject
) -> None:
    """Every sample of a member once in each of its epochs, by enumeration."""
    count = data.draw(st.integers(0, 300))
    epochs, samples = order.at(0, first + count)
    assert epochs.dtype == samples.dtype == np.int64
    members = order.table.at(0, first + count)[0]
    for number, own in enumerate(order.orders):
        here = members == number
        expected_epochs, expected_samples = own.at(0, int(here.sum()))
        assert np.array_equal(epochs[here], expected_epochs)
        assert np.array_equal(samples[here] - order.offsets[number], expected_samples)
        for epoch in range(int(here.sum()) // own.num_samples):
            seen = samples[here][epochs[here] == epoch] - order.offsets[number]
            assert sorted(seen.tolist()) == list(range(own.num_samples))
    later = order.at(first, count)
    assert np.array_equal(later[0], epochs[first:])
    assert np.array_equal(later[1], samples[first:])


@settings(deadline=None, max_examples=60)
@given(
    slots=small_slots,
    first=st.one_of(st.integers(0, 200), st.integers(0, 10**15)),
    count=st.integers(0, 150),
)
def test_positions_are_exact_however_far(slots: list[int], first: int, count: int) -> None:
    table = SlotTable(slots)
    members, indices = table.at(first, count)
    arranged, size = arrange_slots(slots).tolist(), sum(slots)
    for place, (member, index) in enumerate(zip(members.tolist(), indices.tolist(), strict=True)):
        cycle, slot = divmod(first + place, size)
        assert member == arranged[slot]
        assert index == cycle * slots[member] + arranged[:slot].count(member)
    before, after = table.counts(first), table.counts(first + count)
    for number in range(len(slots)):
        assert after[number] - before[number] == np.count_nonzero(members == number)
    assert sum(before) == first


def test_members_of_equal_length_do_not_march_in_step() -> None:
    orders = small_order((1, 1, 1), (500, 500, 500)).orders
    one, other, third = (order.at(0, 500)[1] for order in orders)
    # Of two unrelated orders about one place agrees.
    assert max((one == other).sum(), (one == third).sum(), (other == third).sum()) < 10
    seeds = {member_seed(seed, number) for seed in range(20) for number in range(20)}
    assert len(seeds) == 400


def test_the_values_are_frozen() -> None:
    """Never update these values: every run that could be resumed would continue with other data."""
    assert arrange_slots((5, 2, 1)).tolist() == [0, 0, 1, 0, 2, 0, 1, 0]
    slots = divide_slots([Fraction(7, 10), Fraction(2, 10), Fraction(1, 10)], NUM_SLOTS)
    assert slots == (45875, 13107, 6554)
    slots = (45875, 13107, 6553, 1)
    table = arrange_slots(slots).astype("<i4").tobytes()
    assert xxhash.xxh3_128_hexdigest(table) == "efcb00b047a4326410670776b690e995"
    assert [member_seed(17, number) for number in range(3)] == [
        *(1693684129373161234, 2290861396187777516, 12585715842046319184)
    ]

    members = tuple(
        MixtureMember(name=name, location=name, weight=1, digest=32 * name, slots=slots)
        for name, slots in (("a", 49152), ("b", 16384))
    )
    assert (
        MixtureManifest(members=members, created_by="a test").digest
        == "54eec16589164e28da69c3d14f106c91"
    )

    sizes = (1000, 1000, 7)
    orders = tuple(Order(member_seed(17, i), size, 16, 4) for i, size in enumerate(sizes))
    order = MixtureOrder(SlotTable((5, 2, 1)), orders, (0, 1000, 2000))
    assert order.at(0, 8)[1].tolist() == [994, 814, 1309, 999, 2000, 810, 1312, 809]
    epochs, samples = order.at(12345, 8)
    assert epochs.tolist() == [7, 3, 7, 220, 7, 3, 7, 7]
    assert samples.tolist() == [13, 1371, 686, 2000, 581, 1834, 577, 9]

    size = 10**13 // 1024
    large = MixtureOrder(
        SlotTable(slots),
        tuple(Order(member_seed(17, i), size, 1024, 64) for i in range(4)),
        tuple(i * size for i in range(4)),
    )
    epochs, samples = large.at(123_456_789_012, 6)
    assert epochs.tolist() == [1, 8, 2, 8, 8, 8]
    assert samples.tolist() == [
        *(25252110619, 6174423258, 10316292833, 7655787353, 2005637866, 783375474)
    ]


def test_a_batch_of_ten_trillion_tokens_takes_milliseconds() -> None:
    size = 10**13 // 1024 // 4
    order = MixtureOrder(
        SlotTable((NUM_SLOTS // 4,) * 4),
        tuple(Order(member_seed(17, i), size, 1024, 64) for i in range(4)),
        tuple(i * size for i in range(4)),
    )
    took = []
    for attempt in range(20):
        since = time.perf_counter()
        order.at(10**9 * attempt, 512)
        took.append(time.perf_counter() - since)
    assert min(took) < 0.8  # 4 to 8 ms measured; by listing an epoch: minutes


# Sets


def located(folder: Path, members: list[MemberSpec]) -> list[MemberSpec]:
    return [m.model_copy(update={"location": str(folder / m.location)}) for m in members]


def test_a_mixture_reads_as_one_set(tmp_path: Path) -> None:
    one, other = write_set(tmp_path / "a", 101), write_set(tmp_path / "b", 44, first=1000)
    members = [
        MemberSpec(name="a", location="../a", weight=3),
        MemberSpec(name="b", location=str(tmp_path / "b"), weight=1),
    ]
    written = write_mixture(Store(tmp_path / "mix"), members)
    assert [member.digest for member in written.members] == [one.digest, other.digest]
    assert written.slots == (3 * NUM_SLOTS // 4, NUM_SLOTS // 4)
    assert is_mixture(Store(tmp_path / "mix"))
    assert not is_mixture(Store(tmp_path / "a"))

    mixture = MixtureSet.open(Store(tmp_path / "mix"))
    assert mixture.manifest == written
    assert mixture.location == str(tmp_path / "mix")
    assert mixture.digest == written.digest
    assert (mixture.layout, mixture.window_tokens, mixture.vocab_size) == ("stream", None, 2**16)
    assert mixture.special_ids == one.special_ids
    assert (Path(mixture.tokenizer_folder) / "tokenizer.json").read_text() == "{}"
    assert mixture.num_samples(10) == 10 + 4
    assert mixture.num_own_samples(10) == [10, 4]
    assert mixture.tail_tokens(10) == 0 + 3

    rows = mixture.read(np.array([13, 0, 10, 9, 13]), 10)
    assert rows.tokens.shape == (5, 11)
    assert rows.tokens[:, 0].tolist() == [1030, 0, 1000, 90, 1030]
    assert (np.diff(rows.tokens, axis=1) == 1).all()
    assert rows.mask is None
    assert mixture.read(np.array([], dtype=np.int64), 10).tokens.shape == (0, 11)

    epochs, samples = mixture.order(7, 10).at(0, 40)
    tokens = mixture.read(samples, 10).tokens[:, 0]
    assert (tokens < 1000).sum() == 30
    assert sorted(tokens[tokens < 1000].tolist()) == sorted(3 * list(range(0, 100, 10)))
    assert epochs[tokens >= 1000].tolist() == [0] * 4 + [1] * 4 + [2] * 2
    mixture.close()


class Watched(TokenSet):
    """A set that only notes how far it is to look ahead."""

    asked: tuple[int, range, np.ndarray | None]

    def needs(
        self,
        seed: int,
        sequence_length: int,
        batch: range,
        rows: np.ndarray | None,
        of_machine: float,
    ) -> list[Need] | None:
        self.asked = (seed, batch, rows)
        return None


def test_every_member_fetches_its_own_part_ahead(tmp_path: Path) -> None:
    for name in "abc":
        write_set(tmp_path / name, 101)
    manifest = write_mixture(Store(tmp_path / "mix"), located(tmp_path, weighted(a=90, b=9, c=1)))
    with fake_s3():
        sets = []
        for name in "abc":
            copy_to(f"s3://bucket/{name}", tmp_path / name)
            opened = Watched.open(Store(f"s3://bucket/{name}"), ReadOptions(cache=tmp_path))
            assert isinstance(opened, Watched)
            sets.append(opened)
    mixture = MixtureSet(Store(tmp_path / "mix"), manifest, sets)
    step, batch = 10_239, 32
    mixture.prefetch(7, 10, step, BatchShare(batch, 4, 2, 0.1))
    members, indices = mixture.table.at(step * batch, batch)
    ahead = mixture.table.at(step * batch, batch * AHEAD_STEPS)
    own = np.arange(batch * AHEAD_STEPS) % batch // 2 == 2
    for number, member in enumerate(sets):
        seed, here, rows = member.asked
        assert seed == member_seed(7, number)
        assert list(here) == indices[members == number].tolist()
        assert rows is not None
        assert rows.tolist() == ahead[1][own & (ahead[0] == number)].tolist()
    mixture.close()


def test_members_may_have_a_loss_mask_or_none(tmp_path: Path) -> None:
    counts = [place % 3 == 0 for place in range(41)]
    write_set(tmp_path / "text", 41)
    write_set(tmp_path / "chat", 41, first=1000, mask=counts)
    write_mixture(Store(tmp_path / "mix"), located(tmp_path, weighted(text=1, chat=1)))
    mixture = MixtureSet.open(Store(tmp_path / "mix"))
    rows = mixture.read(np.array([5, 0, 7, 3]), 10)
    assert rows.mask is not None
    assert rows.mask.dtype == np.bool_
    assert rows.mask[[1, 3]].all()
    assert rows.mask[0].tolist() == counts[10:21]
    assert rows.mask[2].tolist() == counts[30:41]
    mixture.close()


def test_windows_can_be_mixed(tmp_path: Path) -> None:
    write_set(tmp_path / "a", 40, window_tokens=4, mask_id=3)
    write_set(tmp_path / "b", 12, first=1000, window_tokens=4, mask_id=3)
    write_mixture(Store(tmp_path / "mix"), located(tmp_path, weighted(a=1, b=1)))
    mixture = MixtureSet.open(Store(tmp_path / "mix"))
    assert (mixture.layout, mixture.window_tokens, mixture.num_samples(4)) == ("windows", 4, 13)
    assert mixture.read(np.array([12, 9]), 4).tokens.tolist() == [
        [1008, 1009, 1010, 1011],
        [36, 37, 38, 39],
    ]
    with pytest.raises(BadInput, match="windows of 4 tokens"):
        mixture.order(1, 8)
    mixture.close()


def test_a_member_too_short_for_one_sample_is_named(tmp_path: Path) -> None:
    write_set(tmp_path / "a", 101)
    write_set(tmp_path / "short", 5, first=1000)
    write_set(tmp_path / "c", 101, first=2000)
    write_mixture(Store(tmp_path / "mix"), located(tmp_path, weighted(a=1, short=1, c=1)))
    mixture = MixtureSet.open(Store(tmp_path / "mix"))
    with pytest.raises(BadInput, match=r"short.*too few for one sample"):
        mixture.order(1, 10)
    # `data show` still counts, and numbers still lead to the right member.
    assert [share.num_epochs for share in member_shares(mixture, 10)][1] is None
    assert mixture.read(np.array([10, 9]), 10).tokens[:, 0].tolist() == [2000, 90]
    mixture.close()


def test_epochs_say_how_often_each_member_is_read(tmp_path: Path) -> None:
    write_set(tmp_path / "a", 4001)
    write_set(tmp_path / "b", 1201, first=10_000)
    write_set(tmp_path / "c", 8001, first=20_000)
    write_mixture(Store(tmp_path / "mix"), located(tmp_path, in_epochs(a=1, b=2.55, c=0.5)))
    mixture = MixtureSet.open(Store(tmp_path / "mix"))
    assert mixture.num_own_samples(10) == [400, 120, 800]
    assert mixture.num_samples(10) == 400 + 306 + 400
    assert mixture.num_samples(1000) == 4 + 3 + 4  # 2.55 is rounded
    found = member_shares(mixture, 10)
    # The table's shares are by tokens, and this epoch ends inside it: within 2 of what was asked.
    assert [share.num_positions for share in found] == pytest.approx([400, 306, 400], abs=2)
    assert [share.num_epochs for share in found] == pytest.approx([1, 2.55, 0.5], abs=0.02)
    epochs, samples = mixture.order(3, 10).at(0, mixture.num_samples(10))
    ends = np.cumsum(mixture.num_own_samples(10))
    members = np.searchsorted(ends, samples, side="right")
    assert np.bincount(members).tolist() == [share.num_positions for share in found]
    assert np.bincount(epochs[members == 1]).tolist()[:2] == [120, 120]
    mixture.close()


def test_epochs_are_the_decimals_as_written(tmp_path: Path) -> None:
    write_set(tmp_path / "a", 101)
    write_mixture(Store(tmp_path / "mix"), located(tmp_path, in_epochs(a=0.15)))
    mixture = MixtureSet.open(Store(tmp_path / "mix"))
    assert mixture.num_samples(10) == 2  # 1.5, rounded to even; the float 0.15 is a little less
    mixture.close()


def test_shares_tell_what_a_mixture_comes_to(tmp_path: Path) -> None:
    write_set(tmp_path / "a", 1001)
    write_set(tmp_path / "b", 201, first=10_000)
    write_mixture(Store(tmp_path / "mix"), located(tmp_path, weighted(a=2, b=1)))
    mixture = MixtureSet.open(Store(tmp_path / "mix"))
    a, b = member_shares(mixture, 10)
    assert (a.name, a.num_samples, b.name, b.num_samples) == ("a", 100, "b", 20)
    assert (a.wanted, b.wanted) == (2 / 3, 1 / 3)
    assert (a.share, b.share) == (43691 / NUM_SLOTS, 21845 / NUM_SLOTS)
    assert (a.num_positions, b.num_positions) == (80, 40)
    assert (a.num_epochs, b.num_epochs) == (0.8, 2.0)
    mixture.close()


def test_identity_is_content_order_and_slots_not_places_or_names(tmp_path: Path) -> None:
    for folder in ("here", "there"):
        write_set(tmp_path / folder / "a", 101)
        write_set(tmp_path / folder / "b", 101, first=1000)

    def digest(name: str, folder: str, members: list[MemberSpec]) -> str:
        return write_mixture(Store(tmp_path / name), located(tmp_path / folder, members)).digest

    first = digest("1", "here", weighted(a=3, b=1))
    assert digest("2", "there", weighted(a=3, b=1)) == first
    assert digest("3", "here", weighted(a=75, b=25)) == first
    renamed = [member.model_copy(update={"name": f"x{member.name}"}) for member in weighted(a=3)]
    assert digest("4", "here", [*renamed, *weighted(b=1)]) == first
    assert digest("5", "here", in_epochs(a=3, b=1)) != first, "its epochs have another length"
    assert digest("6", "here", weighted(b=1, a=3)) != first
    assert digest("7", "here", weighted(a=2, b=1)) != first


def test_a_mixture_is_read_as_it_was_written(tmp_path: Path) -> None:
    for name in "ab":
        write_set(tmp_path / name, 101)
    written = write_mixture(Store(tmp_path / "mix"), located(tmp_path, weighted(a=3, b=1)))
    assert read_mixture(Store(tmp_path / "mix")) == written


def refused(folder: Path, members: list[MemberSpec], kind: type[HeadwayError] = BadInput) -> str:
    """What `write_mixture` says; nothing is left behind."""
    with pytest.raises(kind) as caught:
        write_mixture(Store(folder / "mix"), located(folder, members))
    assert not (folder / "mix").exists()
    assert caught.value.hint
    return caught.value.message


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"tokenizer": "{ }"}, "tokenizer_digest is"),
        ({"vocab_size": 2**17}, "vocab_size is 65536 and 131072"),
        ({"mask_id": 3}, "special_ids is"),
        ({"window_tokens": 5}, "layout is stream and windows"),
    ],
)
def test_members_that_do_not_fit_are_named(
    tmp_path: Path, other: dict[str, object], says: str
) -> None:
    write_set(tmp_path / "a", 100)
    write_set(tmp_path / "b", 100, first=100)
    write_set(tmp_path / "c", 100, **other)  # type: ignore[arg-type]
    said = refused(tmp_path, weighted(a=1, b=1, c=1))
    assert said.startswith(f"a ({tmp_path}/a) and c ({tmp_path}/c) cannot be mixed: {says}")


def test_windows_of_different_lengths_are_refused(tmp_path: Path) -> None:
    write_set(tmp_path / "a", 100, window_tokens=10)
    write_set(tmp_path / "b", 100, window_tokens=20)
    assert "window_tokens is 10 and 20" in refused(tmp_path, weighted(a=1, b=1))


def test_members_are_weighted_or_counted_in_epochs_not_both(tmp_path: Path) -> None:
    for name in "ab":
        write_set(tmp_path / name, 100)
    both = [*weighted(a=1), *in_epochs(b=2)]
    assert "a has a weight and b has epochs" in refused(tmp_path, both)
    said = refused(tmp_path, [MemberSpec(name="a", location="a", weight=1, epochs=1)])
    assert "a has both weight and epochs" in said
    said = refused(tmp_path, [*weighted(a=1), MemberSpec(name="b", location="b")])
    assert "b has neither weight nor epochs" in said
    assert "two members are named a" in refused(tmp_path, [*weighted(a=1), *weighted(a=2)])
    assert "at least one member" in refused(tmp_path, [])


def test_a_share_that_the_table_would_misstate_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        write_set(tmp_path / name, 100)
    said = refused(tmp_path, weighted(a=1_000_000, b=1))
    assert said.startswith("b cannot have 0.0001 % of the mixture: rounded to 1 of 65536 slots")
    assert said.endswith("it would be 0.00153 %; the smallest share there can be is 0.00153 %")
    # 0.9 slots are 11 % off and 1.4 are 29 %; 0.95 are 5 %.
    refused(tmp_path, weighted(a=NUM_SLOTS - 0.9, b=0.9))
    refused(tmp_path, weighted(a=NUM_SLOTS - 1.4, b=1.4))
    near = located(tmp_path, weighted(a=NUM_SLOTS - 0.95, b=0.95))
    assert write_mixture(Store(tmp_path / "near"), near).slots == (NUM_SLOTS - 1, 1)
    exact = located(tmp_path, weighted(a=NUM_SLOTS - 1, b=1))
    assert write_mixture(Store(tmp_path / "exact"), exact).slots == (NUM_SLOTS - 1, 1)


def test_a_member_must_be_a_prepared_set(tmp_path: Path) -> None:
    write_set(tmp_path / "a", 100)
    assert "nowhere is not a prepared set" in refused(tmp_path, weighted(a=1, nowhere=1), NotFound)
    write_mixture(Store(tmp_path / "inner"), located(tmp_path, weighted(a=1)))
    assert "inner" in refused(tmp_path, weighted(a=1, inner=1))


def test_a_member_that_is_now_another_set_is_refused_by_name(tmp_path: Path) -> None:
    write_set(tmp_path / "a", 100)
    before = write_set(tmp_path / "b", 100)
    write_mixture(Store(tmp_path / "mix"), located(tmp_path, weighted(a=1, b=1)))
    (tmp_path / "b").rename(tmp_path / "old")
    after = write_set(tmp_path / "b", 100, tokenizer="{ }")
    with pytest.raises(BadInput) as caught:
        MixtureSet.open(Store(tmp_path / "mix"))
    assert f"b ({tmp_path}/b) is not the set" in caught.value.message
    assert f"its digest is {after.digest}, not {before.digest}" in caught.value.message


def test_a_folder_without_a_mixture_is_not_found(tmp_path: Path) -> None:
    write_set(tmp_path / "a", 100)
    for name in ("a", "nowhere"):
        with pytest.raises(NotFound, match="is not a mixture"):
            MixtureSet.open(Store(tmp_path / name))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 3}, "format version 3; this Headway reads versions 1 and 2"),
        ({"colour": "red"}, "colour"),
        ({"members": []}, "members"),
        ({"slots": 1}, "do not add up to 65536"),
        ({"slots": 0}, r"members\.0\.slots"),
        ({"weight": 2}, "the slots do not match"),
        ({"weight": -1}, r"members\.0\.weight"),
        ({"weight": None, "epochs": 3}, "a has epochs"),
    ],
)
def test_an_impossible_manifest_is_refused(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    for name in "ab":
        write_set(tmp_path / name, 100)
    write_mixture(Store(tmp_path / "mix"), located(tmp_path, weighted(a=1, b=1)))
    path = tmp_path / "mix" / "mixture.json"
    fields = json.loads(path.read_text())
    (fields if change.keys() & {"version", "colour", "members"} else fields["members"][0]).update(
        change
    )
    path.write_text(json.dumps(fields))
    with pytest.raises(BadInput, match=says) as caught:
        MixtureSet.open(Store(tmp_path / "mix"))
    assert str(path) in caught.value.message
    path.write_text(path.read_text()[:40])
    with pytest.raises(BadInput, match="not valid JSON"):
        MixtureSet.open(Store(tmp_path / "mix"))


def test_the_manifest_is_frozen_in_its_fields(tmp_path: Path) -> None:
    write_set(tmp_path / "a", 100)
    write_mixture(Store(tmp_path / "mix"), located(tmp_path, weighted(a=1)))
    fields = json.loads((tmp_path / "mix" / "mixture.json").read_text())
    assert (
        list(fields) == list(MixtureManifest.model_fields) == ["version", "members", "created_by"]
    )
    assert list(fields["members"][0]) == ["name", "location", "weight", "digest", "slots"]
