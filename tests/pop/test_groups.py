"""A consumer group that pops: the duel with the model, and single facts.

Orders have their own facts in test_keyed and test_serial, windows in test_windows.
"""

from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from raftmq.pop import backlog, credit, groups, keyed, leases, pieces, serial, windows
from raftmq.pop.groups import CREDIT_MAX, EXPIRIES_MAX, PopGroup
from raftmq.pop.policy import INVISIBLE_MS_MAX, Mode, Order, Policy
from raftmq.pop.spans import Span, run
from raftmq.results import Changed, Refused
from tests.pop.drawn_duels import drive
from tests.pop.duel import CONSUMERS, KINDS, QUEUES, VERBS, Duel

KEYS = st.sampled_from([0, 0, 1, 2, 3, 0xFFFFFFFF])


class Game(RuleBasedStateMachine):
    """A duel whose steps hypothesis picks, and shrinks."""

    @initialize(kind=st.sampled_from(sorted(KINDS)), begun=st.integers(0, 3))
    def begin(self, kind: str, begun: int) -> None:
        self.duel = Duel(KINDS[kind], begun)

    @rule(
        queue=st.sampled_from(QUEUES),
        messages=st.lists(st.tuples(KEYS, st.booleans()), min_size=1, max_size=12),
    )
    def append(self, queue: int, messages: list[tuple[int, bool]]) -> None:
        self.duel.append(queue, [key for key, _ in messages], [each for _, each in messages])

    @precondition(lambda self: self.duel.kind.is_fed)
    @rule(queue=st.sampled_from(QUEUES), size=st.integers(0, 30))
    def feed(self, queue: int, size: int) -> None:
        self.duel.feed(queue, size)

    @rule(queue=st.sampled_from(QUEUES), ahead=st.sampled_from([-3, -1, 1, 3]))
    def feed_elsewhere(self, queue: int, ahead: int) -> None:
        self.duel.feed_elsewhere(queue, ahead)

    @rule(
        consumer=st.sampled_from(CONSUMERS),
        size=st.integers(0, 50),
        invisible=st.integers(0, 100),
        wait=st.integers(0, 60),
        is_kept=st.booleans(),
    )
    def ask(self, consumer: int, size: int, invisible: int, wait: int, is_kept: bool) -> None:
        self.duel.ask(consumer, size, invisible, wait, is_kept=is_kept)

    @rule(consumer=st.sampled_from(CONSUMERS))
    def leave(self, consumer: int) -> None:
        self.duel.leave(consumer)

    @precondition(lambda self: self.duel.handed)
    @rule(data=st.data(), verb=st.sampled_from(sorted(set(VERBS))))
    def settle(self, data: st.DataObject, verb: str) -> None:
        one = data.draw(st.sampled_from(self.duel.handed))
        bits = st.integers(1, (1 << one.messages.stop - one.messages.base) - 1)
        self.duel.settle(one, data.draw(bits | st.just(one.messages.bits)), verb)

    @precondition(lambda self: self.duel.handed)
    @rule(data=st.data(), consumer=st.sampled_from(CONSUMERS))
    def settle_what_is_not_ones_own(self, data: st.DataObject, consumer: int) -> None:
        self.duel.settle_foreign(data.draw(st.sampled_from(self.duel.handed)), consumer)

    @precondition(lambda self: self.duel.handed)
    @rule(data=st.data(), invisible=st.integers(1, 200))
    def extend(self, data: st.DataObject, invisible: int) -> None:
        self.duel.extend(data.draw(st.sampled_from(self.duel.handed)), invisible)

    @rule(by=st.sampled_from([0, 1, 9, 10, 49, 50, 120]))
    def time_passes(self, by: int) -> None:
        self.duel.pass_time(by)

    @rule(by=st.sampled_from([1, 10, 120]))
    def clock_moves(self, by: int) -> None:
        self.duel.clock_moves(by)

    @rule(queue=st.sampled_from(QUEUES), size=st.integers(1, 30))
    def trim(self, queue: int, size: int) -> None:
        self.duel.trim(queue, size)

    @rule(
        verb=st.sampled_from(["redrive", "purge"]),
        pick=st.integers(0, 9),
        part=st.none() | st.integers(1, 0xFFFF),
    )
    def attend_to_dead_letters(self, verb: str, pick: int, part: int | None) -> None:
        self.duel.attend(verb, pick, part)

    @precondition(lambda self: self.duel.kind.is_changing)
    @rule(queue=st.sampled_from(QUEUES), offset=st.integers(0, 40))
    def reset(self, queue: int, offset: int) -> None:
        self.duel.reset(queue, offset)

    @precondition(lambda self: self.duel.kind.is_changing)
    @rule()
    def alter(self) -> None:
        self.duel.alter()

    @rule()
    def replica_is_rebuilt_from_a_snapshot(self) -> None:
        self.duel.rebuild()


