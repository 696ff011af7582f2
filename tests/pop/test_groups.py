"""A consumer group that pops, against a model that keeps one word for each message."""

from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raftmq.errors import Reason
from raftmq.pop.groups import EXPIRIES_MAX, Handed, Policy, PopGroup
from raftmq.pop.results import Changed, Refused
from raftmq.pop.spans import Span, run, span

QUEUES = (65536, 65537, 65538)
CONSUMERS = (1, 2, 3)
POLICY = Policy(schedule_ms=(10, 50), attempts_max=3)


class Replicas:
    """Two replicas that are told the same; one is rebuilt from a snapshot now and then."""

    def __init__(self) -> None:
        self.first = self.second = PopGroup(POLICY)
        self.token = 1 << 20
        self.rebuild()

    def rebuild(self) -> None:
        state = self.first.dump()
        self.second = PopGroup.load(state)
        assert self.second.dump() == state

    def tell(self, verb: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of both; they answer alike."""
        answers = [getattr(one, verb)(*arguments, **named) for one in (self.first, self.second)]
        assert answers[0] == answers[1]
        return answers[0]

    def hand_out(self, ends: dict[int, int], now: int) -> list[Handed]:
        start = self.token
        handed = [one.hand_out(ends, now, count(start).__next__) for one in self.both]
        assert handed[0] == handed[1]
        self.token += len(handed[0])
        return handed[0]

    @property
    def both(self) -> tuple[PopGroup, PopGroup]:
        return self.first, self.second


class Model(RuleBasedStateMachine):
    """Messages as (queue, offset), each with one word: where it is."""

    @initialize(begun=st.integers(0, 3))
    def begin(self, begun: int) -> None:
        self.replicas = Replicas()
        self.now = 1000
        self.ends = dict.fromkeys(QUEUES, begun)
        self.where: dict[tuple[int, int], str] = {}
        self.attempts: dict[tuple[int, int], int] = {}
        self.dues: dict[tuple[int, int], int] = {}
        self.handed: list[Handed] = []
        self.deadlines: dict[int, int] = {}
        self.wishes: dict[int, tuple[int, int]] = {}
        for queue in QUEUES:
            self.replicas.tell("follow", queue, begun)

    # What happens

    @rule(queue=st.sampled_from(QUEUES), size=st.integers(1, 40))
    def append(self, queue: int, size: int) -> None:
        end = self.ends[queue]
        self.where |= {(queue, offset): "fresh" for offset in range(end, end + size)}
        self.ends[queue] = end + size
        self.replicas.tell("came", queue)
        self.hand_out()

    @rule(
        consumer=st.sampled_from(CONSUMERS),
        size=st.integers(0, 50),
        invisible=st.integers(1, 100),
        wait=st.integers(0, 60),
    )
    def ask(self, consumer: int, size: int, invisible: int, wait: int) -> None:
        until = self.now + wait
        self.replicas.tell("ask", consumer, size, invisible_ms=invisible, until=until)
        self.wishes[consumer] = (size, until)
        self.hand_out()

    @rule(consumer=st.sampled_from(CONSUMERS))
    def leave(self, consumer: int) -> None:
        self.replicas.tell("leave", consumer)
        self.wishes.pop(consumer, None)

    @precondition(lambda self: self.handed)
    @rule(data=st.data(), verb=st.sampled_from(["ack", "nack", "nack now", "reject", "give_back"]))
    def settle(self, data: st.DataObject, verb: str) -> None:
        one = data.draw(st.sampled_from(self.handed))
        bits = data.draw(st.integers(1, (1 << one.messages.stop - one.messages.base) - 1))
        named = span(one.messages.base, bits)
        assert named is not None
        runs = self.deadlines[one.token] > self.now
        held = [
            (one.queue, offset)
            for offset in named.offsets()
            if runs and self.where.get((one.queue, offset)) == f"leased {one.token}"
        ]
        result = self.call(verb, one, named)
        if not held:
            assert isinstance(result, Refused)
            assert result.reason is Reason.FENCED
            return
        assert result == Changed(len(held))
        for at in held:
            self.settled(at, verb)
        self.hand_out()

    def call(self, verb: str, one: Handed, named: Span) -> object:
        arguments = (one.consumer, one.token, named, self.now)
        if verb == "reject":
            return self.replicas.tell("reject", *arguments, reason="poison")
        if verb == "nack now":
            return self.replicas.tell("nack", *arguments, delay_ms=0)
        return self.replicas.tell(verb, *arguments)

    def settled(self, at: tuple[int, int], verb: str) -> None:
        if verb == "ack":
            self.where[at] = "acked"
        elif verb == "reject":
            self.where[at] = "dead"
        elif verb == "give_back":
            self.where[at] = "ready"
            self.attempts[at] -= 1
        else:
            self.failed(at, 0 if verb == "nack now" else None)

    def failed(self, at: tuple[int, int], delay: int | None = None) -> None:
        attempt = self.attempts[at]
        if attempt >= POLICY.attempts_max:
            self.where[at] = "dead"
            return
        delay = POLICY.delay_ms(attempt) if delay is None else delay
        self.where[at] = "waiting" if delay else "ready"
        self.dues[at] = self.now + delay

    @precondition(lambda self: self.handed)
    @rule(data=st.data(), other=st.sampled_from(CONSUMERS))
    def settle_what_is_not_ones_own(self, data: st.DataObject, other: int) -> None:
        one = data.draw(st.sampled_from(self.handed))
        consumer = other if other != one.consumer else 99
        result = self.replicas.tell("ack", consumer, one.token, one.messages, self.now)
        assert isinstance(result, Refused)

    @precondition(lambda self: self.handed)
    @rule(data=st.data(), invisible=st.integers(1, 200))
    def extend(self, data: st.DataObject, invisible: int) -> None:
        one = data.draw(st.sampled_from(self.handed))
        runs = self.deadlines[one.token] > self.now and f"leased {one.token}" in self.where.values()
        result = self.replicas.tell(
            "extend", one.consumer, one.token, self.now, invisible_ms=invisible
        )
        assert isinstance(result, Changed if runs else Refused)
        if runs:
            self.deadlines[one.token] = self.now + invisible

    @rule(by=st.integers(0, 120))
    def time_passes(self, by: int) -> None:
        self.now += by
        assert not self.replicas.tell("pass_time", self.now)
        for at, word in self.where.items():
            if word.startswith("leased ") and self.deadlines[int(word[7:])] <= self.now:
                self.failed(at)
        for at, word in self.where.items():
            if word == "waiting" and self.dues[at] <= self.now:
                self.where[at] = "ready"
        self.hand_out()

    @rule(queue=st.sampled_from(QUEUES), size=st.integers(1, 30))
    def trim(self, queue: int, size: int) -> None:
        kept = [o for (q, o), word in self.where.items() if q == queue and word != "lost"]
        earliest = min(min(kept, default=0) + size, self.ends[queue])
        self.replicas.tell("trim", queue, earliest)
        for at, word in self.where.items():
            if at[0] == queue and at[1] < earliest and word not in {"acked", "dead", "purged"}:
                self.where[at] = "lost"

    @rule(data=st.data(), verb=st.sampled_from(["redrive", "purge"]))
    def attend_to_dead_letters(self, data: st.DataObject, verb: str) -> None:
        dead = self.replicas.first.dead
        if not dead:
            assert isinstance(self.replicas.tell(verb, 1 << 30), Refused)
            return
        number = data.draw(st.sampled_from(sorted(dead)))
        letter = dead[number]
        assert self.replicas.tell(verb, number) == Changed(letter.messages.size)
        for offset in letter.messages.offsets():
            at = letter.queue, offset
            assert self.where[at] == "dead"
            self.where[at] = "ready" if verb == "redrive" else "purged"
            self.attempts[at] = 0
        self.hand_out()

    @rule()
    def replica_is_rebuilt_from_a_snapshot(self) -> None:
        self.replicas.rebuild()

    # What must hold

    def hand_out(self) -> None:
        for one in self.replicas.hand_out(self.ends, self.now):
            self.handed.append(one)
            self.deadlines[one.token] = one.deadline
            wish, until = self.wishes[one.consumer]
            assert one.messages.size <= wish
            assert until > self.now
            self.wishes[one.consumer] = (wish - one.messages.size, until)
            for offset in one.messages.offsets():
                at = one.queue, offset
                assert self.where[at] in {"fresh", "ready"}
                self.attempts[at] = self.attempts.get(at, 0) + 1
                assert one.messages.attempt == self.attempts[at]
                self.where[at] = f"leased {one.token}"
        is_hungry = any(wish and until > self.now for wish, until in self.wishes.values())
        assert not is_hungry or not {"fresh", "ready"} & set(self.where.values())

    @invariant()
    def counts_agree(self) -> None:
        words = [word.split()[0] for word in self.where.values() if word != "fresh"]
        audit = self.replicas.tell("audit")
        for word in ("leased", "waiting", "ready", "dead", "acked", "lost", "purged"):
            assert audit.get(word, 0) == words.count(word), word


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_frozen_consumer_holds_up_what_it_has_in_hand_and_nothing_else() -> None:
    group, tokens = PopGroup(Policy()), count(1)
    group.follow(7, 0)
    group.ask(1, 10, invisible_ms=1000, until=10**9)
    group.ask(2, 1000, invisible_ms=1000, until=10**9)
    handed = group.hand_out({7: 100}, 0, lambda: next(tokens))
    assert [(one.consumer, one.messages.size) for one in handed] == [(1, 10), (2, 90)]
    group.came(7)
    (more,) = group.hand_out({7: 200}, 1, lambda: next(tokens))
    assert (more.consumer, more.messages) == (2, run(100, 100, 1))


def test_ack_of_an_old_hand_out_does_not_touch_the_new_one() -> None:
    group, tokens = PopGroup(Policy(schedule_ms=(5,))), count(1)
    group.follow(7, 0)
    group.ask(1, 1, invisible_ms=10, until=10**9)
    (old,) = group.hand_out({7: 1}, 0, lambda: next(tokens))
    group.pass_time(10)
    group.pass_time(15)
    group.ask(1, 1, invisible_ms=10, until=10**9)
    (new,) = group.hand_out({7: 1}, 15, lambda: next(tokens))
    assert new.messages == old.messages._replace(attempt=2)
    assert isinstance(group.ack(1, old.token, old.messages, 16), Refused)
    assert group.ack(1, new.token, new.messages, 16) == Changed(1)


def test_million_leases_that_run_out_at_once_are_taken_back_in_portions() -> None:
    group, tokens = PopGroup(Policy(attempts_max=1)), count(1)
    group.follow(7, 0)
    leases = 3 * EXPIRIES_MAX
    for n in range(leases):
        group.ask(1, 1, invisible_ms=100, until=10**9)
        group.hand_out({7: n + 1}, 0, lambda: next(tokens))
        group.came(7)
    # Nobody's from the deadline on, before it is taken back too.
    assert isinstance(group.ack(1, leases, run(leases - 1, 1), 100), Refused)
    assert [group.pass_time(100) for _ in range(4)] == [True, True, False, False]
    assert group.audit()["dead"] == leases


@pytest.mark.parametrize("attempt", [1, 2, 3, 9])
def test_last_level_of_the_schedule_repeats(attempt: int) -> None:
    assert Policy(schedule_ms=(1, 2, 3)).delay_ms(attempt) == min(attempt, 3)


def test_leases_run_out_in_one_order_on_all_replicas() -> None:
    group, tokens = PopGroup(Policy(attempts_max=1)), count(1)
    group.follow(7, 0)
    for invisible in (10, 50):
        group.ask(1, 1, invisible_ms=invisible, until=10**9)
        group.hand_out({7: 2}, 0, lambda: next(tokens))
    # The older lease gets its deadline last.
    group.extend(1, 1, 0, invisible_ms=50)
    rebuilt = PopGroup.load(group.dump())
    for one in (group, rebuilt):
        one.pass_time(50)
    assert [letter.messages.base for letter in group.dead.values()] == [0, 1]
    assert rebuilt.dump() == group.dump()


def test_dead_letter_that_is_redriven_begins_anew() -> None:
    group, tokens = PopGroup(Policy(attempts_max=1)), count(1)
    group.follow(7, 0)
    group.ask(1, 9, invisible_ms=10, until=10**9)
    (first,) = group.hand_out({7: 1}, 0, lambda: next(tokens))
    group.reject(1, first.token, first.messages, 1, reason="not for us")
    (number,) = group.dead
    assert group.dead[number].reason == "not for us"
    assert group.redrive(number) == Changed(1)
    (again,) = group.hand_out({7: 1}, 2, lambda: next(tokens))
    assert again.messages == first.messages
