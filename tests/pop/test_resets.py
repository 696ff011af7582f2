"""Groups that are reset: messages that come again, are skipped, or stay."""

import random
from collections import Counter
from collections.abc import Collection

import pytest

from raftmq.batch import encode
from raftmq.errors import Reason
from raftmq.log.record import Kind
from raftmq.machine import repeats
from raftmq.machine.machine import PartitionMachine
from raftmq.pop.actions import FENCED, Action
from raftmq.pop.calls import ChangeDead, Feed, Lose, OpenGroup, ResetGroup, Step
from raftmq.pop.groups import PopGroup
from raftmq.pop.leases import Leases
from raftmq.pop.message_events import follow
from raftmq.pop.policy import Mode, Order, Policy
from raftmq.pop.spans import run
from tests.machine.test_pop_groups import ALICE, BOB, QUEUE, TOPIC, Log, all_of

KINDS = {"pop": Mode.POP, "key": Mode.ORDERED, "queue": Mode.ORDERED}


def opened(kind: str = "pop", *, is_blocking: bool = False) -> Log:
    log = Log()
    order = Order.QUEUE if kind == "queue" else Order.KEY
    policy = Policy((10, 50), 2, 100, order, is_blocking)
    assert log.call(OpenGroup(1, TOPIC, "billing", 1, KINDS[kind], policy, [], [])) == [None]
    return log


def group(log: Log) -> PopGroup:
    return log.machine.pop_groups.attached[1].group


def send(log: Log, *keys: str) -> None:
    """Messages with these keys; in the end all are known."""
    first = log.machine.ends.get(QUEUE, 0)
    batch = encode([b"x"] * len(keys), keys=list(keys))
    payload = batch.to_bytes(queue=QUEUE, producer=1, epoch=0, first_sequence=first)
    log.add(Kind.BATCH, payload)
    log.handed()


def reset(log: Log, offset: int) -> None:
    assert log.call(ResetGroup(1, [QUEUE], [offset])) == [None]
    group(log).audit()


def only(log: Log, offset: int, action: Action, token: int) -> Step:
    return Step(action, token, offset, b"\1")


def test_group_that_goes_back_gets_all_from_there_on_once_more() -> None:
    log = opened()
    log.send(10)
    (first,) = log.ask(ALICE, 8)
    log.settle(
        1, only(log, 0, Action.REJECT, first.token), only(log, 6, Action.REJECT, first.token)
    )
    log.settle(2, only(log, 1, Action.ACK, first.token), only(log, 5, Action.ACK, first.token))
    log.settle(3, only(log, 4, Action.NACK, first.token))
    reset(log, 4)
    assert log.settle(4, all_of(first)) == [FENCED]
    assert [letter.messages for letter in group(log).dead.values()] == [run(0, 1, 1)]
    (again,) = log.ask(BOB, 100)
    assert again.messages == run(4, 6, 1)
    assert log.pass_time(1000) == []
    counts = group(log).counts(QUEUE)
    assert (counts.dead, counts.acked, counts.leased) == (1, 2, 0)
    assert log.call(ChangeDead(1, [1], False)) == [1]
    assert [h.messages for h in log.ask(BOB, 100)] == [run(0, 1, 1)]
    group(log).audit()


def test_group_that_goes_forward_skips_what_lies_between() -> None:
    log = opened()
    log.send(10)
    (first,) = log.ask(ALICE, 3)
    reset(log, 7)
    assert log.settle(1, all_of(first)) == [FENCED]
    (again,) = log.ask(BOB, 100)
    assert again.messages == run(7, 3, 1)
    reset(log, -1)
    assert log.ask(BOB, 100) == []
    assert [h.messages for h in log.send(1)] == [run(10, 1, 1)]


def test_group_goes_on_within_what_is_kept() -> None:
    log = opened()
    log.send(10)
    log.ask(ALICE, 3)
    log.call(Lose([QUEUE], [4]))
    reset(log, 0)
    assert [h.messages for h in log.ask(BOB, 100)] == [run(4, 6, 1)]
    reset(log, 99)
    assert group(log).backlogs[QUEUE].next == 10


def test_other_queues_and_groups_are_left_alone() -> None:
    log = opened()
    log.send(3)
    log.send(3, queue=QUEUE | 1)
    held = log.ask(ALICE, 100)
    assert log.call(
        ResetGroup(1, [QUEUE, QUEUE + (1 << 16), QUEUE | 7], [0, 0, 0]), ResetGroup(2, [QUEUE], [0])
    ) == [None, Reason.UNKNOWN_GROUP]
    assert sorted(log.settle(1, *map(all_of, held))) == [FENCED, 3]
    assert list(group(log).backlogs) == [QUEUE, QUEUE | 1]


@pytest.mark.parametrize("kind", ["key", "queue"])
def test_parked_letter_before_the_new_place_blocks_nothing_any_more(kind: str) -> None:
    log = opened(kind, is_blocking=True)
    send(log, "a", "a", "a", "a")
    (first,) = log.ask(ALICE, 1)
    log.settle(1, all_of(first, Action.REJECT))
    assert log.ask(ALICE, 9, wait_ms=0) == []
    keys = group(log).dead[1].keys
    reset(log, 2)
    if kind == "key":
        assert log.call(Feed(1, QUEUE, 2, 2, None, keys * 2)) == [2]
    (again,) = log.ask(BOB, 1)
    assert again.messages == run(2, 1, 1)
    assert log.call(ChangeDead(1, [1], False)) == [1]
    log.settle(1, all_of(again), consumer=BOB)
    assert [h.messages.base for h in log.ask(BOB, 1)] == ([3] if kind == "key" else [0])
    group(log).audit()


