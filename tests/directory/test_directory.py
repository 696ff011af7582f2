"""The directory: each member's rows come to all, through faults, and leases have one holder."""

from collections.abc import Callable

import pytest

from raftmq.directory.directory import (
    BEAT_SECONDS,
    BUILD_SECONDS,
    CHUNK_BYTES,
    RESEND_SECONDS,
    ROUND_SECONDS,
    ROWS_MAX,
    SILENT_SECONDS,
    Directory,
)
from raftmq.wire import directory as wire
from raftmq.wire.directory import LEASE_SECONDS
from tests.directory.world import World, rows

Worlds = Callable[..., World]
SOON = 2 * BUILD_SECONDS + 4
"""Seconds in which all members see all rows, after the last fault."""


@pytest.fixture(name="worlds")
def _worlds(monkeypatch: pytest.MonkeyPatch) -> Worlds:
    def make(members: int = 3, seed: int = 1) -> World:
        return World(seed, members, monkeypatch)

    return make


def publish(world: World) -> dict[tuple[int, str], str]:
    """A row of each member that is up; what all shall see."""
    wanted = {}
    for member, directory in world.up.items():
        value = f"{member} at {world.now:.3f}"
        directory.publish({"client 7": value})
        wanted[member, "client 7"] = value
    return wanted


def seen(world: World) -> list[dict[tuple[int, str], str]]:
    return [rows(directory) for directory in world.up.values()]


def test_rows_of_each_member_come_to_all(worlds: Worlds) -> None:
    world = worlds()
    wanted = publish(world)
    world.run(SOON)
    assert seen(world) == [wanted] * 3
    (leader,) = {each.leader for each in world.up.values()}
    assert leader
    assert all(each.whole_seconds > 0 for each in world.up.values())
    assert [each.starts for each in world.up.values()] == [3, 3, 3]


def test_row_that_is_withdrawn_is_gone_everywhere(worlds: Worlds) -> None:
    world = worlds()
    publish(world)
    world.run(SOON)
    world.up[2].publish({})
    world.run(2 * BEAT_SECONDS)
    assert all((2, "client 7") not in each for each in seen(world))


def test_rows_of_a_dead_member_are_hidden_and_come_back_with_it(worlds: Worlds) -> None:
    world = worlds()
    wanted = publish(world)
    world.run(SOON)
    world.kill(2)
    world.run(SILENT_SECONDS + 2 * BEAT_SECONDS)
    del wanted[2, "client 7"]
    assert seen(world) == [wanted] * 2
    assert [world.up[1].is_present(member) for member in (1, 2, 3)] == [True, False, True]
    world.start(2)
    world.run(3.5)
    assert not any(each.whole_seconds for each in world.up.values())
    wanted = publish(world)
    world.run(SOON)
    assert seen(world) == [wanted] * 3


def test_minority_shows_its_own_rows_alone(worlds: Worlds) -> None:
    world = worlds()
    wanted = publish(world)
    world.run(SOON)
    world.cut([3])
    world.run(SILENT_SECONDS + 2 * BEAT_SECONDS)
    assert rows(world.up[3]) == {(3, "client 7"): wanted[3, "client 7"]}
    assert world.up[3].whole_seconds == 0
    world.cut([])
    world.run(SOON)
    assert seen(world) == [wanted] * 3


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_all_rows_are_seen_soon_after(worlds: Worlds, seed: int) -> None:
    members = 5 if seed % 3 == 0 else 3
    world = worlds(members, seed)
    draw = world.random
    for _ in range(40):
        publish(world)
        world.disturb(draw)
        if draw.random() < 0.2:
            world.skews = {draw.randint(1, members): draw.uniform(-100, 100)}
        world.run(draw.random() * 5)
    world.heal()
    wanted = publish(world)
    world.run(SOON)
    assert seen(world) == [wanted] * members
    assert not sum(each.faults for each in world.up.values())


def test_members_whose_states_have_drifted_apart_agree_after_two_rounds(worlds: Worlds) -> None:
    world = worlds()
    wanted = publish(world)
    world.run(SOON)
    held = world.up[1]._replica._rows.rawData()
    del held["2 client 7"]
    held["3 client 8"] = [0, "never put"]
    world.run(10)
    assert rows(world.up[1]) != wanted
    world.run(2 * ROUND_SECONDS)
    assert seen(world) == [wanted] * 3


