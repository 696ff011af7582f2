"""The simulated world itself: time, pauses, deaths, links, and disks."""

import errno
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

import pytest
import trio

from raftmq.broker.world import give_up_after
from raftmq.chaos.world import (
    Agenda,
    Machine,
    MemoryFiles,
    Network,
    PowerLoss,
    Process,
    SimulatedWorld,
    TimeStandsStill,
    run,
)
from raftmq.chaos.world.damage import cut_tail, drop_file, flip_bit, lose_write, travel, zero_sector
from raftmq.chaos.world.pipe import WINDOW_BYTES
from raftmq.chaos.world.process import allow_freezing


class Pair:
    """Two machines, each with a process, on one network."""

    def __init__(self) -> None:
        allow_freezing()
        self.agenda = Agenda.current()
        self.network = Network(self.agenda, Random(1))
        self.one, self.two = self.process("one"), self.process("two")

    def process(self, name: str) -> Process:
        machine = Machine(name, self.agenda, MemoryFiles())
        return Process(machine, self.agenda, seed=1)

    async def connected(self) -> tuple[trio.abc.Stream, trio.abc.Stream]:
        """A stream from the first to the second, and its other end."""
        listener = await self.network.listen(self.two, 1)
        near = await self.network.connect(self.one, "two", 1)
        far = await listener.accept()
        await listener.aclose()
        return near, far

    def block(self) -> None:
        self.network.block("one", "two")


