"""The ledger that reads the log along: the machine agrees with it, and planted bugs do not."""

import random
from collections import Counter
from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest

from raftmq.chaos.ledger.play import ORDERED, PLAIN, play
from raftmq.chaos.ledger.random_log import RandomLog
from raftmq.machine import pop_groups
from raftmq.machine.pop_groups import PopGroups
from raftmq.machine.settlements import Settlements
from raftmq.pop import dead_letters, groups
from raftmq.pop.backlog import Backlog
from raftmq.pop.groups import PopGroup
from raftmq.pop.leases import Leases
from raftmq.pop.pieces import Piece, divided
from raftmq.pop.policy import RUN_MAX, Mode, Order, Policy
from raftmq.pop.retries import Retries
from raftmq.pop.spans import Span

SEEDS = 15
MODES = {"plain": PLAIN, "ordered": ORDERED}
RECORDS = 300


def log(seed: int, modes: tuple[tuple[Mode, Policy], ...] = PLAIN) -> RandomLog:
    return RandomLog(random.Random(f"log {seed}"), modes)


@pytest.mark.parametrize("modes", MODES.values(), ids=MODES)
def test_machine_agrees_with_the_ledger(modes: tuple[tuple[Mode, Policy], ...]) -> None:
    words: set[str] = set()
    withheld: set[str] = set()
    for seed in range(SEEDS):
        one = log(seed, modes)
        ledger = one.play(RECORDS)
        assert not ledger.breaches, (seed, ledger.breaches[0])
        assert ledger.records > 250
        for group in ledger.groups.values():
            for queue in group.queues.values():
                words |= {word for word, count in queue.counts.items() if count}
        withheld |= set(ledger.withheld.counts)
    assert words == {
        "leased", "waiting", "ready", "dead", "acked", "purged", "lost", "passed", "skipped"
    }  # fmt: skip
    assert withheld == {"released", "taken back", "committed", "rolled back", "fenced", "copied"}


@pytest.mark.parametrize("seed", [0, 23, 34])
def test_parked_letter_of_a_run_holds_up_the_messages_after_it_alone(seed: int) -> None:
    """In these logs messages of a key go out before one of them that is parked: no breach."""
    blocking = Policy((10, 50), 2, 100, Order.KEY, True, RUN_MAX)
    ledger = log(seed, ((Mode.ORDERED, blocking), (Mode.ORDERED, blocking))).play(RECORDS)
    assert not ledger.breaches, ledger.breaches[0]


def test_random_logs_have_offsets_deletions_handles_and_feeds_that_cross_filters() -> None:
    late = by_handle = deleted = 0
    for seed in range(6):
        one = log(seed, ORDERED if seed % 2 else PLAIN)
        ledger = one.play(300)
        assert not ledger.breaches, (seed, ledger.breaches[0])
        assert ledger.committed.commands > 15
        late += one.filters.late
        by_handle += sum(len(said) for (_, _, is_so), said in one.last.items() if is_so)
        deleted += one.machine.offsets.forgotten > 0
    assert late > 2
    assert by_handle > 10
    assert deleted > 2


def test_nothing_that_was_handed_out_or_traced_piles_up() -> None:
    one = log(3)
    one.play(50)
    assert not one.machine.pop_groups.take_handed()
    assert not one.machine.pop_groups.take_traced()


def test_same_seed_gives_the_same_log() -> None:
    assert play(7) == play(7)
    assert play(7).counts != play(8).counts


def _returns(value: Any) -> Any:
    return lambda *_, **__: value


def _forgets_leases(patch: pytest.MonkeyPatch) -> None:
    """Forget leases in snapshots, as if the leader's memory alone held them."""
    patch.setattr(Leases, "load", _returns(None))


def _forgets_retries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Retries, "load", _returns(None))


def _acks_any_token(patch: pytest.MonkeyPatch) -> None:
    find = Leases.find

    def careless(self: Leases, token: int, consumer: int, now: int) -> Any:
        holders = {lease.token: lease.consumer for lease in self}
        return find(self, token, holders.get(token, consumer), now)

    patch.setattr(Leases, "find", careless)


def _repeats_settlements(patch: pytest.MonkeyPatch) -> None:
    once = Settlements.once

    def again(self: Settlements, by: Any, *call: Any, now: int) -> Any:
        self._last.pop(by, None)
        return once(self, by, *call, now=now)

    patch.setattr(Settlements, "once", again)


