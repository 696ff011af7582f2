"""Runs of a key in one lease: single facts; the duel is in test_groups."""

from collections import Counter as Tally
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from raftmq.log.record import Kind
from raftmq.machine.commands import encode_commands
from raftmq.pop import keyed
from raftmq.pop.actions import Action
from raftmq.pop.calls import ChangeDead, OpenGroup
from raftmq.pop.groups import PopGroup
from raftmq.pop.policy import RUN_MAX, Mode, Order, Policy
from raftmq.pop.spans import run
from raftmq.results import Changed

from .counter import GROUP, TOPIC, Counter, step
from .counter import offsets as all_offsets
from .test_keyed import A, B, feed, offsets, serve

CHUNK_MAX = 7


def with_runs(*, is_blocking: bool = False, longest: int = RUN_MAX) -> PopGroup:
    policy = Policy((10, 50), 3, 100, Order.KEY, is_blocking, longest)
    group = PopGroup(policy, Mode.ORDERED)
    group.follow(7, 0)
    return group


def test_parked_message_does_not_hold_up_one_before_it() -> None:
    group = with_runs(is_blocking=True)
    feed(group, A, A, A, A)
    (first,) = serve(group)
    group.reject(1, first.token, run(1, 1), 0, reason="poison")
    group.nack(1, first.token, run(0, 1), 0, delay_ms=0)
    group = PopGroup.load(group.dump(0))
    (again,) = serve(group)
    assert again.messages == run(0, 1, 2)
    group.ack(1, again.token, again.messages, 0)
    assert serve(group) == []
    group.purge(1)
    assert offsets(serve(group)) == [[2, 3]]


def altered() -> PopGroup:
    """Message 0 is a dead letter that is not parked, 1 is parked: the policy was altered."""
    group = with_runs()
    feed(group, A, A, A)
    reject_next(group)
    group.policy = with_runs(is_blocking=True).policy
    reject_next(group)
    return group


def passed_by_a_reset() -> PopGroup:
    """The same: a reset went ahead of the letter, and unparked it."""
    group = with_runs(is_blocking=True)
    feed(group, A)
    reject_next(group)
    group.reset({7: 1})
    feed(group, A, A)
    reject_next(group)
    return group


def reject_next(group: PopGroup) -> None:
    (one,) = serve(group, 1)
    assert group.reject(1, one.token, one.messages, 0, reason="poison") == Changed(1)


@pytest.mark.parametrize("begin", [altered, passed_by_a_reset])
def test_redriven_message_does_not_wait_for_a_parked_one_after_it(
    begin: Callable[[], PopGroup],
) -> None:
    group = begin()
    assert serve(group) == []
    assert group.redrive(1) == Changed(1)
    group = PopGroup.load(group.dump(0))
    assert offsets(serve(group)) == [[0]]
    group.purge(2)
    assert serve(group) == []


@pytest.mark.parametrize(("version", "expected"), [(2, []), (3, [0])])
def test_redrive_in_an_old_record_gives_the_state_that_it_gave(
    version: int, expected: list[int]
) -> None:
    policy = Policy((1000,), 3, 30_000, Order.KEY, run=RUN_MAX)
    log = Counter(mode=Mode.ORDERED, policy=policy)
    log.send(3, keys=["a"] * 3)
    for is_blocking in (False, True):
        policy = replace(policy, is_blocking=is_blocking)
        log.call(OpenGroup(GROUP, TOPIC, "g", 2 + is_blocking, Mode.ORDERED, policy, [], []))
        (one,) = log.pop(1, 1)
        log.settle(1, step(Action.REJECT, one))
    assert log.audit()["dead"] == 2
    redrive = encode_commands([ChangeDead(GROUP, [1], is_purge=False)])
    assert log.add(Kind.COMMANDS, redrive, version=version) == [Changed(1)]
    log.fail_over()
    assert all_offsets(log.pop(1)) == expected


