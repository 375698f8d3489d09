"""`headway coordinator` as a real process: members come, go and fall silent; it is killed, doubled,
cut off from its record and attacked, and the members notice no more of it than they must.

KILLS=50 FUZZ_CASES=100000 for more.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headway.member.coordinator.rules import Rules
from headway.member.protocol.handshake import WorkerSide
from headway.member.protocol.messages import (
    MAX_VALUE_BYTES,
    Heartbeat,
    StoreFailed,
    StoreGet,
    StoreNumber,
    StoreSet,
    StoreValue,
)
from headway.member.protocol.status import WorkerStatus
from support import fuzz
from support.coordinator_kills import FIND_SECONDS, kill_again_and_again
from support.coordinator_process import CoordinatorProcess
from support.member_client import Member
from support.stolen_time import Stopwatch
from support.waiting import until

KILLS = int(os.environ.get("KILLS", "3"))
FUZZ_CASES = int(os.environ.get("FUZZ_CASES", "2000"))
HALF_OPEN = 600
CHANGE_SECONDS = 1.0
"""From a closed socket to the last member that knows of it."""

pytestmark = [pytest.mark.local, pytest.mark.timeout(120 + 12 * KILLS + FUZZ_CASES // 20)]


def members(coordinator: CoordinatorProcess, count: int) -> list[Member]:
    return [
        Member(coordinator.address, coordinator.key, coordinator.run, f"member-{index}")
        for index in range(count)
    ]


async def formed(some: list[Member], seconds: float = 20.0) -> int:
    """The generation in which they all are, and work."""

    def is_formed() -> bool:
        numbers = {member.follower.newest.number for member in some}
        return len(numbers) == 1 and all(
            member.follower.domain is not None
            and member.follower.status.healed == member.follower.newest.number
            for member in some
        )

    await until(is_formed, seconds, "a generation of all")
    return some[0].follower.newest.number


async def seconds_until_out(gone: Member, others: list[Member], seconds: float = 20.0) -> float:
    """Until all others know that it is no longer in, without what the host took."""
    watch = Stopwatch()
    await until(
        lambda: all(gone.name not in member.follower.newest.workers() for member in others),
        seconds,
        f"{gone.name} to be out",
    )
    return watch.seconds


def with_members(
    folder: Path,
    count: int,
    test: Callable[[CoordinatorProcess, list[Member]], Awaitable[None]],
    **named: str,
) -> None:
    """Runs the test with a coordinator and so many members in a generation that works."""

    async def all_of_it() -> None:
        with CoordinatorProcess(folder, Rules(max_domains=count), **named) as coordinator:
            some = [member.start() for member in members(coordinator, count)]
            await formed(some)
            try:
                await test(coordinator, some)
            finally:
                for member in some:
                    await member.stop()

    asyncio.run(all_of_it())


def test_a_closed_session_is_known_to_all_at_once(tmp_path: Path) -> None:
    async def test(coordinator: CoordinatorProcess, some: list[Member]) -> None:
        gone, *others = some
        await gone.stop()
        assert await seconds_until_out(gone, others) < CHANGE_SECONDS
        await formed(others)
        assert "its connection closed" in others[0].follower.newest.reason
        for member in others:
            assert member.lost == []
            assert member.evicted == []

    with_members(tmp_path, 4, test)


def test_one_that_connects_again_at_once_stays(tmp_path: Path) -> None:
    async def test(coordinator: CoordinatorProcess, some: list[Member]) -> None:
        num_in_time = 0
        for _ in range(12):
            generation = await formed(some)
            away_seconds = await cut_and_back(some[1])
            await asyncio.sleep(2 * Rules().reconnect_seconds)
            if away_seconds < Rules().reconnect_seconds:
                num_in_time += 1
                assert [member.follower.newest.number for member in some] == [generation] * 3
                assert (await coordinator.state())["established"]
            if num_in_time == 3:
                return
        raise AssertionError("a member that lives connects again at once")

    with_members(tmp_path, 3, test)


async def cut_and_back(member: Member) -> float:
    """For how long it had no session. A machine that stands still makes it too long to stay."""
    sessions = len(member.connects)
    member.cut()
    await until(lambda: len(member.connects) > sessions, 10, "another session")
    return member.connects[-1] - member.lost[-1]


def test_a_planned_leave_discards_nothing(tmp_path: Path) -> None:
    async def test(coordinator: CoordinatorProcess, some: list[Member]) -> None:
        leaver, *others = some
        leaver.follower.leave()
        leaver.heartbeat()
        assert await seconds_until_out(leaver, others) < CHANGE_SECONDS
        newest = others[0].follower.newest
        assert 1 in newest.sound, "the generation before has lost nobody: its step is finished"
        assert await formed(others) == newest.number
        await leaver.leave()
        await asyncio.sleep(0.3)
        assert others[0].follower.newest.number == newest.number, "it was out already"

    with_members(tmp_path, 3, test)


def test_a_worker_that_says_goodbye_is_out_at_once(tmp_path: Path) -> None:
    async def test(coordinator: CoordinatorProcess, some: list[Member]) -> None:
        gone, *others = some
        await gone.leave()
        assert await seconds_until_out(gone, others) < 0.25, "sooner than a closed session"

    with_members(tmp_path, 3, test)


def test_silence_is_noticed_in_time_and_not_sooner(tmp_path: Path) -> None:
    async def test(coordinator: CoordinatorProcess, some: list[Member]) -> None:
        silent, *others = some
        silent.sends_heartbeats = silent.follows = False
        watch = Stopwatch()
        assert await seconds_until_out(silent, others) < 6.5
        assert watch.wall_seconds > 3.9
        assert "no heartbeat" in others[0].follower.newest.reason

    with_members(tmp_path, 3, test)


def test_a_spare_waits_and_replaces_a_lost_worker(tmp_path: Path) -> None:
    async def test(coordinator: CoordinatorProcess, some: list[Member]) -> None:
        spare = Member(coordinator.address, coordinator.key, coordinator.run, "spare").start()
        await until(lambda: spare.is_welcome, 10, "a session")
        assert spare.follower.newest.number == 1
        assert (await coordinator.state())["waiting"] == ["spare"]
        await some[0].stop()
        assert await seconds_until_out(some[0], [spare, *some[1:]]) < CHANGE_SECONDS
        await formed([spare, *some[1:]])
        await spare.stop()

    with_members(tmp_path, 3, test)


def test_members_exchange_keys_and_values(tmp_path: Path) -> None:
    async def test(coordinator: CoordinatorProcess, some: list[Member]) -> None:
        one, two = some
        waiting = asyncio.ensure_future(two.ask(lambda n: StoreGet(n, 1, "k", 10.0)))
        await asyncio.sleep(0.1)
        assert await one.ask(lambda n: StoreSet(n, 1, "k", b"v")) == StoreNumber(1, 1)
        assert await waiting == StoreValue(1, b"v")
        late = await two.ask(lambda n: StoreGet(n, 1, "other", 0.2))
        assert isinstance(late, StoreFailed)
        assert late.why == "late"
        # One that is not in the generation has no part in it.
        stranger = Member(coordinator.address, coordinator.key, coordinator.run, "spare").start()
        await until(lambda: stranger.is_welcome, 10, "a session")
        refused = await stranger.ask(lambda n: StoreGet(n, 1, "k", 0.0))
        assert isinstance(refused, StoreFailed)
        assert refused.why == "generation"
        await stranger.stop()
        # So many at once, and one more ends the session.
        for number in range(65):
            two._transport.write(two._side.send(StoreGet(1000 + number, 1, "never", 60.0)))
        await until(lambda: len(two.lost) == 1, 10, "the session to end")

    with_members(tmp_path, 2, test)


@pytest.mark.long(
    "fifteen seconds; the gate kills coordinators in test_storm.py and test_losing_workers.py"
)
@pytest.mark.chaos
def test_killed_repeatedly(tmp_path: Path) -> None:
    told = asyncio.run(kill_again_and_again(tmp_path, KILLS, seed=KILLS))
    assert told.kills == KILLS
    assert max(told.find_seconds) < FIND_SECONDS
    print(told)


@pytest.mark.chaos
def test_of_two_coordinators_the_older_one_steps_down(tmp_path: Path) -> None:
    async def test(coordinator: CoordinatorProcess, some: list[Member]) -> None:
        older = coordinator.process
        assert older is not None
        newer = CoordinatorProcess(tmp_path, Rules(max_domains=3))
        with await newer.start_aside():
            assert await asyncio.to_thread(older.wait, 10) == 1
            assert "coordinator 2 has replaced it" in coordinator.log.read_text()
            for member in some:
                assert member.farewells == ["coordinator 2 has replaced it"]
                member.address = newer.address
            await until(lambda: all(member.is_welcome for member in some), 10, "sessions")
            assert [member.follower.incarnation for member in some] == [2, 2, 2]
            assert [member.follower.newest.number for member in some] == [1, 1, 1]
            assert [member.evicted for member in some] == [[], [], []]

    with_members(tmp_path, 3, test)


@pytest.mark.chaos
def test_while_the_record_is_away_only_changes_wait(tmp_path: Path) -> None:
    async def test(coordinator: CoordinatorProcess, some: list[Member]) -> None:
        gone, *others = some
        away = tmp_path / "away"
        coordinator.record.rename(away)
        await gone.stop()
        await asyncio.sleep(3)
        assert [member.follower.newest.number for member in others] == [1, 1], "not yet written"
        assert [member.lost for member in others] == [[], []], "and all goes on"
        assert not coordinator.record.exists()
        away.rename(coordinator.record)
        assert await seconds_until_out(gone, others) < 3
        assert "the membership record cannot be written" in coordinator.log.read_text()

    with_members(tmp_path, 3, test)


def test_terminated_it_says_farewell(tmp_path: Path) -> None:
    async def test(coordinator: CoordinatorProcess, some: list[Member]) -> None:
        assert await asyncio.to_thread(coordinator.end) == 0
        await until(lambda: all(member.farewells for member in some), 5, "farewells")
        assert some[0].farewells == ["the coordinator stops"]
        await coordinator.start_aside()
        await until(lambda: all(member.is_welcome for member in some), 5, "sessions")
        assert [member.evicted for member in some] == [[], [], []]

    with_members(tmp_path, 3, test)


@pytest.mark.long("waits; the simulations stop coordinators, too")
@pytest.mark.chaos
def test_stopped_for_long_it_evicts_nobody_for_its_own_pause(tmp_path: Path) -> None:
    async def test(coordinator: CoordinatorProcess, some: list[Member]) -> None:
        assert coordinator.process is not None
        coordinator.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(8)
        coordinator.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(2)
        assert [member.evicted for member in some] == [[], [], []]
        gone, *others = some
        await gone.stop()
        assert await seconds_until_out(gone, others) < 2

    with_members(tmp_path, 3, test)


@pytest.mark.chaos
def test_hostile_bytes_do_not_reach_the_members(tmp_path: Path) -> None:
    """2,000 cases of the fuzzer over real sockets, half of them by one who has the key."""

    async def test(coordinator: CoordinatorProcess, some: list[Member]) -> None:
        watch, before = Stopwatch(), await coordinator.count("opened")
        attacking = asyncio.ensure_future(asyncio.to_thread(attack, coordinator))
        gone, *others = some
        await asyncio.sleep(1)
        await gone.stop()
        assert await seconds_until_out(gone, others) < CHANGE_SECONDS
        expected_sessions, messages = await attacking
        assert await coordinator.count("opened") - before == expected_sessions
        assert await coordinator.count("defects") == 0
        assert await coordinator.count("requests") <= messages
        # The longest delay, which the host may have lengthened by what it took.
        assert await coordinator.lag_seconds() - watch.lost_seconds < 0.5
        for member in others:
            assert member.lost == []
            assert member.evicted == []
            assert member.errors == []
        assert coordinator.rss_bytes < 80e6

    with_members(tmp_path, 5, test, run=fuzz.RUN, key=fuzz.KEY.hex())


def attack(coordinator: CoordinatorProcess) -> tuple[int, int]:
    """How many cases opened a session first, and how many messages these may have sent."""
    num_opened = num_messages = 0
    for case in fuzz.cases(FUZZ_CASES, seed=11):
        with socket.create_connection(coordinator.address, timeout=10) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            worker = WorkerSide(fuzz.KEY, fuzz.RUN, fuzz.WORKER)
            try:
                if case.opens:
                    connection.sendall(worker.hello)
                    while not worker.is_open:
                        connection.sendall(worker.receive(connection.recv(4096)).reply)
                    # A Heartbeat first, or all that follows is refused for that alone.
                    connection.sendall(worker.send(Heartbeat(WorkerStatus())))
                    worker.receive(connection.recv(65536))
                    num_opened += 1
                    num_messages += len(fuzz.attack(case).accepted)
                for chunk in case.chunks(worker):
                    connection.sendall(chunk)
                while case.expected == "refused" and connection.recv(65536):
                    pass
            except (BrokenPipeError, ConnectionResetError):
                pass  # closed before all of it was sent
            except TimeoutError:
                raise AssertionError(f"{case.name}: was not closed") from None
    return num_opened, num_messages


@pytest.mark.chaos
def test_half_open_connections_do_not_block_others(tmp_path: Path) -> None:
    async def test(coordinator: CoordinatorProcess, some: list[Member]) -> None:
        watch, began = Stopwatch(), time.monotonic()
        idle = [socket.create_connection(coordinator.address, 10) for _ in range(HALF_OPEN)]
        while (await coordinator.state())["unproven"] <= 400:  # it accepts some at a time
            assert watch.seconds < 2
        gone, *others = some
        await gone.stop()
        newcomer = Member(coordinator.address, coordinator.key, coordinator.run, "new").start()
        assert await seconds_until_out(gone, others) < CHANGE_SECONDS
        await formed([newcomer, *others])
        assert newcomer.connects[0] - began - watch.lost_seconds < 3
        await asyncio.to_thread(closed, idle, 7.0)
        assert (await coordinator.state())["unproven"] == 0
        assert [member.lost for member in others] == [[], []]
        await newcomer.stop()

    with_members(tmp_path, 3, test)


def closed(connections: list[socket.socket], seconds: float) -> None:
    """By the other side, all of them."""
    deadline = time.monotonic() + seconds
    for connection in connections:
        connection.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            assert connection.recv(1) == b""
        except ConnectionResetError:
            pass
        finally:
            connection.close()


@pytest.mark.chaos
def test_one_that_does_not_read_is_ended_and_costs_little(tmp_path: Path) -> None:
    async def test(coordinator: CoordinatorProcess, some: list[Member]) -> None:
        one, two = some
        await one.ask(lambda n: StoreSet(n, 1, "large", bytes(MAX_VALUE_BYTES)))
        before = coordinator.rss_bytes
        assert two._transport is not None
        two._transport.pause_reading()
        began = time.monotonic()
        number = 10_000
        while not two.lost and time.monotonic() < began + 20:
            number += 1
            assert two._side is not None
            two._transport.write(two._side.send(StoreGet(number, 1, "large", 0.0)))
            await asyncio.sleep(0.002)
        await until(lambda: len(two.lost) == 1, 10, "the session to end")
        assert coordinator.rss_bytes - before < 40e6
        assert one.lost == []

    with_members(tmp_path, 2, test)


def test_it_starts_soon_and_is_small(tmp_path: Path) -> None:
    """In processor time, which is what one waits for on an idle machine; the least of several."""
    seconds, megabytes = [], []
    for turn in range(3):
        with CoordinatorProcess(tmp_path / str(turn)) as coordinator:
            seconds.append(coordinator.cpu_seconds)
            megabytes.append(coordinator.rss_bytes / 1e6)
    assert min(seconds) < 1.0, seconds
    assert min(megabytes) < 60, megabytes


def test_an_address_in_use_and_a_wrong_key_are_reported(tmp_path: Path) -> None:
    with CoordinatorProcess(tmp_path) as coordinator:
        second = subprocess.run(coordinator.command, capture_output=True, text=True, timeout=20)
        assert second.returncode == 2
        assert "Address already in use" in second.stderr
        assert "Traceback" not in second.stderr
