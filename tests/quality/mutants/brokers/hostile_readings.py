"""Mutants of bugs that hostile readings found in calls that overlap or follow each other.

Each puts back what the code did before its fix. They are hunted with whole brokers in the simulated
world, whose modules are loaded when a mutant is planted: hunts on cores need no event loop.

Sources: the track record of this project.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from raftmq.chaos.mutant import Mutant, Patch


def shortens_leases_in_hand(patch: Patch) -> None:
    """353"""
    prefetcher = import_module("raftmq.client.pop.prefetcher")

    def extend_short(
        self: Any, milliseconds: int, waiter: Any, *, is_again: bool = False
    ) -> list[Any]:
        self.invisible_ms = milliseconds
        least = prefetcher.anyio.current_time() + 0.9 * milliseconds / 1000
        short = [
            lease
            for lease in self.buffer.leases()
            if (lease.deadline < least and not is_again) or lease.invisible_ms != milliseconds
        ]
        for lease in short:
            self.settlements.sender(lease.group).extend(lease, milliseconds, waiter)
        return short

    patch.set(prefetcher.Prefetcher, "_extend_short", extend_short)


def sends_at_once_in_a_transaction(patch: Patch) -> None:
    """354"""
    module = import_module("raftmq.client.produce.transactions")

    @asynccontextmanager
    async def one_of_many(self: Any) -> AsyncIterator[Callable[[], float]]:
        yield module.seconds_left(self._router, self._timeout)

    patch.set(module.Transaction, "_one_call", one_of_many)


def takes_what_is_put_in_after_the_end(patch: Patch) -> None:
    """355"""
    sender = import_module("raftmq.client.produce.queue_sender")

    def keep(self: Any, entry: Any) -> bool:
        limits = self._host.limits
        if getattr(entry, "sealed", None) is not None:
            self._waiting.append(sender.ProducerBatch.of_sealed(entry, limits))
        else:
            batch = sender.ProducerBatch(limits)
            batch.append(entry)
            self._waiting.append(batch)
        return True

    patch.set(sender.QueueSender, "_turn_away", keep)


def forgets_where_groups_began(patch: Patch) -> None:
    """356"""
    memberships = import_module("raftmq.machine.catalog.membership").Memberships
    patch.set(memberships, "old_queue_count", lambda self, member: None)


def begins_at_the_latest_in_new_queues(patch: Patch) -> None:
    """357"""

    async def count_all(*_: Any) -> int:
        return 1 << 32

    patch.set(import_module("raftmq.client.consume.consumer"), "count_old", count_all)


MUTANTS = (
    Mutant(
        number=353,
        name="lease-in-hand-cut",
        what="A pop for a shorter time cuts down the leases of messages that are in hand (raftmq "
        "before `7baacd4`).",
        killers=("two-leases", "fenced-wrongly"),
        plant=shortens_leases_in_hand,
        workload="pop",
        seconds=6.0,
    ),
    Mutant(
        number=354,
        name="sends-at-once",
        what="Calls of one transaction do not wait for each other: two batches get one number, "
        "and the second one is taken for a repeat (raftmq before `9bac1ce`).",
        killers=("withheld-lost", "transaction-torn"),
        plant=sends_at_once_in_a_transaction,
        workload="flows",
        seconds=6.0,
    ),
    Mutant(
        number=355,
        name="closed-and-silent",
        what="A closed producer takes batches that no task sends or expires: the call never "
        "returns (raftmq before `734e71f`).",
        killers=("answered-late",),
        plant=takes_what_is_put_in_after_the_end,
        workload="flows",
        seconds=6.0,
    ),
    Mutant(
        number=356,
        name="latest-when-opened",
        what="A group with members that begins at the latest message begins so in each queue that "
        "its topic got while the group had no member (raftmq before `b8a275c`).",
        killers=("V5", "V3"),
        plant=forgets_where_groups_began,
        workload="members",
        seconds=15.0,
    ),
    Mutant(
        number=357,
        name="latest-in-new-queues",
        what="An instance of a broadcast group begins at the latest message in queues that its "
        "topic got since the instance began (raftmq before `813d6fe`).",
        killers=("V5", "V3"),
        plant=begins_at_the_latest_in_new_queues,
        workload="members",
        seconds=15.0,
    ),
)