def _counts_what_is_given_back(patch: pytest.MonkeyPatch) -> None:
    def counted(self: PopGroup, queue: int, given: Any, *_: Any, **__: Any) -> None:
        self.backlogs[queue].put_back(given)

    patch.setattr(PopGroup, "_not_begun", counted)


def _buries_late(patch: pytest.MonkeyPatch) -> None:
    failed = PopGroup._failed

    def late(self: PopGroup, queue: int, messages: Any, *rest: Any, **named: Any) -> None:
        policy, self.policy = self.policy, Policy(self.policy.schedule_ms, 99)
        failed(self, queue, messages, *rest, **named)
        self.policy = policy

    patch.setattr(PopGroup, "_failed", late)


def _wakes_at_once(patch: pytest.MonkeyPatch) -> None:
    take = Retries.take_due
    patch.setattr(Retries, "take_due", lambda self, now, most: take(self, now + 40, most))


def _loses_a_wake_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PopGroup, "_reopen", _returns(None))


def _keeps_credits(patch: pytest.MonkeyPatch) -> None:
    finish = PopGroups.finish

    def lasting(self: PopGroups, *rest: Any) -> Any:
        self._momentary.clear()
        return finish(self, *rest)

    patch.setattr(PopGroups, "finish", lasting)


def _reuses_tokens(patch: pytest.MonkeyPatch) -> None:
    tokens = count(5 << 20)
    patch.setattr(pop_groups, "_tokens", lambda index: tokens.__next__)


def _expires_late(patch: pytest.MonkeyPatch) -> None:
    take = Leases.take_expired
    patch.setattr(Leases, "take_expired", lambda self, now, most: take(self, now - 15, most))


def _passes_over_fresh_ones(patch: pytest.MonkeyPatch) -> None:
    take = Backlog._take_fresh

    def skipping(self: Backlog, count: int, end: int) -> Any:
        taken = take(self, count, end)
        if taken is not None and self.next < end:
            self.next += 1
        return taken

    patch.setattr(Backlog, "_take_fresh", skipping)


def _keeps_letters_of_what_comes_again(patch: pytest.MonkeyPatch) -> None:
    def keep_all(dead: Any, offsets: Mapping[int, int]) -> Counter[int]:
        count = Counter[int]()
        for letter in dead.values():
            count[letter.queue] += letter.messages.size
        return count

    patch.setattr(groups, "keep_before", keep_all)


def _takes_others_out_of_letters(patch: pytest.MonkeyPatch) -> None:
    """As many as were named."""

    def from_the_front(messages: Piece, chosen: Span) -> tuple[Piece | None, Piece | None]:
        taken, _ = divided(messages, chosen)
        return (None, messages) if taken is None else messages.split(taken.size)

    patch.setattr(dead_letters, "divided", from_the_front)


def _takes_whole_letters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dead_letters, "divided", lambda messages, chosen: (messages, None))


def _forgets_nothing_at_a_reset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leases, "drop", lambda *_: None)


BUGS = {
    "Q8": [
        _keeps_letters_of_what_comes_again,
        _forgets_nothing_at_a_reset,
        _buries_late,
        _keeps_credits,
    ],
    "R21": [_forgets_retries, _forgets_leases],
    "Q12": [_counts_what_is_given_back],
    "Q13": [_takes_others_out_of_letters, _takes_whole_letters],
    "Q14": [_acks_any_token, _repeats_settlements, _reuses_tokens],
    "Q16": [_loses_a_wake_up, _passes_over_fresh_ones],
    "early": [_wakes_at_once],
    "late": [_expires_late],
}
# Tokens of one process differ between replicas.
NUMBERS = {"early": {"Q8", "Q16"}, "late": {"Q8", "Q16"}, "Q14": {"Q14", "R21"}}
# A lease that outlives the reset of its group: the machine's own count says so first.
NOTICED = "assert more messages expire than were leased"


@pytest.mark.parametrize(
    ("number", "plant"),
    [(number, plant) for number, plants in BUGS.items() for plant in plants],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_planted_bug_is_seen_in_the_log(
    number: str, plant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found: set[str] = set()
    for seed in range(SEEDS):
        try:
            found |= {breach.number for breach in log(seed).play(300).breaches[:1]}
        except AssertionError as error:
            # The machine noticed by itself.
            found.add(f"assert {error}")
        if found:
            break
    assert found & (NUMBERS.get(number, {number}) | {"Q8", "Q14", NOTICED}), found
