"""Mutants of hand-outs, and of state that a snapshot forgets.

Most of them part replicas that have one log, and are found by the twin with another history of
timers (`raftmq.chaos.ledger.twins`): its results, hand-outs, events, digest or snapshot differ.
The others are about filters and feeds that cross, settling by handle, and deleted groups.

Sources: bugs that two close readings found in this project, and blind spots of its ledger.
"""

from typing import Any

import msgspec

from raftmq.batch import BatchHead
from raftmq.chaos.mutant import Mutant, Patch
from raftmq.machine.delays import FELL_DUE, NOT_WAITING, Delays
from raftmq.machine.offsets import ForgetOffsets, Offsets
from raftmq.machine.pop_groups import PopGroups
from raftmq.pop.backlog import Backlog
from raftmq.pop.calls import Feed, Settle
from raftmq.pop.credit import Credit, Credits
from raftmq.pop.groups import PopGroup
from raftmq.pop.keyed import KeyedBacklog
from raftmq.pop.leases import Leases
from raftmq.results import Result


def keeps_the_place_of_a_credit_that_is_over(patch: Patch) -> None:
    """140"""
    pass_time = PopGroup.pass_time

    def put(self: Credits, consumer: int, credit: Credit, now: int) -> None:
        self._credits[consumer] = credit

    def sweeping(self: PopGroup, now: int) -> bool:
        self.credits._sweep(now)
        return pass_time(self, now)

    patch.set(Credits, "put", put)
    patch.set(PopGroup, "pass_time", sweeping)


def touches_groups_at_stale_timers(patch: Patch) -> None:
    """141"""
    begin = PopGroups.begin

    def careless(self: PopGroups, now: int, version: int) -> None:
        due = [number for at, number in self._timers if at <= now and self._timer.get(number) == at]
        begin(self, now, version)
        for number in due:
            group = self.attached[number].group
            group._open.update(dict.fromkeys(group.backlogs))
            self._touched.add(number)

    patch.set(PopGroups, "begin", careless)


def hands_to_the_next_consumer_after_a_restart(patch: Patch) -> None:
    """142"""
    load = Credits.load

    def turned(self: Credits, values: list[Any]) -> None:
        load(self, values)
        if len(self._credits) > 1:
            self._credits.move_to_end(next(iter(self._credits)))

    patch.set(Credits, "load", turned)


def begins_with_another_queue_after_a_restart(patch: Patch) -> None:
    """143"""
    load = PopGroup.load.__func__  # type: ignore[attr-defined]

    def turned(cls: type[PopGroup], values: list[Any]) -> PopGroup:
        group: PopGroup = load(cls, values)
        if len(group._open) > 1:
            group._open.move_to_end(next(iter(group._open)))
        return group

    patch.set(PopGroup, "load", classmethod(turned))


def forgets_results_of_settlements(patch: Patch) -> None:
    """144"""
    dump = PopGroups.dump

    def without(self: PopGroups, now: int = 0) -> list[Any]:
        attached, earliest, consumers, *rest = dump(self, now)
        return [attached, earliest, [[*row[:3], [], row[4]] for row in consumers], *rest]

    patch.set(PopGroups, "dump", without)


def forgets_what_retention_took(patch: Patch) -> None:
    """145"""
    load = PopGroups.load

    def without(self: PopGroups, state: list[Any]) -> None:
        load(self, [state[0], [], *state[2:]])

    patch.set(PopGroups, "load", without)


def forgets_cancelled_numbers(patch: Patch) -> None:
    """146"""
    load = Delays.load

    def without(self: Delays, state: list[Any], snapshot: bytes) -> None:
        load(self, state[:3], snapshot)

    patch.set(Delays, "load", without)