TestGame = Game.TestCase
TestGame.settings = settings(max_examples=250, stateful_step_count=40)


@pytest.mark.parametrize("kind", KINDS)
def test_long_duels_end_in_agreement(kind: str) -> None:
    words = set().union(*(drive(KINDS[kind], seed, 400).seen for seed in range(12)))
    assert words >= {"fresh", "leased", "waiting", "ready", "dead", "acked", "lost", "purged"}


TIGHT = (
    (groups, "EXPIRIES_MAX", 2),
    (groups, "HANDED_MAX", 2),
    (groups, "CREDIT_MAX", 12),
    (leases, "_STALE_MIN", 2),
    (leases, "_SMALL_MAX", 3),
    (credit, "_SWEEP_MIN", 2),
    (windows, "WINDOW_MAX", 20),
    (windows, "WINDOW_MIN", 5),
    (windows, "FED_MAX", 40),
    (windows, "CROWDED_MAX", 6),
    (windows, "CROWDED_MIN", 3),
    (backlog, "WIDTH_MAX", 16),
    (serial, "WIDTH_MAX", 16),
    (keyed, "WIDTH_MAX", 16),
    (keyed, "_CHUNK_MAX", 4),
    (pieces, "_FEW", 1),
)


@pytest.mark.parametrize("held_max", [3, 1000])
@pytest.mark.parametrize("kind", KINDS)
def test_duels_within_tight_bounds_end_in_agreement(
    kind: str, held_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in TIGHT:
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(keyed, "HELD_MAX", held_max)
    monkeypatch.setattr(pieces.joined, "__kwdefaults__", {"width_max": 8})
    for seed in range(10):
        duel = drive(KINDS[kind], seed, 300)
        assert all(one.messages.bits.bit_length() <= 20 for one in duel.handed)


def test_frozen_consumer_holds_up_what_it_has_in_hand_and_nothing_else() -> None:
    group, tokens = PopGroup(Policy()), count(1)
    group.follow(7, 0)
    group.ask(1, 10, invisible_ms=1000, until=10**9)
    group.ask(2, 1000, invisible_ms=1000, until=10**9)
    handed = group.hand_out({7: 100}, 0, lambda: next(tokens))
    assert [(one.consumer, one.messages.size) for one in handed] == [(1, 10), (2, 90)]
    group.came(7)
    group.ask(2, 1000, invisible_ms=1000, until=10**9)
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
    # From the deadline on the lease has no holder, even before it is taken back.
    assert isinstance(group.ack(1, leases, run(leases - 1, 1), 100), Refused)
    assert [group.pass_time(100) for _ in range(4)] == [True, True, False, False]
    assert group.audit()["dead"] == leases


@pytest.mark.parametrize("attempt", [1, 2, 3, 9])
def test_last_level_of_the_schedule_repeats(attempt: int) -> None:
    assert Policy(schedule_ms=(1, 2, 3)).delay_ms(attempt) == min(attempt, 3)


def test_leases_run_out_in_one_order_on_all_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "EXPIRIES_MAX", 1)
    group, tokens = PopGroup(Policy(attempts_max=1)), count(1)
    for queue, invisible in ((8, 10), (7, 50)):
        group.follow(queue, 0)
        group.ask(1, 1, invisible_ms=invisible, until=10**9)
        group.hand_out({7: 1, 8: 1}, 0, lambda: next(tokens))
    # The older lease gets its deadline last.
    group.extend(1, 1, 0, invisible_ms=50)
    rebuilt = PopGroup.load(group.dump(0))
    for one in (group, rebuilt):
        assert [one.pass_time(50), one.pass_time(50)] == [True, False]
    assert [letter.queue for letter in group.dead.values()] == [8, 7]
    assert rebuilt.dump(0) == group.dump(0)