def test_log_is_bounded_and_a_member_that_lacks_entries_begins_a_new_epoch(worlds: Worlds) -> None:
    world = worlds()
    world.run(SOON)
    before = dict(world.up[1]._epoch.boots)
    world.cut([3])
    for number in range(2200):
        world.up[1].publish({"client 7": number})
        world.run(BEAT_SECONDS)
    assert len(world.up[1]._replica._object._SyncObj__raftLog) < 2500
    assert world.up[1]._epoch.boots == before
    world.cut([])
    wanted = publish(world)
    world.run(SOON)
    assert seen(world) == [wanted] * 3
    assert world.up[1]._epoch.boots == before | {3: before[3] + 1}


def test_row_is_withdrawn_although_the_answer_to_its_call_was_lost(worlds: Worlds) -> None:
    world = worlds()
    world.run(SOON)
    leader = world.up[1].leader
    member = next(number for number in (1, 2, 3) if number != leader)
    world.is_lost = lambda sender, heard: isinstance(heard.message, wire.Answered)
    world.up[member].publish({"client 7": "here"})
    world.run(1.5 * BEAT_SECONDS)
    assert rows(world.up[leader]) == {(member, "client 7"): "here"}
    world.is_lost = lambda sender, heard: False
    world.up[member].publish({})
    world.run(RESEND_SECONDS + 2 * BEAT_SECONDS)
    assert seen(world) == [{}] * 3


def test_rows_that_no_member_puts_are_passed_over(worlds: Worlds) -> None:
    world = worlds()
    wanted = publish(world)
    world.run(SOON)
    held = world.up[1]._replica._rows.rawData()
    held |= {"2 beat": 5, "2 x": 5, "x": [1, 2], 7: [1, 2], "1 y": None, "3 z": ["a", 1]}
    world.run(1.0)
    assert rows(world.up[1]) == wanted
    world.run(2 * ROUND_SECONDS)
    assert seen(world) == [wanted] * 3
    assert not sum(each.faults for each in world.up.values())


def test_large_rows_and_many_rows_come_to_all(worlds: Worlds) -> None:
    world = worlds()
    world.run(SOON)
    before = dict(world.up[1]._epoch.boots)
    large = {"client 7": "x" * (CHUNK_BYTES * 10)}
    many = {f"client {number}": "y" * 200 for number in range(ROWS_MAX + 10)}
    world.up[1].publish(large)
    world.up[2].publish(many)
    world.run(SOON)
    found = rows(world.up[3])
    assert found[1, "client 7"] == large["client 7"]
    assert sum(member == 2 for member, _ in found) == ROWS_MAX
    world.up[2].publish({})
    world.run(SOON)
    assert rows(world.up[3]) == {(1, "client 7"): large["client 7"]}
    assert world.up[1]._epoch.boots == before


def test_member_that_is_added_or_removed_makes_a_new_epoch(worlds: Worlds) -> None:
    world = worlds()
    world.run(SOON)
    world.kill(3)
    for directory in world.up.values():
        directory.follow([1, 2])
    wanted = publish(world)
    world.run(SOON)
    assert seen(world) == [wanted] * 2
    assert world.up[1].members == [1, 2]


def test_process_whose_clock_was_ahead_before_it_restarted_takes_part(worlds: Worlds) -> None:
    world = worlds()
    world.run(SOON)
    world.kill(3)
    world.now -= 500  # its boot is lower than the one before
    world._events.clear()
    for member in (1, 2):
        world._tick(member, world.up[member])
    world.start(3)
    wanted = publish(world)
    world.run(550)
    assert seen(world) == [wanted] * 3


def test_message_of_a_stranger_or_of_nonsense_changes_nothing(worlds: Worlds) -> None:
    world = worlds()
    wanted = publish(world)
    world.run(SOON)
    directory: Directory = world.up[1]
    boots = dict(directory._epoch.boots)
    directory.receive(9, wire.DirectoryMessage([wire.Boot(9, 5)], wire.Vote(7)))
    odd = wire.Append(100, 7, 5, 1, [wire.Entry(9, 1, None)])
    directory.receive(2, wire.DirectoryMessage(directory._epoch.listed, odd))
    directory.receive(2, wire.DirectoryMessage([wire.Boot(9, 5)], wire.Vote(7)))
    world.run(SOON)
    assert seen(world) == [wanted] * 3
    assert directory._epoch.boots == boots