def says_that_a_cancelled_message_is_delivered(patch: Patch) -> None:
    """147"""
    cancel = Delays._cancel

    def lies(self: Delays, queue: int, due: int, number: int, request: int) -> int:
        outcome = cancel(self, queue, due, number, request)
        return FELL_DUE if outcome == NOT_WAITING and due <= self.now else outcome

    patch.set(Delays, "_cancel", lies)


def takes_a_key_for_none(patch: Patch) -> None:
    """148"""
    feed = KeyedBacklog.feed

    def keyless(
        self: KeyedBacklog, base: int, count: int, mask: int | None, keys: bytes | None
    ) -> tuple[int, int]:
        # Those whose checksum is 0 have 1.
        rows = [(keys or b"")[at : at + 4] for at in range(0, len(keys or b""), 4)]
        zeroed = b"".join(bytes(4) if row == b"\x01\0\0\0" else row for row in rows)
        return feed(self, base, count, mask, zeroed or None)

    patch.set(KeyedBacklog, "feed", keyless)


def runs_a_lease_longer_after_a_restart(patch: Patch) -> None:
    """149"""
    load = Leases.load

    def longer(self: Leases, values: list[Any]) -> None:
        load(self, values)
        if self._deadlines:
            self._deadlines[0] += 5
            self._rebuild_notes()

    patch.set(Leases, "load", longer)


def counts_the_releases_of_one_history(patch: Patch) -> None:
    """150"""
    release = Delays.release

    def counted(self: Delays, head: BatchHead) -> Any:
        outcome = release(self, head)
        if outcome is None and len(self._timers) > 2 * len(self._queues) + 4:
            self.dropped += 1
        return outcome

    patch.set(Delays, "release", counted)


def believes_a_feed_of_an_earlier_filter(patch: Patch) -> None:
    """151"""
    feed = PopGroups._feed

    def believing(self: PopGroups, call: Feed) -> Result:
        return feed(self, msgspec.structs.replace(call, subscription=-1))

    patch.set(PopGroups, "_feed", believing)


def hands_out_what_it_was_told_before_the_filter(patch: Patch) -> None:
    """152"""
    patch.set(Backlog, "set_filtered", lambda self, is_filtered: None)


def takes_a_filter_that_goes_for_another_one(patch: Patch) -> None:
    """153"""
    resubscribed = PopGroups.resubscribed

    def stays(self: PopGroups, topic: int, name: str) -> None:
        if self._subscriptions.of(topic, name):
            resubscribed(self, topic, name)

    patch.set(PopGroups, "resubscribed", stays)


def numbers_settlements_by_handle_with_the_others(patch: Patch) -> None:
    """154"""
    settle = PopGroups._settle

    def together(self: PopGroups, call: Settle, now: int) -> Result:
        return settle(self, msgspec.structs.replace(call, by_handle=False), now)

    patch.set(PopGroups, "_settle", together)


def lets_late_members_begin_a_deleted_group_again(patch: Patch) -> None:
    """155"""
    forget = Offsets.forget

    def unfenced(self: Offsets, command: ForgetOffsets, now: int) -> Result:
        result = forget(self, command, now)
        self._fences.clear()
        return result

    patch.set(Offsets, "forget", unfenced)


def forgets_deletions_in_a_snapshot(patch: Patch) -> None:
    """156"""
    dump = Offsets.dump_owned

    def without(self: Offsets) -> list[Any]:
        return dump(self)[:2]

    patch.set(Offsets, "dump_owned", without)


