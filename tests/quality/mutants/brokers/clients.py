"""Mutants of the client library, and of the machine's promises to it.

They are hunted with whole brokers in the simulated world, by the workload named with each. Modules
of the client are loaded when a mutant is planted, so that hunts on cores need no event loop.

Sources: our own; each survived all campaigns once.
"""

from importlib import import_module
from typing import Any

from raftmq.chaos.mutant import Mutant, Patch
from raftmq.errors import Reason
from raftmq.machine.offsets import Offsets
from raftmq.results import Result

_WHY_SLOW = "one seed in a hundred draws slow consumers"


def takes_a_part_for_the_whole(patch: Patch) -> None:
    """201"""
    fetcher = import_module("raftmq.client.consume.read_ahead").Fetcher
    take = fetcher.take

    def all_of_it(self: Any, count: int) -> Any:
        slices = take(self, count)
        for chunk in list(self._buffer)[:1]:
            if chunk.start and chunk.cursor.handed == chunk.batch.base_offset + chunk.start:
                chunk.cursor.handed = chunk.following
        return slices

    patch.set(fetcher, "take", all_of_it)


def renumbers_a_retry(patch: Patch) -> None:
    """202"""
    settler = import_module("raftmq.client.pop.settlement_sender").SettlementSender
    send = settler._send

    def with_another_number(self: Any, flight: Any) -> None:
        if flight.is_doubtful:
            self._sequence += 1
            flight.sequence, flight.is_doubtful = self._sequence, False
            send(self, flight)
            flight.is_doubtful = True
        else:
            send(self, flight)

    patch.set(settler, "_send", with_another_number)


def goes_back_with_a_late_commit(patch: Patch) -> None:
    """204"""
    commit = Offsets.commit

    def unnumbered(self: Offsets, command: Any, *rest: Any) -> Result:
        for queue, (epoch, _) in self.epochs.get(command.consumer_group, {}).items():
            # The epoch still counts, the number of the last commit does not.
            self.epochs[command.consumer_group][queue] = (epoch, 0)
        return commit(self, command, *rest)

    patch.set(Offsets, "commit", unnumbered)


def commits_what_comes_again(patch: Patch) -> None:
    """244"""
    patch.set(Offsets, "_overtaken", lambda self, command: set())


def sleeps_past_a_shorter_timeout(patch: Patch) -> None:
    """205"""
    deadlines = import_module("raftmq.client.produce.deadlines")

    def not_woken(self: Any, deadline: float) -> None:
        is_asleep = self._next > deadlines.anyio.current_time() + 3600
        if deadline < self._next:
            self._next = deadline
            if is_asleep:
                self._moved.set()

    patch.set(deadlines.Deadlines, "note", not_woken)


def times_each_request(patch: Patch) -> None:
    """206"""

    def whole(router: Any, timeout: float | None) -> Any:
        return lambda: timeout

    for name in (
        "admin.admin",
        "admin.dead_letters",
        "admin.descriptions",
        "admin.resets",
        "consume.offsets",
        "routing.requests",
    ):
        patch.set(import_module(f"raftmq.client.{name}"), "seconds_left", whole)


def gives_the_number_of_a_cancelled_settlement_away(patch: Patch) -> None:
    """250"""
    settlements = import_module("raftmq.client.pop.settlements")
    finish = settlements.Settlements.finish

    def forget(settler: Any, waiter: Any) -> None:
        flight = settler._flight
        if flight is None or all(w is not waiter for i in flight.items for w, _ in i.waiters):
            return
        if flight.request is not None and flight.connection is not None:
            flight.connection.forget(flight.request)
        for item in flight.items:
            item.lease.items.remove(item)
            item.lease.undo(item.bits)
        settler._flight = None
        settler._sequence -= 1
        settler._pump()

    async def as_if_never_written(self: Any, waiter: Any, *rest: Any, **options: Any) -> None:
        try:
            await finish(self, waiter, *rest, **options)
        except settlements.anyio.get_cancelled_exc_class():
            for sender in self._senders.values():
                forget(sender, waiter)
            raise

    patch.set(settlements.Settlements, "finish", as_if_never_written)


def believes_in_a_cancelled_commit(patch: Patch) -> None:
    """251"""
    transaction = import_module("raftmq.client.produce.transactions").Transaction
    commit = transaction.commit
    begun: set[str] = set()

    async def once(self: Any) -> None:
        if self.id in begun:
            return
        begun.add(self.id)
        await commit(self)

    patch.set(transaction, "commit", once)


def believes_the_refusal_of_a_half(patch: Patch) -> None:
    """320"""
    router = import_module("raftmq.client.routing.router")
    patch.set(router, "SURE", router.SURE | {Reason.TRANSACTION_ENDED})


def hands_on_what_is_behind(patch: Patch) -> None:
    """380"""
    lease = import_module("raftmq.client.pop.leases").HeldLease
    patch.set(lease, "stop", lambda self, bits: 0)
    patch.set(lease, "behind", lambda self, bits: 0)