def test_dead_letter_that_is_redriven_begins_anew() -> None:
    group, tokens = PopGroup(Policy(attempts_max=1)), count(1)
    group.follow(7, 0)
    group.ask(1, 9, invisible_ms=10, until=10**9)
    (first,) = group.hand_out({7: 1}, 0, lambda: next(tokens))
    group.reject(1, first.token, first.messages, 1, reason="not for us")
    (number,) = group.dead
    assert group.dead[number].reason == "not for us"
    assert group.redrive(number) == Changed(1)
    group.ask(1, 9, invisible_ms=10, until=10**9)
    (again,) = group.hand_out({7: 1}, 2, lambda: next(tokens))
    assert again.messages == first.messages


def serve(group: PopGroup, end: int, now: int = 0, *, start: int = 1) -> list[Any]:
    return group.hand_out({7: end}, now, count(start).__next__)


def test_credit_ends_with_the_first_hand_out_that_has_something() -> None:
    group = PopGroup(Policy())
    group.follow(7, 0)
    group.ask(1, 10, invisible_ms=1000, until=10**9)
    assert serve(group, 0) == []
    group.came(7)
    assert len(serve(group, 3)) == 1
    group.came(7)
    assert serve(group, 6) == []


def test_credit_that_is_kept_stands_until_it_is_used_up_or_its_time_is_over() -> None:
    group = PopGroup(Policy())
    group.follow(7, 0)
    group.ask(1, 5, invisible_ms=1000, until=10, is_kept=True)
    for end, size in ((3, 3), (6, 2)):
        group.came(7)
        assert [one.messages.size for one in serve(group, end, start=end)] == [size]
    assert group.credits.of(1) is None
    group.ask(1, 5, invisible_ms=1000, until=10, is_kept=True)
    group.came(7)
    assert len(serve(group, 9, start=9)) == 1
    group.came(7)
    assert serve(group, 12, now=10) == []


def test_one_hand_out_gives_a_consumer_several_leases_of_several_queues() -> None:
    group = PopGroup(Policy())
    group.follow(7, 0)
    group.follow(8, 0)
    group.ask(1, 10, invisible_ms=1000, until=10**9)
    handed = group.hand_out({7: 3, 8: 4}, 0, count(1).__next__)
    assert [(one.queue, one.messages.size) for one in handed] == [(7, 3), (8, 4)]


def test_credit_in_a_snapshot_of_older_software_is_for_one_hand_out() -> None:
    loaded = credit.Credits()
    loaded.load([64, [[7, 3, 1000, 500]]])
    assert loaded.of(7) == credit.Credit(3, 1000, 500, is_kept=False)


def test_credit_for_nothing_voids_the_one_before() -> None:
    group = PopGroup(Policy())
    group.follow(7, 0)
    group.ask(1, 10, invisible_ms=1000, until=10**9)
    group.ask(1, 0, invisible_ms=1000, until=10**9)
    assert serve(group, 3) == []


def test_credits_of_consumers_that_vanished_do_not_pile_up() -> None:
    group = PopGroup(Policy())
    for consumer in range(10_000):
        group.ask(consumer, 1, invisible_ms=1000, until=consumer + 10, now=consumer)
    assert len(group.credits) < 100


def test_numbers_over_the_limits_are_cut_down_or_refused() -> None:
    group = PopGroup(Policy())
    group.follow(7, 0)
    group.ask(1, 1 << 70, invisible_ms=1 << 70, until=10**9)
    handed = serve(group, 1 << 40)
    assert [one.messages.size for one in handed] == [CREDIT_MAX]
    assert handed[0].deadline == INVISIBLE_MS_MAX
    for invisible in (0, -1, INVISIBLE_MS_MAX + 1):
        assert isinstance(group.extend(1, 1, 0, invisible_ms=invisible), Refused)
    assert isinstance(group.extend(1, 1, 0, invisible_ms=INVISIBLE_MS_MAX), Changed)


@pytest.mark.parametrize("base", [-(1 << 62), -1, 5, 70_000, 1 << 62])
def test_settling_messages_far_from_the_lease_is_fenced_and_costs_nothing(base: int) -> None:
    group = PopGroup(Policy())
    group.follow(7, 0)
    group.ask(1, 5, invisible_ms=1000, until=10**9)
    serve(group, 5)
    assert isinstance(group.ack(1, 1, Span(base, 1), 0), Refused)