MUTANTS = (
    Mutant(
        number=140,
        name="place-of-a-lapsed-credit",
        what="A consumer that asks again keeps its place, if no stale timer has swept it [ours].",
        killers=("R21",),
        plant=keeps_the_place_of_a_credit_that_is_over,
        is_popping=True,
    ),
    Mutant(
        number=141,
        name="stale-timer-touches",
        what="A timer whose lease was settled puts queues of its group in order again.",
        killers=("R21",),
        plant=touches_groups_at_stale_timers,
        is_popping=True,
    ),
    Mutant(
        number=142,
        name="twin-hands-elsewhere",
        what="A replica that was restored hands out to another consumer than the rest.",
        killers=("R21",),
        plant=hands_to_the_next_consumer_after_a_restart,
        is_popping=True,
    ),
    Mutant(
        number=143,
        name="twin-begins-elsewhere",
        what="A replica that was restored begins with another queue than the rest.",
        killers=("R21",),
        plant=begins_with_another_queue_after_a_restart,
        is_popping=True,
    ),
    Mutant(
        number=144,
        name="results-not-in-snapshot",
        what="A snapshot has no results of settlements: a repeat after a restart gets none.",
        killers=("R21", "Q14"),
        plant=forgets_results_of_settlements,
        is_popping=True,
    ),
    Mutant(
        number=145,
        name="retention-not-in-snapshot",
        what="A restored replica does not know which messages retention took.",
        killers=("R21", "Q8"),
        plant=forgets_what_retention_took,
        is_popping=True,
    ),
    Mutant(
        number=146,
        name="cancelled-not-in-snapshot",
        what="A replica that was restored says of a cancelled message that it is delivered.",
        killers=("R21", "Q21"),
        plant=forgets_cancelled_numbers,
        is_popping=True,
    ),
    Mutant(
        number=147,
        name="cancel-lies",
        what="A cancellation repeated after the message's time says that it is delivered [ours].",
        killers=("Q21",),
        plant=says_that_a_cancelled_message_is_delivered,
        is_popping=True,
    ),
    Mutant(
        number=148,
        name="key-without-order",
        what="A key whose checksum is 0 counts as none, and has no order [ours].",
        killers=("Q19", "Q8", "Q16"),
        plant=takes_a_key_for_none,
        is_popping=True,
    ),
    Mutant(
        number=149,
        name="deadline-of-one-replica",
        what="A replica that was restored lets a lease run longer than the rest.",
        killers=("R21", "Q8", "Q10"),
        plant=runs_a_lease_longer_after_a_restart,
        is_popping=True,
    ),
    Mutant(
        number=150,
        name="state-of-a-heap",
        what="State depends on void timers, which a replica that was restored does not have.",
        killers=("R21",),
        plant=counts_the_releases_of_one_history,
        is_popping=True,
    ),
    Mutant(
        number=151,
        name="feed-of-an-earlier-filter",
        what="A leader's feed for an earlier filter is taken in after a change.",
        killers=("Q23",),
        plant=believes_a_feed_of_an_earlier_filter,
        is_popping=True,
    ),
    Mutant(
        number=152,
        name="told-before-the-filter",
        what="Messages that were read ahead go out, though the first filter keeps them back.",
        killers=("Q23", "Q8", "assert"),
        plant=hands_out_what_it_was_told_before_the_filter,
        is_popping=True,
    ),
    Mutant(
        number=153,
        name="filter-that-stays",
        what="A group that lost its filter is fed as if it still had one.",
        killers=("Q16", "Q8", "Q23", "R21"),
        plant=takes_a_filter_that_goes_for_another_one,
        is_popping=True,
    ),
    Mutant(
        number=154,
        name="one-row-of-numbers",
        what="Settlements by handle have the numbers of the consumer's own ones.",
        killers=("Q14",),
        plant=numbers_settlements_by_handle_with_the_others,
        is_popping=True,
    ),
    Mutant(
        number=155,
        name="deleted-group-begins-again",
        what="A late commit of a member begins a consumer group again that was deleted.",
        killers=("Q24",),
        plant=lets_late_members_begin_a_deleted_group_again,
        is_popping=True,
    ),
    Mutant(
        number=156,
        name="deletions-not-in-snapshot",
        what="A replica that was restored carries a deletion out again.",
        killers=("R21", "Q24"),
        plant=forgets_deletions_in_a_snapshot,
        is_popping=True,
    ),
)
