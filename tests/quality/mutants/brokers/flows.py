"""Mutants of claims, hand-offs, groups that are moved, and broadcast groups.

They are hunted with whole brokers in the simulated world, by `--workload flows`. Modules of the
client are loaded when a mutant is planted, so that hunts on cores need no event loop.

Sources: our own; the first of them survived all campaigns once.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from raftmq.chaos.mutant import Mutant, Patch
from raftmq.machine.claims import Claims
from raftmq.machine.repeats import Repeats
from raftmq.machine.transactions import Transactions, _size
from raftmq.results import Result


def believes_who_gives_a_claim_up(patch: Patch) -> None:
    """221"""
    release = Claims.release

    def anybody(self: Claims, number: int, key: bytes, claimant: int) -> Result:
        known = self._claims.get((number, key))
        return release(self, number, key, claimant if known is None else known.claimant)

    patch.set(Claims, "release", anybody)


def commits_inputs_that_are_not_in_hand(patch: Patch) -> None:
    """222"""
    end = Transactions.end

    def unlooked(self: Transactions, command: Any, now: int, index: int) -> Any:
        transaction = self.open.get(command.transaction)
        inputs = transaction.inputs if transaction is not None else []
        if transaction is not None and inputs and self._held_until(inputs, now) is None:
            # Its outputs are committed all the same.
            self._input_bytes -= _size(inputs)
            transaction.inputs = []
        return end(self, command, now, index)

    patch.set(Transactions, "end", unlooked)
    patch.set(Transactions, "pass_time", lambda self, now: None)


def commits_what_it_has_read_ahead(patch: Patch) -> None:
    """223"""
    consumer = import_module("raftmq.client.consume.consumer").Consumer
    commit = consumer._commit

    async def ahead(self: Any, wanted: Mapping[Any, int], *rest: Any, **named: Any) -> Any:
        return await commit(self, {cursor: cursor.fetched for cursor in wanted}, *rest, **named)

    patch.set(consumer, "_commit", ahead)


def tells_one_leader_of_a_reset(patch: Patch) -> None:
    """224"""
    resetting = import_module("raftmq.client.admin.resets")
    by_partition = resetting.by_partition

    def first_alone(groups: Mapping[int, int]) -> Any:
        return dict(list(by_partition(groups).items())[:1])

    patch.set(resetting, "by_partition", first_alone)


def repeats_the_reset_before(patch: Patch) -> None:
    """241"""
    resetting = import_module("raftmq.client.admin.resets")
    set_offsets = resetting.set_offsets
    before: list[Any] = []

    async def again(
        router: Any, topic: str, name: str, groups: Any, offsets: Any, timeout: Any = None
    ) -> None:
        if before:
            await set_offsets(router, *before, timeout)
        before[:] = topic, name, groups, offsets
        await set_offsets(router, topic, name, groups, offsets, timeout)

    patch.set(resetting, "set_offsets", again)


def changes_what_comes_again(patch: Patch) -> None:
    """245"""
    patch.set(Repeats, "once", lambda self, request, change: change())


MUTANTS = (
    Mutant(
        number=221,
        name="claim-given-up-by-any",
        what="Any process can give up a claim, not its claimant alone.",
        killers=("claims-overlap", "claim-disowned"),
        plant=believes_who_gives_a_claim_up,
        workload="flows",
        seconds=6.0,
    ),
    Mutant(
        number=222,
        name="late-hand-off",
        what="A hand-off is committed although its inputs are no longer in hand.",
        killers=("V3", "made-twice", "made-undone", "Q22", "Q23", "assert"),
        plant=commits_inputs_that_are_not_in_hand,
        workload="flows",
        seconds=6.0,
    ),
    Mutant(
        number=223,
        name="commits-what-is-read-ahead",
        what="A consumer commits all fetched messages, not only those handed to its application.",
        killers=("V3", "instance-skipped", "instance-lost"),
        plant=commits_what_it_has_read_ahead,
        workload="flows",
        seconds=6.0,
    ),
    Mutant(
        number=224,
        name="reset-of-one-leader",
        what="A reset moves the queues of the first leader only.",
        killers=("reset-lost", "clone-early", "instance-lost"),
        plant=tells_one_leader_of_a_reset,
        workload="flows",
        seconds=6.0,
    ),
    Mutant(
        number=241,
        name="reset-again",
        what="The next reset carries out the one before it again, whatever was committed since.",
        killers=("instance-went-back",),
        plant=repeats_the_reset_before,
        workload="flows",
        seconds=6.0,
    ),
    Mutant(
        number=245,
        name="change-again",
        what="A change of a topic or group that is sent again is carried out again.",
        # Q8, Q9: a reset that is carried out again hands out what is leased or acked.
        killers=("topic-revived", "Q8", "Q9"),
        plant=changes_what_comes_again,
        workload="flows",
        seconds=20.0,
        kinds=("duplicate",),
        why_hinted="one seed in forty-five draws frames that arrive twice",
    ),
)