def test_group_that_is_full_hands_out_retries_and_nothing_fresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "LETTERS_MAX", 2)
    group = PopGroup(Policy())
    group.follow(7, 0)
    for token in (1, 2):
        group.ask(1, 1, invisible_ms=1000, until=10**9)
        serve(group, 9, start=token)
        group.reject(1, token, run(token - 1, 1), 0, reason="poison")
    group.ask(1, 1, invisible_ms=1000, until=10**9)
    assert serve(group, 9, start=3) == []
    group.redrive(1)
    group.redrive(2)
    (again,) = serve(group, 9, start=3)
    assert again.messages == run(0, 1, 1)
    group.ask(1, 9, invisible_ms=1000, until=10**9)
    assert [one.messages for one in serve(group, 9, start=4)] == [run(1, 1, 1), run(2, 7, 1)]


def test_hand_out_that_is_cut_short_is_due_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "HANDED_MAX", 2)
    group = PopGroup(Policy())
    group.follow(7, 0)
    for consumer in (1, 2, 3):
        group.ask(consumer, 1, invisible_ms=1000, until=10**9)
    assert [one.consumer for one in serve(group, 9, 5)] == [1, 2]
    assert PopGroup.load(group.dump(0)).next_timer == group.next_timer == 5
    assert [one.consumer for one in serve(group, 9, 6, start=3)] == [3]
    assert group.next_timer == 1005


def test_acked_leases_leave_no_timers_behind() -> None:
    group = PopGroup(Policy())
    group.follow(7, 0)
    for token in range(1, 20_000):
        group.ask(1, 1, invisible_ms=30_000, until=10**9)
        group.came(7)
        serve(group, token, token, start=token)
        group.ack(1, token, run(token - 1, 1), token)
    assert group.next_timer is None
    assert group._leases._note_count < 2000


def test_lease_that_is_extended_over_and_over_has_one_timer() -> None:
    group = PopGroup(Policy())
    group.follow(7, 0)
    group.ask(1, 1, invisible_ms=30_000, until=10**9)
    serve(group, 1)
    for now in range(20_000):
        group.extend(1, 1, now, invisible_ms=30_000 - 3 * (now % 7))
    assert group._leases._note_count < 2000
    assert group.next_timer == 19_999 + 30_000 - 3 * (19_999 % 7)


def test_consumer_is_told_what_it_has_in_hand_and_no_more() -> None:
    group = PopGroup(Policy())
    group.follow(7, 0)
    for token, consumer in enumerate((1, 2, 1, 1), 1):
        group.ask(consumer, 2, invisible_ms=token * 10, until=10**9)
        serve(group, 9, start=token)
        if token == 2:
            assert [one.token for one in group.held_by(1, 0)] == [1]
    group.ack(1, 3, run(4, 1), 5)
    group.ack(1, 4, run(6, 2), 5)
    assert [(one.token, one.messages) for one in group.held_by(1, 5)] == [
        (1, run(0, 2, 1)),
        (3, run(5, 1, 1)),
    ]
    assert [one.token for one in group.held_by(1, 10)] == [3]
    assert list(group.held_by(99, 0)) == []


def test_messages_that_fail_one_by_one_come_back_together() -> None:
    group = PopGroup(Policy(schedule_ms=(5,)))
    group.follow(7, 0)
    for token in range(1, 101):
        group.ask(1, 1, invisible_ms=10, until=10**9)
        serve(group, 100, start=token)
    group.pass_time(10)
    group.pass_time(15)
    group.ask(1, 100, invisible_ms=10, until=10**9)
    (again,) = serve(group, 100, 15, start=101)
    assert again.messages == run(0, 100, 2)


def test_order_of_a_group_is_that_of_its_first_policy() -> None:
    first = PopGroup(Policy(order=Order.QUEUE), Mode.ORDERED)
    first.follow(7, 0)
    first.policy = Policy(order=Order.KEY)
    for group in (first, PopGroup.load(first.dump(0))):
        assert not group.is_fed
        group.follow(8, 0)
        group.ask(1, 1, invisible_ms=1000, until=10**9)
        assert len(serve(group, 9)) == 1
        group.ask(2, 1, invisible_ms=1000, until=10**9)
        assert serve(group, 9, start=2) == []