def hands_on_the_last_of_a_batch_first(patch: Patch) -> None:
    """381"""
    buffer = import_module("raftmq.client.pop.prefetch_buffer").PrefetchBuffer
    put = buffer.put

    def in_two(self: Any, lease: Any, batch: Any, bits: int, size: int) -> None:
        last = 1 << (bits.bit_length() - 1)
        for part in filter(None, (last, bits ^ last)):
            put(self, lease, batch, part, size)

    patch.set(buffer, "put", in_two)


MUTANTS = (
    Mutant(
        number=201,
        name="part-is-the-whole",
        what="A part of a batch that was handed to the application counts as all of it.",
        killers=("lost-prefix", "lost-middle", "lost-postfix", "V3"),
        plant=takes_a_part_for_the_whole,
        workload="log",
        seconds=15.0,
        kinds=("client-crash", "client-churn", "client-slow", "pause"),
        why_hinted="it takes a client that ends, which one seed in fifteen draws",
    ),
    Mutant(
        number=202,
        name="renumbered-settlement",
        what="A settlement that is sent again after a lost answer has another number.",
        killers=(
            "fenced-wrongly",
            "books-unbalanced",
            "pop-lost",
            "attempt-miscounted",
            # A nack that counts twice uses up the attempts.
            "buried-early",
            "key-overtake",
        ),
        plant=renumbers_a_retry,
        workload="pop",
        seconds=15.0,
        kinds=("retry-storm", "loss", "kill-leader"),
        why_hinted="it takes a settlement whose answer is lost: one seed in seventeen draws losses "
        "or storms of retries",
    ),
    Mutant(
        number=204,
        name="late-commit",
        what="A commit of an owner that comes late sets the position back.",
        killers=("client-bug", "V3"),
        plant=goes_back_with_a_late_commit,
        workload="members",
        seconds=15.0,
        kinds=("duplicate", "client-resend", "client-ack-late"),
        why_hinted="it takes a request that comes late or twice, which one seed in fourteen draws",
    ),
    Mutant(
        number=205,
        name="shorter-timeout-late",
        what="A message with a shorter timeout than those before it is answered by theirs.",
        killers=("answered-late",),
        plant=sleeps_past_a_shorter_timeout,
        workload="log",
        seconds=15.0,
    ),
    Mutant(
        number=206,
        name="timeout-for-each",
        what="An administrative call has its timeout for each leader that it asks.",
        killers=("answered-late",),
        plant=times_each_request,
        workload="flows",
        seconds=15.0,
        kinds=("slow-disk", "pause-leader", "kill-majority"),
        why_hinted="it takes leaders that are silent or slow one after the other, as one call asks "
        "them",
    ),
    Mutant(
        number=244,
        name="commit-again",
        what="A plain commit that is sent again after a lost answer is carried out again.",
        killers=("zone-inside", "zone-overlap"),
        plant=commits_what_comes_again,
        workload="register",
        seconds=15.0,
    ),
    Mutant(
        number=250,
        name="cancelled-number-again",
        what="A settlement that is cancelled in the middle gives its number to the next one.",
        killers=("fenced-wrongly", "redelivered-after-ack", "settled-twice", "token-reused"),
        plant=gives_the_number_of_a_cancelled_settlement_away,
        workload="pop",
        seconds=15.0,
        kinds=("client-slow",),
        why_hinted=_WHY_SLOW,
    ),
    Mutant(
        number=251,
        name="cancelled-commit-holds",
        what="A commit of a transaction that was cancelled in the middle counts as done.",
        killers=("made-lost",),
        plant=believes_in_a_cancelled_commit,
        workload="flows",
        seconds=15.0,
        kinds=("client-slow",),
        why_hinted=_WHY_SLOW,
    ),
    Mutant(
        number=320,
        name="half-refused",
        what="A message of a transaction whose first answer was lost counts as refused if the "
        "transaction has ended since.",
        killers=("aborted-read",),
        plant=believes_the_refusal_of_a_half,
        kinds=("cut-in-frame", "loss", "isolate-leader", "skew"),
        why_hinted="it takes an answer that is lost and a transaction that ends before the message "
        "is sent again: one seed in sixty draws both",
        workload="pop",
        seconds=12.0,
    ),
    Mutant(
        number=380,
        name="behind-a-failure",
        what="The client hands on what stands behind a message that failed in the same lease.",
        killers=("rest-delivered",),
        plant=hands_on_what_is_behind,
        workload="pop",
        seconds=12.0,
    ),
    Mutant(
        number=381,
        name="last-first",
        what="The client hands on the last message of a batch that it popped ahead first.",
        killers=("lease-inversion", "key-inversion"),
        plant=hands_on_the_last_of_a_batch_first,
        workload="pop",
        seconds=12.0,
    ),
)
