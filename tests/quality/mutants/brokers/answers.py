"""Mutants of answers that come in parts, or in another turn of the loop, hunted with whole brokers.

The modules are loaded when a mutant is planted: hunts on cores need no event loop.
"""

from importlib import import_module
from typing import Any

from raftmq.chaos.mutant import Mutant, Patch


def sends_what_was_handed_out(patch: Patch) -> None:
    """383"""
    hand_out = import_module("raftmq.broker.deliver.hand_out")

    def by_its_first_deadline(_group: Any, _number: int, handed: Any, now: int) -> Any:
        return handed if handed.deadline > now else None

    patch.set(hand_out, "_still_held", by_its_first_deadline)


def makes_masks_and_tells_nobody(patch: Patch) -> None:
    """384"""
    matching = import_module("raftmq.broker.deliver.matching").Matching

    async def carry_out_one(self: Any) -> None:
        key, (placement, wanted) = next(iter(self._orders.items()))
        await self._make_mask(self._group(key[0]), placement, wanted, Turn())
        del self._orders[key]

    Turn = import_module("raftmq.broker.loop_budget").Turn  # a class
    patch.set(matching, "_carry_out_one", carry_out_one)


def forgets_later_turns(patch: Patch) -> None:
    """385"""
    turns = import_module("raftmq.broker.loop_budget").Turns

    def go_on(self: Any) -> None:
        self._waiting.clear()
        self._is_running = False

    patch.set(turns, "_go_on", go_on)


MUTANTS = (
    Mutant(
        number=383,
        name="sent-as-handed-out",
        what="The rest of a lease that did not fit into an answer is sent as it was handed out, "
        "whatever happened to the lease since (raftmq before 2026-11-28).",
        killers=("answered-lease",),
        plant=sends_what_was_handed_out,
        workload="pop",
        seconds=12.0,
    ),
    Mutant(
        number=384,
        name="mask-in-silence",
        what="A mask that takes long is made, and who waits for it does not hear of it.",
        killers=("V3",),
        plant=makes_masks_and_tells_nobody,
        workload="pop",
        seconds=12.0,
    ),
    Mutant(
        number=385,
        name="one-turn",
        what="Answers that did not fit into a turn of the loop are forgotten.",
        killers=("V3",),
        plant=forgets_later_turns,
        workload="log",
        seconds=12.0,
    ),
)