def in_pair(scenario: Callable[[Pair], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await scenario(Pair())

    return run(main, seed=1)


def test_calls_of_the_agenda_come_in_order_between_deadlines_of_tasks() -> None:
    seen: list[object] = []

    async def main() -> None:
        agenda = Agenda.current()
        for seconds in (3.0, 1.0, 2.0):
            agenda.call_after(seconds, partial(seen.append, seconds))
        await trio.sleep(2.5)
        seen.append("slept")
        await trio.sleep(1)
        assert agenda.now == trio.current_time() == 3.5

    run(main, seed=1)
    assert seen == [1.0, 2.0, "slept", 3.0]


def test_process_that_stands_still_does_nothing_until_it_goes_on() -> None:
    async def scenario(pair: Pair) -> list[float]:
        ticks: list[float] = []

        async def tick() -> None:
            for _ in range(4):
                await trio.sleep(1)
                ticks.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.one.run, tick)
            await trio.sleep(1.5)
            pair.one.freeze()
            await trio.sleep(5)
            pair.one.thaw()
        return ticks

    assert in_pair(scenario) == [1.0, 6.5, 7.5, 8.5]


def test_bytes_for_a_process_that_stands_still_wait_in_its_socket() -> None:
    async def scenario(pair: Pair) -> None:
        near, far = await pair.connected()
        got: list[bytes] = []

        async def read() -> None:
            got.append(bytes(await far.receive_some()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.two.run, read)
            await trio.sleep(0.1)
            pair.two.freeze()
            await near.send_all(b"early")
            await trio.sleep(3)
            assert got == []
            pair.two.thaw()
        assert got == [b"early"]

    in_pair(scenario)


def test_blocked_bytes_arrive_in_order_after_the_block() -> None:
    async def scenario(pair: Pair) -> None:
        near, far = await pair.connected()
        pair.block()
        await near.send_all(b"one ")
        await near.send_all(b"two")
        with trio.move_on_after(10) as scope:
            await far.receive_some()
        assert scope.cancelled_caught
        pair.network.unblock("one", "two")
        got = b""
        while got != b"one two":
            got += bytes(await far.receive_some())
        # Tries at 0.2, 0.6, 1.4, 3, 6.2 and 12.6 s.
        assert 12.6 < trio.current_time() < 12.7

    in_pair(scenario)


def test_connecting_waits_behind_a_block_and_is_refused_where_nobody_listens() -> None:
    async def scenario(pair: Pair) -> None:
        with pytest.raises(ConnectionRefusedError):
            await pair.network.connect(pair.one, "two", 1)
        pair.block()
        with trio.move_on_after(30) as scope:
            await pair.network.connect(pair.one, "two", 1)
        assert scope.cancelled_caught

    in_pair(scenario)


def test_sender_waits_when_nobody_reads() -> None:
    async def scenario(pair: Pair) -> None:
        near, far = await pair.connected()
        with trio.move_on_after(1) as scope:
            await near.send_all(bytes(WINDOW_BYTES + 1))
        assert scope.cancelled_caught
        assert len(await far.receive_some()) <= WINDOW_BYTES

    in_pair(scenario)


def test_killed_process_ends_its_streams_and_a_machine_without_power_says_nothing() -> None:
    async def scenario(pair: Pair, *, power: bool) -> bool:
        _, far = await pair.connected()
        pair.one.die()
        if power:
            pair.network.machine_went_dark(pair.one)
        else:
            pair.network.process_ended(pair.one)
        with trio.move_on_after(5):
            assert await far.receive_some() == b""
            return True
        pair.network.machine_came_back("one")
        with pytest.raises(trio.BrokenResourceError):
            await far.receive_some()
        return False

    assert in_pair(partial(scenario, power=False))
    assert not in_pair(partial(scenario, power=True))


def test_half_open_connection_takes_everything_and_breaks_in_the_end() -> None:
    async def scenario(pair: Pair) -> None:
        near, far = await pair.connected()
        pair.network.swallow("one", "two")
        await near.send_all(b"lost")
        with trio.move_on_after(5) as scope:
            await far.receive_some()
        assert scope.cancelled_caught
        pair.network.spit("one", "two")
        with pytest.raises(trio.BrokenResourceError):
            await near.send_all(b"more")

    in_pair(scenario)


def test_end_that_is_not_heard_gives_up_alone_and_the_other_learns_by_a_reset() -> None:
    async def scenario(pair: Pair) -> None:
        near, far = await pair.connected()
        give_up_after(near, 5)
        pair.block()
        await near.send_all(b"lost")
        with pytest.raises(trio.BrokenResourceError):
            await near.receive_some()
        assert trio.current_time() == pytest.approx(5, abs=0.1)
        await trio.sleep(60)
        pair.network.unblock("one", "two")
        await far.send_all(b"is anybody there?")
        with pytest.raises(trio.BrokenResourceError):
            await far.receive_some()
        assert trio.current_time() == pytest.approx(65, abs=0.1)

    in_pair(scenario)


def test_names_are_resolved_with_the_errors_of_the_system() -> None:
    async def scenario(pair: Pair) -> None:
        kinds: list[tuple[type[Exception], str, int]] = [
            (UnicodeError, "a..b", 1), (UnicodeError, "x" * 64, 1), (ValueError, "a\0b", 1),
            (OverflowError, "two", 2**64), (OverflowError, "two", -1),
            (ConnectionRefusedError, "two", 1),
        ]  # fmt: skip
        for kind, host, port in kinds:
            with pytest.raises(kind):
                await pair.network.connect(pair.one, host, port)
        pair.network.lost_names["two"] += 1
        with pytest.raises(OSError, match="name resolution"):
            await pair.network.connect(pair.one, "two", 1)

    in_pair(scenario)


def test_strike_changes_the_next_piece_only() -> None:
    def shout(data: bytes, _: Callable[[], None]) -> bytes:
        return data.upper()

    async def scenario(pair: Pair) -> None:
        near, far = await pair.connected()
        pair.network.link("one", "two").strikes.append(shout)
        for word in (b"a", b"b"):
            await near.send_all(word)
            await trio.sleep(1)
        assert await far.receive_some() == b"Ab"

    in_pair(scenario)


@pytest.mark.parametrize(
    ("change", "arrives"), [({"rate": 100.0}, 10.0), ({"delay_seconds": 0.5}, 0.05)]
)
def test_slow_and_far_links_take_time(change: dict[str, float], arrives: float) -> None:
    async def scenario(pair: Pair) -> float:
        near, far = await pair.connected()
        began = trio.current_time()
        for name, value in change.items():
            setattr(pair.network.link("one", "two"), name, value)
        await near.send_all(bytes(1000))
        await far.receive_some()
        return trio.current_time() - began

    assert in_pair(scenario) >= arrives


def test_lost_pieces_come_late_or_break_the_connection() -> None:
    async def scenario(pair: Pair) -> tuple[int, int]:
        late = broken = 0
        for _ in range(40):
            near, far = await pair.connected()
            pair.network.link("one", "two").loss_share = 0.5
            began = trio.current_time()
            await near.send_all(b"x")
            try:
                await far.receive_some()
                late += trio.current_time() - began > 0.1
            except trio.BrokenResourceError:
                broken += 1
            pair.network.link("one", "two").heal()
        return late, broken

    late, broken = in_pair(scenario)
    assert late > 5
    assert 0 < broken < 10


def test_worker_does_jobs_in_order_and_a_failpoint_ends_the_process() -> None:
    async def scenario(pair: Pair) -> None:
        world = SimulatedWorld(pair.network, pair.one)
        disk = pair.one.machine.disk
        disk.on_stop = pair.one.die
        async with trio.open_nursery() as nursery:
            worker = world.worker("disk", nursery)
        done: list[object] = []

        def note(result: object, error: BaseException | None) -> None:
            done.append(error or result)

        def write() -> None:
            world.files.create("a.log").append([b"x"])

        disk.crash_at_failpoint("append log", after=True)
        worker.submit(lambda: 1, note)
        worker.submit(lambda: 1 // 0, note)
        worker.submit(write, note)
        worker.submit(lambda: 2, note)
        await trio.sleep(1)
        assert done[0] == 1
        assert isinstance(done[1], ZeroDivisionError)
        assert len(done) == 2
        assert pair.one.is_dead
        assert disk.bytes_of("a.log") == b"x"

    in_pair(scenario)


def test_mount_of_a_dead_process_is_of_no_use() -> None:
    disk = MemoryFiles()
    old = disk.mount()
    lock = old.lock("")
    disk.kill()
    disk.mount().lock("")
    lock.close()
    assert disk.locked == {""}, "the lock is the next process's by now"
    with pytest.raises(OSError, match="dead"):
        old.create("x")


def test_sync_that_lies_succeeds_the_second_time_and_has_lost_the_bytes() -> None:
    disk = MemoryFiles(Random(1))
    file = disk.create("x")
    disk.sync_folder("")
    file.append([b"kept"])
    file.datasync()
    file.append([b"lost"])
    disk.lie_next()
    with pytest.raises(OSError, match="Input/output"):
        file.datasync()
    file.datasync()
    assert disk.bytes_of("x") == b"keptlost"
    disk.power_loss()
    assert disk.bytes_of("x") == b"kept" + bytes(4)


@pytest.mark.parametrize(
    ("change", "error"),
    [({"space": 2}, errno.ENOSPC), ({"space": 2, "full_errno": errno.EDQUOT}, errno.EDQUOT),
     ({"is_read_only": True}, errno.EROFS), ({"sync_error": errno.EIO}, errno.EIO)],
)  # fmt: skip
def test_disk_refuses_with_the_error_that_was_asked_for(change: dict[str, int], error: int) -> None:
    disk = MemoryFiles()
    file = disk.create("x")
    for name, value in change.items():
        setattr(disk, name, value)

    def write() -> None:
        file.append([b"four"])
        file.datasync()

    with pytest.raises(OSError, match="x") as refused:
        write()
    assert refused.value.errno == error
    disk.calm()
    write()


def test_short_write_is_continued_and_another_fault_may_strike_between() -> None:
    disk = MemoryFiles(Random(3))
    file = disk.create("x")
    disk.short_next()
    file.append([b"whole", b"thing"])
    assert disk.bytes_of("x") == b"wholething"
    disk.short_next()
    disk.crash_at(2)
    with pytest.raises(PowerLoss):
        file.append([b"whole", b"thing"])
    assert disk.bytes_of("x").startswith(b"wholething")
    assert len(disk.bytes_of("x")) < 20


@pytest.mark.parametrize("how", [flip_bit, zero_sector, lose_write, travel, cut_tail, drop_file])
def test_damage_is_durable_and_repeats_with_the_same_random(how: Any) -> None:
    def damaged() -> dict[str, bytes]:
        disk = MemoryFiles(Random(1))
        disk.make_folder("/data/groups/00001")
        file = disk.create("/data/groups/00001/00000000000000000002.log")
        disk.sync_folder("/data/groups/00001")
        for _ in range(3):
            file.append([b"y" * 700])
            file.datasync()
        before = {path: disk.bytes_of(path) for path in disk.paths()}
        assert how(disk, Random(7))
        after = {path: disk.bytes_of(path) for path in disk.paths()}
        assert before != after
        disk.power_loss()
        assert {path: disk.bytes_of(path) for path in disk.paths()} == after
        return after

    assert damaged() == damaged()
    assert not how(MemoryFiles(), Random(1)), "there is nothing to damage"


def test_wall_clocks_go_wrong_and_are_healed() -> None:
    async def scenario(pair: Pair) -> None:
        clock = pair.one.machine.clock
        right = pair.two.machine.clock
        clock.skew_ms += 500
        assert clock.now_ms() - right.now_ms() == 500
        clock.drift = 0.1
        await trio.sleep(10)
        assert clock.now_ms() - right.now_ms() == 1500
        clock.drift = 0.0
        await trio.sleep(10)
        assert clock.now_ms() - right.now_ms() == 1500
        clock.strobe_ms = 200
        seen = set()
        for _ in range(4):
            seen.add(clock.now_ms() - right.now_ms())
            await trio.sleep(0.1)
        assert seen == {1500, 1700}
        clock.heal()
        assert clock.now_ms() == right.now_ms()

    in_pair(scenario)


@pytest.mark.parametrize("spins", ["spin_in_a_task", "_again", "_silently_again"])
def test_run_in_which_time_stands_still_ends_with_the_stack(spins: str) -> None:
    async def spin_in_a_task() -> None:
        while True:
            with trio.move_on_after(0):
                await trio.sleep(1)

    async def main() -> None:
        await trio.sleep(1.5)
        if spins == "spin_in_a_task":
            await spin_in_a_task()
        (_again if spins == "_again" else _silently_again)(Agenda.current())
        await trio.sleep(10)

    with pytest.raises(TimeStandsStill, match=r"stands still at 1\.5\d* s") as caught:
        run(main, seed=1)
    assert spins in str(caught.value)


def _again(agenda: Agenda) -> None:
    agenda.look()
    agenda.call_after(0, partial(_again, agenda))


def _silently_again(agenda: Agenda) -> None:
    agenda.call_after(0, partial(_silently_again, agenda))


def test_seed_1108365_many_connections_of_a_machine_that_comes_back_let_time_go_on() -> None:
    async def scenario(pair: Pair) -> None:
        await pair.network.listen(pair.two, 1)
        streams = [await pair.network.connect(pair.one, "two", 1) for _ in range(200)]
        pair.two.die()
        pair.network.machine_went_dark(pair.two)
        for stream in streams:
            await stream.send_all(b"lost")
        await trio.sleep(1)
        pair.network.machine_came_back("two")
        for stream in streams:
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()

    in_pair(scenario)


class Alarm(BaseException):
    """As the alarm of a test that takes too long, which no task can catch."""


def test_run_whose_scheduler_breaks_leaves_no_task_to_later_runs() -> None:
    agenda = Agenda()
    ended: list[str] = []

    async def wait(name: str) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(name)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, "child")
            await wait("parent")

    def ring() -> None:
        raise Alarm

    agenda.call_after(1, ring)
    with pytest.raises(trio.TrioInternalError) as caught:
        run(main, seed=1, agenda=agenda)
    assert isinstance(caught.value.__cause__, Alarm)
    # The error is still held here, and with it the run.
    assert ended == ["child", "parent"]


def test_call_into_a_process_that_raises_is_a_bug_of_that_process_alone() -> None:
    found: list[Exception] = []

    async def main() -> None:
        process = Pair().one
        process.on_bug = found.append
        # As when the answer of a slow disk meets code that does not expect it.
        process.call(lambda: 1 // 0)
        await trio.sleep(1)

    run(main, seed=0)
    assert [type(error) for error in found] == [ZeroDivisionError]