def test_call_that_no_member_makes_begins_a_new_epoch(worlds: Worlds) -> None:
    world = worlds()
    world.run(SOON)
    directory = world.up[1]
    strange = wire.Apply(wire.Call(99, []), None)
    leader = world.up[directory.leader]
    leader.receive(
        next(m for m in (1, 2, 3) if m != directory.leader),
        wire.DirectoryMessage(leader._epoch.listed, strange),
    )
    wanted = publish(world)
    world.run(SOON)
    assert seen(world) == [wanted] * 3
    assert sum(each.faults for each in world.up.values()) >= 1


# Leases


def holders(world: World, name: str = "report") -> list[int]:
    return [m for m, directory in world.up.items() if directory.leases.is_held(name)]


def test_lease_has_one_holder_and_passes_on_when_it_is_given_up(worlds: Worlds) -> None:
    world = worlds()
    for directory in world.up.values():
        directory.leases.want("report")
    world.run(SOON + LEASE_SECONDS)
    (first,) = holders(world)
    world.up[first].leases.give_up("report")
    assert holders(world) == []
    world.run(5)
    (second,) = holders(world)
    assert second != first


@pytest.mark.parametrize("seed", range(12))
def test_no_fault_gives_a_lease_to_two_at_once(worlds: Worlds, seed: int) -> None:
    members = 5 if seed % 3 == 0 else 3
    world = worlds(members, seed)
    draw = world.random
    # As much as leases bear.
    world.skews = {m: draw.uniform(0, LEASE_SECONDS / 3) for m in range(1, members + 1)}
    held = 0
    until: dict[int, float] = {}

    def look() -> None:
        nonlocal held
        for member in holders(world):
            held += 1
            until[member] = world.now + LEASE_SECONDS / 3  # for so long its client counts on it
        found = [member for member, end in until.items() if end > world.now]
        assert len(found) <= 1, f"{found} hold it at {world.now:.3f}"

    for _ in range(40):
        for member, directory in world.up.items():
            if draw.random() < 0.8:
                directory.leases.want("report")
            else:
                directory.leases.give_up("report")
                until.pop(member, None)
        world.disturb(draw)
        world.run(draw.random() * 12, look=look)
    world.heal()
    for directory in world.up.values():
        directory.leases.want("report")
    world.run(SOON + 2 * LEASE_SECONDS, look=look)
    assert held
    assert len(holders(world)) == 1


def test_release_that_was_lost_is_made_again(worlds: Worlds) -> None:
    world = worlds()
    world.run(SOON)
    leader = world.up[1].leader
    member = next(number for number in (1, 2, 3) if number != leader)
    for name in ("x", "y"):
        world.up[member].leases.want(name)
    world.run(LEASE_SECONDS + SOON)
    assert [holders(world, name) for name in ("x", "y")] == [[member], [member]]
    world.is_lost = lambda sender, heard: sender == member and isinstance(heard.message, wire.Apply)
    world.up[member].leases.give_up("x")
    world.run(0.5)
    world.is_lost = lambda sender, heard: False
    world.up[leader].leases.want("x")
    world.run(5)
    assert [holders(world, name) for name in ("x", "y")] == [[leader], [member]]


def test_lease_of_a_dead_member_passes_on(worlds: Worlds) -> None:
    world = worlds()
    for directory in world.up.values():
        directory.leases.want("report")
    world.run(SOON + LEASE_SECONDS)
    (first,) = holders(world)
    world.kill(first)
    world.run(LEASE_SECONDS + 10)
    (second,) = holders(world)
    assert second != first


def test_holder_keeps_its_lease_when_another_member_restarts(worlds: Worlds) -> None:
    world = worlds()
    for directory in world.up.values():
        directory.leases.want("report")
    world.run(SOON + LEASE_SECONDS)
    (holder,) = holders(world)
    other = next(m for m in world.up if m != holder)
    world.kill(other)
    world.run(0.2)
    world.start(other)
    world.up[other].leases.want("report")
    world.run(60)
    assert holders(world) == [holder]
