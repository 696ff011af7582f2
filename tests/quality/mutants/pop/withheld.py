"""Mutants of delayed messages and transactions.

They are hunted on random logs of one machine (`raftmq.chaos.ledger`), as those of consumer groups;
the simulated world kills them as well, with `--workload pop`.

Sources: issues of Apache RocketMQ, as named; else breaches of the rules in `raftmq.machine.delays`
and `raftmq.machine.transactions`, one after the other.
"""

from typing import Any

from raftmq.batch import BatchHead
from raftmq.chaos.mutant import Mutant, Patch
from raftmq.machine.delay_queue import DelayQueue
from raftmq.machine.delays import CANCELLED, FELL_DUE, NEVER, Delays, Half, Run
from raftmq.machine.transactions import Transactions
from raftmq.results import Delayed, Refused

AHEAD_MS = 25


def releases_early(patch: Patch) -> None:
    """110"""
    pass_time = Delays.pass_time
    patch.set(Delays, "pass_time", lambda self, now: pass_time(self, now + AHEAD_MS))


def cancels_in_words(patch: Patch) -> None:
    """111"""
    cancel = Delays._cancel

    def promise(self: Delays, queue: int, due: int, number: int, request: int) -> int:
        if due <= self.now:
            return cancel(self, queue, due, number, request)
        return CANCELLED

    patch.set(Delays, "_cancel", promise)


def cancels_what_is_due(patch: Patch) -> None:
    """112"""
    cancel = Delays._cancel

    def late(self: Delays, queue: int, due: int, number: int, request: int) -> int:
        outcome = cancel(self, queue, due, number, request)
        shelf = self._queues.get(queue)
        if outcome == FELL_DUE and shelf is not None and shelf.remove(due, number) is not None:
            return CANCELLED
        return outcome

    patch.set(Delays, "_cancel", late)


def shows_halves(patch: Patch) -> None:
    """113"""
    put = Delays.put

    def visible(self: Delays, queue: int, index: int, runs: list[Run]) -> Delayed:
        shown = [run._replace(due=self.now) if run.due == NEVER else run for run in runs]
        return put(self, queue, index, shown)

    patch.set(Delays, "put", visible)


def forgets_outcomes(patch: Patch) -> None:
    """114"""
    patch.set(Transactions, "_remember", lambda *_: None)


def rolls_back_in_words(patch: Patch) -> None:
    """115"""
    patch.set(Delays, "roll_back", lambda *_: None)


def releases_and_keeps(patch: Patch) -> None:
    """116"""

    def keep(self: Delays, head: BatchHead) -> Refused | None:
        return None

    patch.set(Delays, "release", keep)


def copies_the_neighbour(patch: Patch) -> None:
    """117"""
    move = DelayQueue.move

    def beside(self: DelayQueue, due: int, number: int, place: int) -> int | None:
        # The first copy of a record stands for two messages.
        return move(self, due, number, place - (place & 1))

    patch.set(DelayQueue, "move", beside)


def commits_without_its_inputs(patch: Patch) -> None:
    """118"""
    held = Transactions._held_until

    def trusting(self: Transactions, inputs: Any, now: int) -> int | None:
        until = held(self, inputs, now)
        return now + 1000 if until is None else until

    patch.set(Transactions, "_held_until", trusting)


def keeps_delays_in_memory(patch: Patch) -> None:
    """119"""
    load = Delays.load

    def without_rows(self: Delays, state: list[Any], snapshot: bytes) -> None:
        load(self, [*state[:2], []], snapshot)

    patch.set(Delays, "load", without_rows)


def commits_forget_a_half(patch: Patch) -> None:
    """120"""
    commit = Delays.commit

    def without_the_last(self: Delays, halves: list[Half], index: int) -> bool:
        return commit(self, halves[: max(len(halves) - 1, 1)], index)

    patch.set(Delays, "commit", without_the_last)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        number=110,
        name="delays-early",
        what="Delayed messages fall due by a clock that is ahead of the log's.",
        killers=("R21", "Q20", "Q21"),
        plant=releases_early,
        is_popping=True,
    ),
    Mutant(
        number=111,
        name="cancelled-and-kept",
        what="A cancellation is answered, and the message comes all the same.",
        killers=("Q21",),
        plant=cancels_in_words,
        is_popping=True,
    ),
    Mutant(
        number=112,
        name="due-and-cancelled",
        what="A message that is on its way to its queue is taken back.",
        killers=("Q21", "assert", "error"),
        plant=cancels_what_is_due,
        is_popping=True,
    ),
    Mutant(
        number=113,
        name="half-visible",
        what="A half message is seen before its transaction commits.",
        killers=("Q22", "Q21"),
        plant=shows_halves,
        is_popping=True,
    ),
    Mutant(
        number=114,
        name="outcome-forgotten",
        what="How a transaction ended is forgotten: a second outcome takes effect [#5574, #8158].",
        killers=("Q22",),
        plant=forgets_outcomes,
        is_popping=True,
    ),
    Mutant(
        number=115,
        name="rollback-keeps",
        what="A transaction is rolled back, and its messages stay.",
        killers=("Q21",),
        plant=rolls_back_in_words,
        is_popping=True,
    ),
    Mutant(
        number=116,
        name="released-and-kept",
        what="A message that was released is due still, and released again.",
        killers=("Q21",),
        plant=releases_and_keeps,
        is_popping=True,
    ),
    Mutant(
        number=117,
        name="neighbour-copied",
        what="Before retention the wrong message is copied to the log's end.",
        killers=("Q3",),
        plant=copies_the_neighbour,
        is_popping=True,
    ),
    Mutant(
        number=118,
        name="hand-off-unfenced",
        what="A hand-off commits although another consumer holds an input by then.",
        killers=("Q22",),
        plant=commits_without_its_inputs,
        is_popping=True,
    ),
    Mutant(
        number=119,
        name="delays-in-memory",
        what="Delayed messages are in the leader's memory only.",
        killers=("R21",),
        plant=keeps_delays_in_memory,
        is_popping=True,
    ),
    Mutant(
        number=120,
        name="commit-torn",
        what="A commit lets all messages of its transaction go but the last one.",
        killers=("Q20", "Q21", "Q22"),
        plant=commits_forget_a_half,
        is_popping=True,
    ),
)
