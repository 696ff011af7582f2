"""Mutants of bugs that close readings of this project found: numbers from 290 on.

Each puts back what the code did before its fix. They are hunted with whole brokers in the made-up
world, whose modules are loaded when a mutant is planted: hunts on cores need no event loop.

Sources: the track record of this project.
"""

from importlib import import_module
from typing import Any

from raftmq.chaos.mutants.mutant import Mutant, Patch


def proposes_a_tick_once(patch: Patch) -> None:
    """290"""
    popping = import_module("raftmq.broker.popping").Popping
    patch.set(popping, "_tick_refused", lambda self, group, error: None)


def commits_what_did_not_begin(patch: Patch) -> None:
    """293"""
    transaction = import_module("raftmq.client.transactions").Transaction
    begin = transaction._begin

    async def unmarked(self: Any, partition_group: int) -> None:
        try:
            await begin(self, partition_group)
        except BaseException:
            self._is_broken = False
            raise

    patch.set(transaction, "_begin", unmarked)


def begins_when_first_asked(patch: Patch) -> None:
    """294"""

    async def not_yet(*_: Any) -> None:
        pass

    patch.set(import_module("raftmq.client.popping"), "begin", not_yet)


def claims_before_a_deletion(patch: Patch) -> None:
    """305"""
    patch.set(import_module("raftmq.broker.requests"), "forget_first", lambda *_: None)


MUTANTS = (
    Mutant(
        number=290,
        name="tick-once",
        what="A Tick that was refused is not proposed again.",
        killers=("V8",),
        plant=proposes_a_tick_once,
        workload="pop",
        seconds=6.0,
    ),
    Mutant(
        number=293,
        name="begun-in-vain",
        what="A hand-off whose first send failed is committed, without its output.",
        killers=("made-lost", "input-lost"),
        plant=commits_what_did_not_begin,
        workload="flows",
        seconds=6.0,
        kinds=("isolate-leader", "pause-leader", "kill-majority"),
        why_hinted="it takes a leader that does not answer the first send of a transaction",
    ),
    Mutant(
        number=294,
        name="latest-later",
        what="A group that starts at the end begins where the end is when its first pop arrives.",
        killers=("V3", "V5"),
        plant=begins_when_first_asked,
        workload="admin",
        seconds=10.0,
    ),
    Mutant(
        number=305,
        name="claim-before-deletion",
        what="A queue is claimed for a group before the deletion of its namesake is carried out.",
        killers=("V3",),
        plant=claims_before_a_deletion,
        workload="admin",
        seconds=10.0,
        kinds=("half-open", "chain", "isolate-node"),
        why_hinted="it takes a data group whose leader hears late of a deletion",
    ),
)
