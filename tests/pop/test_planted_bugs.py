"""The duel notices: each planted bug makes the group and the model disagree."""

from collections import OrderedDict
from collections.abc import Callable
from heapq import heappush
from typing import Any

import pytest

from raftmq.pop import (
    backlog,
    credit,
    dead_letters,
    groups,
    keyed,
    leases,
    pieces,
    retries,
    serial,
    windows,
)
from raftmq.pop.pieces import Piece
from raftmq.pop.spans import Span
from tests.pop.drawn_duels import drive
from tests.pop.duel import KINDS

Plant = Callable[[pytest.MonkeyPatch], None]
NOTICED = (AssertionError, KeyError, IndexError, ValueError)


def after(owner: type, name: str, more: Callable[..., None]) -> Plant:
    """Patch a method so that `more` runs after it."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = getattr(owner, name)

        def method(self: Any, *arguments: Any, **named: Any) -> Any:
            result = real(self, *arguments, **named)
            more(self, *arguments)
            return result

        patch.setattr(owner, name, method)

    return plant


def instead(owner: object, name: str, other: Any) -> Plant:
    """Patch a name with another value."""
    return lambda patch: patch.setattr(owner, name, other)


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def frees(self: Any, messages: Piece) -> None:
    self.end_turn(messages)


def find_whatever_the_time(self: Any, token: int, consumer: int, now: int) -> Any:
    row = self._row(token)
    return row if row >= 0 and self._consumers[row] == consumer else None


def find_whoever_asks(self: Any, token: int, consumer: int, now: int) -> Any:
    row = self._row(token)
    return row if row >= 0 and self._deadlines[row] > now else None


def extend_without_note(self: Any, row: int, deadline: int) -> None:
    self._deadlines[row] = deadline


def feed_from_anywhere(self: Any, base: int, *told: Any) -> tuple[int, int]:
    return (0, 0) if self.window is None else (int(self.window.feed(*told)), 0)


def count_passed_twice(self: Any) -> None:
    skipped = self.window.skip()
    self.next += skipped
    self.passed += 2 * skipped


def forget_a_passed_message(self: Any, *_: Any) -> None:
    self.passed -= self.passed > 5


def keys_of_the_first(keys: bytes, bits: int, chosen: int) -> bytes:
    return keys[: chosen.bit_count() * 4]


def join_without_looking_at_attempts(first: Piece, second: Piece, **more: Any) -> Any:
    return pieces.joined(first, second._replace(attempt=first.attempt), **more)


def load_credits_sorted(self: Any, values: list[Any]) -> None:
    _, rows = values
    self._credits = OrderedDict((each, credit.Credit(*row)) for each, *row in sorted(rows))


def end_all(self: Any, consumers: Any) -> None:
    for consumer in consumers:
        self.drop(consumer)


def attempts_of_the_innocent_count(
    self: Any, queue: int, messages: Piece, *_: Any, **__: Any
) -> None:
    self.backlogs[queue].put_back(messages)


def lose_without_a_turn(self: Any, messages: Piece) -> None:
    self.lost += messages.size


def lose_dead_without_a_turn(self: Any, messages: Piece, *, is_parked: bool) -> None:
    self.dead -= messages.size
    self.lost += messages.size


def forget_where_it_begins(self: Any, earliest: int) -> None:
    self.earliest = 0


def bury_without_parking(self: Any, messages: Piece, *, is_parked: bool) -> None:
    self.dead += messages.size
    self.end_turn(messages)


def part_with_all_keys(messages: Piece, chosen: Span) -> tuple[Piece | None, Piece | None]:
    first, rest = pieces.divided(messages, chosen)
    return first and first._replace(keys=messages.keys[: 4 * first.size]), rest


def leave_from_the_front(messages: Piece, chosen: Span) -> tuple[Piece | None, Piece | None]:
    first, _ = pieces.divided(messages, chosen)
    return (None, messages) if first is None else messages.split(first.size)


def unpark_all(self: Any, messages: Piece, left: Piece | None) -> None:
    self._unblock(messages.base)


def dump_without_chains(self: Any) -> list[Any]:
    return [[], sorted(self._freed)]


def take_beyond_a_block(self: Any, count: int) -> Any:
    if not self.has_returned:
        return None
    taken, rest = self._pieces.pop(0).split(count)
    if rest is not None:
        self._pieces.insert(0, rest)
    return taken


def busy_with_the_first_only(self: Any, messages: Piece) -> None:
    self._busy.update(dict.fromkeys(filter(None, keyed._unpacked(messages.keys)[:1]), 1))


def chain_from_the_wrong_end(self: Any, key: int) -> None:
    chain = self._chains[key]
    heappush(self._freed, chain.pop() << 32 | key)
    self._chained -= 1
    if not chain:
        del self._chains[key]


def one_turn_for_each_key(self: Any, messages: Piece) -> None:
    self._busy.update(dict.fromkeys(filter(None, keyed._unpacked(messages.keys)), 1))


def hold_as_if_new(self: Any, offsets: list[int], key: int, attempt: int = 0) -> None:
    HOLD(self, offsets, key)


HOLD = keyed.KeyedBacklog._hold


def redrive_as_it_was(self: Any, messages: Piece, *, is_parked: bool, is_old: bool) -> None:
    REDRIVE(self, messages, is_parked=is_parked, is_old=True)


REDRIVE = keyed.KeyedBacklog.redrive


def all_failed(self: Any, messages: Piece) -> tuple[Piece, None]:
    return messages, None


def wait_without_a_block(self: Any, messages: Piece) -> None:
    backlog.Backlog.wait(self, messages)


def wake_without_counting(self: Any, messages: Piece) -> None:
    self.put_back(messages)


def cut_one_too_few(self: Any, width: int) -> int:
    bits: int = self.mask & (1 << width) - 1
    self.mask >>= max(width - 1, 0)
    self.width -= width
    return bits


def due_a_little_early(self: Any, now: int, count: int) -> Any:
    return TAKE_DUE(self, now + 1, count)


TAKE_DUE = retries.Retries.take_due

BUGS: dict[str, tuple[str, Plant]] = {
    "key is freed when its message fails": (
        "keyed",
        after(keyed.KeyedBacklog, "wait", frees),
    ),
    "key is freed when its message is given back": (
        "keyed",
        after(keyed.KeyedBacklog, "put_back", frees),
    ),
    "key is never freed": ("keyed", instead(keyed.KeyedBacklog, "end_turn", nothing)),
    "key is not freed by retention": (
        "keyed",
        instead(keyed.KeyedBacklog, "lose", lose_without_a_turn),
    ),
    "chain is served from its end": (
        "keyed",
        instead(keyed.KeyedBacklog, "_free", chain_from_the_wrong_end),
    ),
    "keys under way are forgotten by a snapshot": (
        "keyed",
        instead(keyed.KeyedBacklog, "occupy", nothing),
    ),
    "all but one of a lease's keys are forgotten by a snapshot": (
        "keyed",
        instead(keyed.KeyedBacklog, "occupy", busy_with_the_first_only),
    ),
    "chains are forgotten by a snapshot": (
        "keyed",
        instead(keyed.KeyedBacklog, "_dump_order", dump_without_chains),
    ),
    "keys of a part of a lease are mixed up": ("keyed", instead(leases, "pick", keys_of_the_first)),
    "dead letter that is redriven overtakes its key": (
        "keyed",
        instead(keyed.KeyedBacklog, "redrive", backlog.Backlog.redrive),
    ),
    "dead letter that is redriven waits for parked ones after it": (
        "runs, changing",
        instead(keyed.KeyedBacklog, "redrive", redrive_as_it_was),
    ),
    "parked message does not block its key": (
        "keyed, filtered, blocking",
        instead(keyed.KeyedBacklog, "bury", bury_without_parking),
    ),
    "dead letter without a body is handed out": (
        "serial",
        after(backlog.Backlog, "trim", forget_where_it_begins),
    ),
    "turn of a dead letter without a body does not end": (
        "keyed, filtered, blocking",
        instead(backlog.Backlog, "lose_dead", lose_dead_without_a_turn),
    ),
    "keys of a part of a dead letter are those of its first messages": (
        "keyed",
        instead(dead_letters, "divided", part_with_all_keys),
    ),
    "as many messages leave a dead letter as were named, but others": (
        "plain",
        instead(dead_letters, "divided", leave_from_the_front),
    ),
    "rest of a parked letter does not block its queue": (
        "serial, filtered, blocking",
        instead(serial.SerialBacklog, "unpark", unpark_all),
    ),
    "parked message does not block its queue": (
        "serial, filtered, blocking",
        instead(serial.SerialBacklog, "bury", bury_without_parking),
    ),
    "rest of the run stays in hand after a failure": (
        "serial",
        instead(serial.SerialBacklog, "behind", nothing),
    ),
    "rest of a key's run stays in hand after a failure": (
        "runs",
        instead(keyed.KeyedBacklog, "behind", nothing),
    ),
    "all messages of a key fail with the first": (
        "runs",
        instead(keyed.KeyedBacklog, "heads", all_failed),
    ),
    "message that comes back does not wait for earlier ones of its key": (
        "runs",
        instead(keyed.KeyedBacklog, "put_back", backlog.Backlog.put_back),
    ),
    "failed message that is held is new again": (
        "runs",
        instead(keyed.KeyedBacklog, "_hold", hold_as_if_new),
    ),
    "key of a run has one turn after a snapshot": (
        "runs",
        instead(keyed.KeyedBacklog, "occupy", one_turn_for_each_key),
    ),
    "messages behind a failure count an attempt": (
        "serial",
        instead(groups.PopGroup, "_not_begun", attempts_of_the_innocent_count),
    ),
    "waiting message does not block its queue": (
        "serial",
        instead(serial.SerialBacklog, "wait", wait_without_a_block),
    ),
    "run goes on past a message that waits": (
        "serial",
        instead(serial.SerialBacklog, "_take_ready", take_beyond_a_block),
    ),
    "window is fed from anywhere": (
        "filtered",
        instead(backlog.Backlog, "feed", feed_from_anywhere),
    ),
    "window forgets one bit too few": ("filtered", instead(windows.Window, "cut", cut_one_too_few)),
    "passed messages count twice": (
        "filtered",
        instead(backlog.Backlog, "_skip", count_passed_twice),
    ),
    "passed message is forgotten": (
        "filtered",
        after(backlog.Backlog, "ack", forget_a_passed_message),
    ),
    "credit lasts after a hand-out": ("plain", instead(credit.Credits, "end_hand_out", nothing)),
    "credit is never kept": ("plain", instead(credit.Credits, "end_hand_out", end_all)),
    "credit of one who left lasts": ("plain", instead(credit.Credits, "drop", nothing)),
    "turns are forgotten by a snapshot": (
        "plain",
        instead(credit.Credits, "load", load_credits_sorted),
    ),
    "lease that ran out is settled": (
        "plain",
        instead(leases.Leases, "find", find_whatever_the_time),
    ),
    "somebody else's lease is settled": (
        "plain",
        instead(leases.Leases, "find", find_whoever_asks),
    ),
    "lease that was shortened runs on": (
        "plain",
        instead(leases.Leases, "extend", extend_without_note),
    ),
    "retry comes early": ("plain", instead(retries.Retries, "take_due", due_a_little_early)),
    "retry that is due is counted as waiting": (
        "plain",
        instead(backlog.Backlog, "wake", wake_without_counting),
    ),
    "attempts are lost when retries are joined": (
        "plain",
        instead(backlog, "joined", join_without_looking_at_attempts),
    ),
}


def hunt(kind: str) -> None:
    for seed in range(60):
        drive(KINDS[kind], seed, 300)


@pytest.mark.parametrize("bug", BUGS)
def test_duel_notices(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, plant = BUGS[bug]
    plant(monkeypatch)
    with pytest.raises(NOTICED):
        hunt(kind)