def test_messages_of_a_parked_letter_go_out_again_by_themselves_in_order() -> None:
    group = with_runs(is_blocking=True)
    feed(group, A, A, A, A)
    (first,) = serve(group)
    group.reject(1, first.token, run(0, 3), 0, reason="poison")
    assert group.redrive(1, run(1, 1)) == Changed(1)
    assert serve(group) == []
    assert group.redrive(1, run(0, 1)) == Changed(1)
    group = PopGroup.load(group.dump(0))
    (lowest,) = serve(group)
    assert offsets([lowest]) == [[0, 1]]
    group.ack(1, lowest.token, lowest.messages, 0)
    assert serve(group) == []
    assert group.redrive(1) == Changed(1)
    assert offsets(serve(group)) == [[2, 3]]


def test_message_that_failed_behind_one_in_hand_does_not_hold_it_up_by_its_delay() -> None:
    group = with_runs()
    feed(group, A, A, A)
    (first,) = serve(group)
    group.nack(1, first.token, run(1, 1), 0, delay_ms=7_200_000)
    group.nack(1, first.token, run(0, 1), 0, delay_ms=10)
    group.pass_time(10)
    (again,) = serve(group, now=10)
    assert again.messages == run(0, 1, 2)
    group.ack(1, again.token, again.messages, 10)
    (behind,) = serve(group, now=10)
    assert behind.messages == run(1, 1, 2)


@pytest.mark.parametrize("is_blocking", [False, True])
def test_run_that_is_given_back_goes_out_again_as_one(is_blocking: bool) -> None:
    group = with_runs(is_blocking=is_blocking)
    feed(group, A, B, A)
    (first,) = serve(group)
    assert offsets([first]) == [[0, 1, 2]]
    assert group.give_back(1, first.token, first.messages, 0) == Changed(3)
    assert offsets(serve(group)) == [[0, 1, 2]]


def taken_one_by_one(
    keys: list[int], sizes: list[int], longest: int, held_max: int
) -> list[list[int]]:
    """The leases of these sizes, none of which is settled: the rule, for one message at a time."""
    leases: list[list[int]] = []
    busy, chained, at = set[int](), list[int](), 0
    for size in sizes:
        lease, runs, begin = list[int](), Tally[int](), at
        while at < len(keys):
            # Where a chunk ends, a full lease and full chains end the hand-out.
            is_full = len(chained) == held_max or len(lease) == size
            if is_full and (at - begin) % CHUNK_MAX == 0:
                break
            key = keys[at]
            goes_on = 0 < runs[key] < longest and key not in chained
            if key in busy and not goes_on:
                if len(chained) == held_max:
                    break
                chained.append(key)
            elif len(lease) == size:
                break
            else:
                lease.append(at)
                busy |= {key} - {0}
                runs[key] += key != 0
            at += 1
        leases += [lease] if lease else []
    return leases


@example([1, 1, 1, 2], [2, 1], 2, 5)
@example([0] * 18 + [1] * 6 + [0], [1, 1, 1, 17], 1, 5)
@example([0] * 8 + [1] * 6 + [0], [3, 6, 1], 1, 5)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40) | st.lists(st.integers(0, 60)),
    st.lists(st.integers(1, 6) | st.integers(1, 60), min_size=1, max_size=4),
    st.sampled_from([1, 2, 3, 6, RUN_MAX]),
    st.sampled_from([5, 40, keyed.HELD_MAX]),
)
def test_stretch_is_taken_as_its_messages_one_by_one(
    keys: list[int], sizes: list[int], longest: int, held_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyed, "HELD_MAX", held_max)
        patch.setattr(keyed, "_CHUNK_MAX", CHUNK_MAX)
        group = with_runs(longest=longest)
        if keys:
            feed(group, *keys)
        found = [each for size in sizes for each in offsets(serve(group, size))]
        assert found == taken_one_by_one(keys, sizes, longest, held_max)
