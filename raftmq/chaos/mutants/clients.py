"""Mutants of the client library, and of what a machine promises it.

They are hunted with whole brokers in the made-up world, by the workload named with each. Modules of
the client are loaded when a mutant is planted, so that hunts on cores need no event loop.

Sources: our own; each survived all campaigns once.
"""

from importlib import import_module
from typing import Any

from raftmq.chaos.mutants.mutant import Mutant, Patch
from raftmq.pop.offsets import Offsets
from raftmq.pop.results import Result


def takes_a_part_for_the_whole(patch: Patch) -> None:
    """201"""
    fetcher = import_module("raftmq.client.fetching").Fetcher
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
    settler = import_module("raftmq.client.settling").Settler
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


def sleeps_past_a_shorter_timeout(patch: Patch) -> None:
    """205"""
    producer = import_module("raftmq.client.producer")

    def not_woken(self: Any, deadline: float) -> None:
        is_asleep = self._next_deadline > producer.anyio.current_time() + 3600
        if deadline < self._next_deadline:
            self._next_deadline = deadline
            if is_asleep:
                self._deadline_moved.set()

    patch.set(producer.Producer, "_wake_at", not_woken)


def times_each_request(patch: Patch) -> None:
    """206"""

    def whole(router: Any, timeout: float | None) -> Any:
        return lambda: timeout

    for name in ("admin", "dead_letters", "descriptions", "resetting", "offsets"):
        patch.set(import_module(f"raftmq.client.{name}"), "seconds_left", whole)


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
    ),
    Mutant(
        number=202,
        name="renumbered-settlement",
        what="A settlement that is sent again after a lost answer has another number.",
        killers=("fenced-wrongly", "books-unbalanced", "pop-lost"),
        plant=renumbers_a_retry,
        workload="pop",
        seconds=15.0,
        kinds=("retry-storm", "loss", "kill-leader"),
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
        kinds=("isolate-leader", "kill-majority", "pause"),
    ),
)
