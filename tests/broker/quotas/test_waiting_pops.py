"""The consumers that wait for room: which of them a look goes through."""

from collections.abc import Awaitable, Callable

import trio
import trio.testing

from raftmq.broker.deliver.consumers import Key
from raftmq.broker.deliver.in_flight import LOOK_MAX, PLACE_SECONDS, WaitingPop, WaitingPops
from raftmq.machine.catalog.quotas import Subject, SubjectKind

ALICE, BOB = Subject(SubjectKind.USER, "alice"), Subject(SubjectKind.USER, "bob")


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))


def key(consumer: int) -> Key:
    return Key(1, 1, consumer)


def put(waiting: WaitingPops, consumer: int, subject: Subject) -> None:
    waiting.put(key(consumer), WaitingPop(0.0, subject))


def looked(waiting: WaitingPops, *full: Subject) -> list[int]:
    """The consumers of one look; a subject is found to be full at its first consumer."""
    found, told = list[int](), set[Subject]()
    for each, pop in waiting.look(told):
        found.append(each.consumer)
        told |= {pop.subject} & set(full)
    return found


def test_those_of_a_quota_that_is_used_up_hold_up_no_others() -> None:
    async def scenario() -> None:
        waiting = WaitingPops()
        for consumer in range(2000):
            put(waiting, consumer, ALICE)
        put(waiting, 5000, BOB)
        for _ in range(5):
            # The one that waits longest stays the first.
            assert sorted(looked(waiting, ALICE)) == [0, 5000]

    run(scenario)


def test_a_look_has_a_bound_and_all_have_their_turn() -> None:
    async def scenario() -> None:
        waiting = WaitingPops()
        for consumer in range(1000):
            put(waiting, consumer, (ALICE, BOB)[consumer % 2])
        looks = [looked(waiting) for _ in range(8)]
        assert max(map(len, looks)) <= LOOK_MAX
        assert {each for look in looks for each in look} == set(range(1000))

    run(scenario)


def test_more_quotas_than_a_look_goes_through_have_their_turn_in_the_next() -> None:
    async def scenario() -> None:
        waiting = WaitingPops()
        users = [Subject(SubjectKind.USER, f"u{n}") for n in range(2 * LOOK_MAX)]
        for consumer, user in enumerate(users):
            put(waiting, consumer, user)
        assert looked(waiting, *users) + looked(waiting, *users) == list(range(2 * LOOK_MAX))

    run(scenario)


def test_a_consumer_that_is_taken_out_in_the_middle_of_a_look_is_passed_over() -> None:
    async def scenario() -> None:
        waiting = WaitingPops()
        for consumer in range(4):
            put(waiting, consumer, ALICE)
        put(waiting, 4, BOB)
        found = []
        for each, _ in waiting.look(()):
            found.append(each.consumer)
            for other in (1, 2, 4):
                waiting.take(key(other))
        assert found == [0, 3]
        assert len(waiting) == 2

    run(scenario)


def test_all_that_wait_are_swept_in_turn() -> None:
    async def scenario() -> None:
        waiting = WaitingPops()
        for consumer in range(3 * LOOK_MAX):
            put(waiting, consumer, ALICE)
        swept = [each.consumer for _ in range(3) for each in waiting.sweep()]
        assert sorted(swept) == list(range(3 * LOOK_MAX))
        assert looked(waiting, ALICE) == [0]

    run(scenario)


def test_a_consumer_waits_in_the_line_of_the_quota_that_holds_it_now() -> None:
    async def scenario() -> None:
        waiting = WaitingPops()
        put(waiting, 1, ALICE)
        put(waiting, 2, BOB)
        put(waiting, 1, BOB)
        assert (waiting.count_others(ALICE, key(9)), waiting.count_others(BOB, key(9))) == (0, 2)
        assert looked(waiting, BOB) == [2]
        waiting.take(key(2))
        assert looked(waiting, BOB) == [1]

    run(scenario)


def test_a_place_is_kept_for_a_while_and_no_longer() -> None:
    async def scenario() -> None:
        waiting = WaitingPops()
        for consumer in (1, 2):
            put(waiting, consumer, ALICE)
        waiting.take(key(1), keeps_place=True)
        waiting.take(key(2), keeps_place=True)
        put(waiting, 2, ALICE)
        put(waiting, 1, ALICE)
        assert looked(waiting) == [1, 2]
        waiting.take(key(1), keeps_place=True)
        await trio.sleep(PLACE_SECONDS)
        assert looked(waiting) == [2]
        assert len(waiting) == 1

    run(scenario)