def test_what_was_held_for_its_key_comes_again_in_order() -> None:
    log = opened("key")
    send(log, "a", "b", "a", "a")
    log.ask(ALICE, 9)
    assert group(log).counts(QUEUE).held == 2
    reset(log, 2)
    assert group(log).counts(QUEUE).held == 0
    # The leader feeds the messages from there on.
    assert group(log).wants_feed(log.machine.ends) == [(QUEUE, 2)]


@pytest.mark.parametrize("kind", ["pop", "queue"])
def test_random_resets_keep_the_books_and_replicas_alike(kind: str) -> None:
    draw = random.Random(11)
    log = opened(kind)
    replica = PartitionMachine.restore(log.machine.snapshot())
    sequence, states = 0, dict[int, str]()
    for step in range(600):
        log.now += draw.choice([0, 1, 7, 40])
        match draw.randint(0, 9):
            case 0 | 1 | 2:
                log.send(draw.randint(1, 9))
            case 3:
                reset(log, draw.randint(-1, log.machine.ends.get(QUEUE, 0)))
            case 4:
                letters = draw.sample(list(group(log).dead), min(2, len(group(log).dead)))
                log.call(ChangeDead(1, letters, draw.random() < 0.3))
            case 5 | 6:
                log.ask(draw.choice([ALICE, BOB]), draw.randint(1, 9))
            case _ if log.held:
                sequence += 1
                _, handed = log.held.pop(-draw.randint(1, min(5, len(log.held))))
                action = draw.choice([Action.ACK, Action.NACK, Action.REJECT, Action.GIVE_BACK])
                log.settle(sequence, all_of(handed, action), consumer=handed.consumer)
        log.handed()
        for record in log.records[replica.applied :]:
            replica.apply(record)
        assert replica.digest == log.machine.digest, step
        assert replica.snapshot() == log.machine.snapshot()
        if step % 50 == 25:
            replica = PartitionMachine.restore(replica.snapshot())
        _trace(log, states)
        found = Counter(group(log).audit())
        for word in ("leased", "waiting", "ready", "dead"):
            assert list(states.values()).count(word) == found[word], (step, word)
    assert found["acked"]
    assert found["dead"] or found["purged"]


def _trace(log: Log, states: dict[int, str]) -> None:
    """Update the messages' states from their traces."""
    for offset in range(len(states), log.machine.ends.get(QUEUE, 0)):
        states[offset] = "fresh"
    for traced in log.machine.pop_groups.take_traced():
        for event in traced.events:
            for offset, state in states.items():
                if event.bits == 0:
                    is_meant = offset < event.base
                else:
                    is_meant = offset >= event.base and bool(event.bits >> offset - event.base & 1)
                if is_meant:
                    at = log.records[traced.index - 1].timestamp
                    states[offset] = follow(state, event.kind, detail=event.detail, at=at)


def test_request_that_arrives_again_does_nothing_and_gets_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeats, "DONE_MAX", 2)
    log = opened()
    log.send(4)
    (first,) = log.ask(ALICE, 10)
    log.settle(1, only(log, 3, Action.REJECT, first.token))
    back, redriven = ResetGroup(1, [QUEUE], [0], 7), ChangeDead(1, [1], False, [], [], 8)
    assert log.call(redriven, back) == [1, None]
    (again,) = log.ask(BOB, 10)
    log.settle(1, all_of(again), consumer=BOB)
    log.machine = PartitionMachine.restore(log.machine.snapshot())
    assert log.call(redriven, back) == [1, None]
    assert log.ask(BOB, 10) == []
    # The oldest requests are forgotten, and carried out again.
    assert log.call(ChangeDead(1, [1], True, [], [], 9), redriven, back) == [0, 0, None]
    assert [h.messages for h in log.ask(BOB, 10)] == [run(0, 4, 1)]


def test_queues_are_reset_together_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    drop = Leases.drop

    def counting(self: Leases, queues: Collection[int]) -> None:
        passes.append(len(queues))
        drop(self, queues)

    monkeypatch.setattr(Leases, "drop", counting)
    log = opened()
    for queue in range(QUEUE, QUEUE + 5):
        log.send(4, queue=queue)
    handed = log.ask(ALICE, 20)
    assert sum(each.messages.size for each in handed) == 20
    queues = [QUEUE + 3, QUEUE, QUEUE + 1]
    assert log.call(ResetGroup(1, queues, [1, 4, 2])) == [None]
    assert passes == [3]
    group(log).audit()
    again = {each.queue: each.messages for each in log.ask(BOB, 20)}
    assert again == {QUEUE + 3: run(1, 3, 1), QUEUE + 1: run(2, 2, 1)}
    # The leases of other queues go on.
    kept = [each for each in handed if each.queue in (QUEUE + 2, QUEUE + 4)]
    assert all(group(log).held_until(ALICE, x.token, x.messages, log.now) for x in kept)
    assert len(kept) == 2


def test_reset_of_an_old_log_that_names_a_queue_twice_counts_twice() -> None:
    log = opened()
    log.send(9)
    (first,) = log.ask(ALICE, 9)
    log.settle(1, only(log, 3, Action.REJECT, first.token))
    assert log.call(ResetGroup(1, [QUEUE, QUEUE], [2, 5])) == [None]
    group(log).audit()
    # The first one took the dead letter at 3, the second one decides where the group goes on.
    assert not group(log).dead
    assert [each.messages for each in log.ask(BOB, 9)] == [run(5, 4, 1)]
